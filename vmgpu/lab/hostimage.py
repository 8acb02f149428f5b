"""Builds the disk and the kernel of the lab's GPU host, from this machine's own distribution's packages alone."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from vmgpu.errors import SetupError
from vmgpu.lab import cache, guestimage, host_recipe
from vmgpu.lab.cache import Progress, quiet
from vmgpu.lab.guestimage import link, this_distribution, write_files
from vmgpu.lab.programs import need_programs, need_root, run
from vmgpu.lab.recipe import LEFT_OUT, Distribution

PROGRAMS = ("mmdebstrap", "apt-get", "dpkg-deb", "chroot", "mkfs.ext4", "qemu-img", "tar", "xz")


@dataclass(frozen=True)
class HostImage:
    """What QEMU boots: `disk` is a qcow2 with the root alone, to be left as it is and written beside."""

    disk: Path
    vmlinuz: Path
    initrd: Path


def ensure_host_image(progress: Progress = quiet) -> HostImage:
    """The host of this machine's distribution; built at the first call (about four minutes), then kept."""
    folder = cache.ensure(_place(), lambda made: _build(made, progress))
    return HostImage(folder / "disk.qcow2", folder / "vmlinuz", folder / "initrd")


def _place() -> Path:
    distribution = this_distribution()
    recipes = (Path(host_recipe.__file__).read_bytes(), Path(__file__).read_bytes())
    key = cache.recipe_hash(*recipes, distribution.id, distribution.codename)
    return cache.cache_dir() / "hosts" / f"{distribution.id}-{distribution.codename}-{key}"


def _build(folder: Path, progress: Progress) -> None:
    doing = "Building the lab's GPU host"
    need_root(doing)
    need_programs(PROGRAMS, doing=doing)
    distribution = this_distribution()
    folder.mkdir()
    tree = folder.parent / "tree"
    progress(f"installing {distribution.id} {distribution.codename} with its full kernel (a minute or two)")
    _bootstrap(tree, distribution, folder.parent)
    progress("building the kernel's sample drivers")
    _build_samples(tree, folder.parent / "downloads")
    progress("laying libvirt's packages beside it")
    _make_repository(folder.parent / "later", tree / host_recipe.REPOSITORY)
    _finish(tree)
    shutil.copy(_newest(tree, "vmlinuz"), folder / "vmlinuz")
    shutil.copy(_newest(tree, "initrd.img"), folder / "initrd")
    progress("putting the disk together")
    _make_disk(tree, folder / "disk.qcow2")
    for path in folder.iterdir():
        path.chmod(0o644)


def _bootstrap(tree: Path, distribution: Distribution, work: Path) -> None:
    early = work / "early"
    write_files(early, host_recipe.EARLY_FILES)
    kernel = host_recipe.full_kernel(distribution)
    wanted = (*host_recipe.PACKAGES, *host_recipe.BUILD_PACKAGES, kernel.image, kernel.headers)
    (work / "downloads").mkdir()
    # apt as mmdebstrap uses it: this machine's own, over the tree's lists
    apt = 'cd {} && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -qq'
    later = (
        f"{apt.format(work)} -o APT::Install-Recommends=false -o Dir::Cache::archives={work}/later "
        f"-y --download-only install {' '.join(host_recipe.LATER_PACKAGES)}"
    )
    (work / "later/partial").mkdir(parents=True)
    source = (
        f'name=$(APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-cache depends {kernel.source} | '
        "sed -n 's/.*Depends: *//p' | head -n 1); "
        f'{apt.format(work / "downloads")} download "$name"'
    )
    # apt fetches as a user of its own, who may not enter a folder of root's
    options = ['--aptopt=APT::Sandbox::User "root"']
    options += [f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT]
    options += [f"--aptopt={line}" for line in guestimage.apt_network_options()]
    options += [f"--essential-hook=sync-in {early} /", f"--customize-hook={later}", f"--customize-hook={source}"]
    run(
        [
            "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(wanted)}",
            *options, distribution.codename, tree, *guestimage.sources_of(distribution),
        ],
        doing="Installing the host's packages",
    )  # fmt: skip


def _build_samples(tree: Path, downloads: Path) -> None:
    """The sample drivers out of the kernel's source, built by the tree's own compiler against the tree's headers."""
    doing = "Building the kernel's sample drivers"
    package = next(downloads.glob("linux-source*.deb"), None)
    if package is None:
        raise SetupError(f"{doing}: apt gave no linux-source package", hint="Run: apt-get update")
    run(["dpkg-deb", "-x", package, downloads / "source"], doing=doing)
    archive = next((downloads / "source/usr/src").rglob("linux-source-*.tar.*"))
    place = tree / "root/samples"
    place.mkdir()
    run(
        ["tar", "-xf", archive, "-C", place, "--strip-components=3", "--wildcards", "*/samples/vfio-mdev/*.[ch]"],
        doing=doing,
    )
    mtty = place / "mtty.c"
    text, found = re.subn(host_recipe.PORTS_LINE, rf"\g<1>{host_recipe.PORTS}", mtty.read_text())
    if found != 1:
        raise SetupError(f"{doing}: mtty.c does not say how many ports it has", hint="Please report this.")
    mtty.write_text(text)
    release = _release(tree)
    objects = " ".join(f"{name}.o" for name in host_recipe.SAMPLES)
    (place / "Makefile").write_text(f"obj-m := {objects}\n")
    run(
        ["chroot", tree, "make", "-s", "-C", f"/lib/modules/{release}/build", "M=/root/samples", "modules"], doing=doing
    )
    extra = tree / "lib/modules" / release / "extra"
    extra.mkdir(exist_ok=True)
    for name in host_recipe.SAMPLES:
        shutil.copy(place / f"{name}.ko", extra)
    shutil.rmtree(place)
    run(["chroot", tree, "depmod", release], doing=doing)
    unneeded = (*host_recipe.BUILD_PACKAGES, host_recipe.full_kernel(this_distribution()).headers)
    run(["chroot", tree, "apt-get", "-qq", "-y", "--autoremove", "--purge", "remove", *unneeded], doing=doing)


def _make_repository(packages: Path, repository: Path) -> None:
    """A folder that apt takes for an archive: packages, and a list of them."""
    repository.mkdir(parents=True)
    entries = []
    for package in sorted(packages.glob("*.deb")):
        shutil.copy(package, repository)
        control = run(["dpkg-deb", "-f", package], doing="Reading a package").strip()
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        entries.append(f"{control}\nFilename: ./{package.name}\nSize: {package.stat().st_size}\nSHA256: {digest}\n")
    (repository / "Packages").write_text("\n".join(entries))


def _finish(tree: Path) -> None:
    for pattern in host_recipe.REMOVED:
        for path in tree.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    write_files(tree, host_recipe.FILES)
    write_files(tree, {"etc/apt/sources.list": f"deb [trusted=yes] file:/{host_recipe.REPOSITORY} ./\n"})
    (tree / "etc/sudoers.d/lab").chmod(0o440)
    for folder in host_recipe.FOLDERS:
        (tree / folder).mkdir(exist_ok=True)
    for ending in ("", ".pub"):
        link(tree / f"etc/ssh/ssh_host_ed25519_key{ending}", f"{host_recipe.SEEDED_KEY}{ending}")
    system = tree / "etc/systemd/system"
    for unit in host_recipe.MASKED:
        link(system / unit, "/dev/null")
    for unit in host_recipe.ENABLED:
        link(system / "multi-user.target.wants" / unit, f"/lib/systemd/system/{unit}")
    add = ["useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", host_recipe.ADMIN]
    run(["chroot", tree, *add], doing="Making the admin's account")


def _make_disk(tree: Path, out: Path) -> None:
    raw = out.with_suffix(".raw")
    with raw.open("wb") as blank:
        blank.truncate(host_recipe.ROOT_MIB * 1024 * 1024)
    run(
        [
            "mkfs.ext4", "-q", "-F", "-L", host_recipe.ROOT_LABEL, "-m", "1", "-d", tree,
            "-E", "lazy_itable_init=0,lazy_journal_init=0", raw,
        ],
        doing="Making the root file system",
    )  # fmt: skip
    run(["qemu-img", "convert", "-W", "-O", "qcow2", raw, out], doing="Writing the disk")
    raw.unlink()


def _release(tree: Path) -> str:
    return next(path.name for path in sorted((tree / "usr/lib/modules").iterdir()) if (path / "kernel").is_dir())


def _newest(tree: Path, kind: str) -> Path:
    return tree / "boot" / f"{kind}-{_release(tree)}"


if __name__ == "__main__":
    sys.exit(cache.show("GPU host", lambda progress: ensure_host_image(progress).disk))
