"""Builds a guest image of this machine's own distribution, from its packages alone."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from vmgpu.errors import SetupError
from vmgpu.lab import cache, disk, recipe
from vmgpu.lab.cache import Progress, quiet
from vmgpu.lab.programs import need_programs, need_root, run
from vmgpu.lab.recipe import Distribution


def ensure_guest_image(progress: Progress = quiet) -> Path:
    """The image of this machine's distribution; built at the first call (about two minutes), then kept."""
    return cache.ensure(_place("guests", ".qcow2"), lambda made: _build(made, progress))


def ensure_guest_kernel(progress: Progress = quiet) -> Path:
    """A folder with that image's `vmlinuz` and `modules/`, which the tiny guest shares."""
    ensure_guest_image(progress)
    return _place("kernels")


def this_distribution(os_release: Path = Path("/etc/os-release")) -> Distribution:
    """Which of the known distributions this machine is; SetupError where it is none of them."""
    said = dict(line.split("=", 1) for line in os_release.read_text().splitlines() if "=" in line)
    facts = {key: value.strip("\"'") for key, value in said.items()}
    for known in recipe.DISTRIBUTIONS:
        if (known.id, known.codename) == (facts.get("ID"), facts.get("VERSION_CODENAME")):
            return known
    raise SetupError(
        f"No guest recipe for {facts.get('PRETTY_NAME', 'this system')}",
        hint="Debian 12, Debian 13 and Ubuntu 24.04 are known.",
    )


def _place(shelf: str, ending: str = "") -> Path:
    distribution = this_distribution()
    key = cache.recipe_hash(Path(recipe.__file__).read_bytes(), distribution.id, distribution.codename)
    return cache.cache_dir() / shelf / f"{distribution.id}-{distribution.codename}-{key}{ending}"


def _build(image: Path, progress: Progress) -> None:
    doing = "Building the guest image"
    if platform.machine() != "x86_64":
        raise SetupError(f"{doing} is known for x86_64, this machine is {platform.machine()}")
    need_root(doing)
    need_programs(("mmdebstrap", "apt-get", *disk.PROGRAMS), doing=doing)
    distribution = this_distribution()
    tree = image.parent / "tree"
    progress(f"installing {distribution.id} {distribution.codename} from its packages (about a minute)")
    _bootstrap(tree, distribution, image.parent / "early")
    _finish(tree)
    progress("keeping its kernel for the tiny guest")
    cache.ensure(_place("kernels"), lambda made: _take_kernel(tree, made))
    progress("putting the disk together")
    disk.make_disk(
        image,
        recipe.GRUB_CFG,
        esp={},
        esp_mib=32,
        root=disk.Root(tree, recipe.ROOT_LABEL, recipe.ROOT_MIB),
    )


def _bootstrap(tree: Path, distribution: Distribution, early: Path) -> None:
    sources = sources_of(distribution)
    write_files(early, recipe.EARLY_FILES)
    write_files(early, recipe.EARLY_PROGRAMS, mode=0o755)
    options = [f"--dpkgopt=path-exclude={path}" for path in recipe.LEFT_OUT]
    options += [f"--dpkgopt=path-include={path}" for path in recipe.KEPT]
    options += [f"--aptopt={line}" for line in apt_network_options()]
    # The essential packages are there, the kernel is not yet: its initramfs must see these files.
    options += [f"--essential-hook=sync-in {early} /"]
    packages = ",".join((*recipe.PACKAGES, distribution.kernel))
    run(
        [
            "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={packages}",
            *options, distribution.codename, tree, *sources,
        ],
        doing="Installing the guest's packages",
    )  # fmt: skip


def sources_of(distribution: Distribution) -> list[str]:
    """This machine's apt sources of its distribution; SetupError where apt names none."""
    sources = list(own_sources(distribution))
    if not sources:
        raise SetupError(
            f"apt names no source of {distribution.id} {distribution.codename} on this machine",
            hint="Check /etc/apt/sources.list and run: apt-get update",
        )
    return sources


def own_sources(distribution: Distribution) -> Iterator[str]:
    """This machine's apt sources of the distribution itself, one line each; other people's archives stay out."""
    fields = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)|$(ARCHITECTURE)|$(ORIGIN)"
    said = run(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"], doing="Asking apt")
    wanted = {distribution.codename + ending for ending in ("", "-updates", "-security")}
    for line in dict.fromkeys(said.splitlines()):
        uri, release, component, signed_by, arch, origin = line.split("|")
        # Before the first `apt-get update` the origin is not known, and empty.
        ours = not origin or origin.lower() == distribution.id
        if release in wanted and arch == "amd64" and ours and not uri.startswith("cdrom"):
            option = f"[signed-by={signed_by}] " if signed_by.startswith("/") else ""
            yield f"deb {option}{uri} {release} {component}"


def apt_network_options() -> list[str]:
    """How this machine's apt reaches its archive: a proxy, and whether an old snapshot is welcome."""
    wanted = ("Acquire::http::", "Acquire::https::", "Acquire::Check-")
    said = run(["apt-config", "dump"], doing="Asking apt")
    return [line for line in said.splitlines() if line.startswith(wanted) and not line.endswith('"";')]


def _finish(tree: Path) -> None:
    for pattern in recipe.REMOVED:
        for path in tree.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    write_files(tree, recipe.FILES)
    write_files(tree, recipe.PROGRAMS, mode=0o755)
    system = tree / "etc/systemd/system"
    for generator in recipe.MASKED_GENERATORS:
        link(tree / "etc/systemd/system-generators" / generator, "/dev/null")
    for unit in recipe.MASKED:
        link(system / unit, "/dev/null")
    for unit in recipe.ENABLED:
        link(system / "multi-user.target.wants" / unit, f"/lib/systemd/system/{unit}")
    _start_later(tree, recipe.RESOLVER)


def _start_later(tree: Path, unit: str) -> None:
    """Move a unit of the early boot behind sshd; a drop-in could add an order but not take one away."""
    system = tree / "etc/systemd/system"
    text = (tree / "lib/systemd/system" / unit).read_text()
    text = re.sub(r"(?m)^(Before|WantedBy|DefaultDependencies)=.*\n", "", text)
    text = text.replace("[Unit]\n", "[Unit]\nAfter=ssh.service\nBefore=cloud-config.service\n", 1)
    write_files(tree, {f"etc/systemd/system/{unit}": text})
    (system / "sysinit.target.wants" / unit).unlink(missing_ok=True)
    link(system / "multi-user.target.wants" / unit, f"../{unit}")


def _take_kernel(tree: Path, folder: Path) -> None:
    folder.mkdir()
    release = next((tree / "usr/lib/modules").iterdir())
    shutil.copy(tree / f"boot/vmlinuz-{release.name}", folder / "vmlinuz")
    (folder / "vmlinuz").chmod(0o644)  # Ubuntu keeps it from everybody but root
    shutil.copytree(release, folder / "modules", ignore=shutil.ignore_patterns("build", "source"))


def write_files(tree: Path, files: dict[str, str], *, mode: int = 0o644) -> None:
    """Write each text at its place below `tree`."""
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)


def link(path: Path, target: str) -> None:
    """Make `path` a symbolic link, in place of what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


if __name__ == "__main__":
    sys.exit(cache.show("guest image", ensure_guest_image))
