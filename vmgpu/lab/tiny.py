"""Builds a guest of kernel, busybox and dropbear: up in seconds under emulation, by the same path as a real one."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from vmgpu.errors import SetupError
from vmgpu.lab import cache, disk
from vmgpu.lab.cache import Progress, quiet
from vmgpu.lab.guestimage import ensure_guest_kernel
from vmgpu.lab.programs import need_programs, run, run_bytes

_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "isofs", "button", "evdev")
_BINARIES = ("dropbear", "dropbearconvert", "lspci")
_UNPACK = {".xz": "xz", ".zst": "zstd", ".gz": "gzip"}

_GRUB_CFG = """\
set timeout=0
linux /vmlinuz console=ttyS0,115200 no_timer_check panic=5
initrd /initrd
boot
"""

# Reads the seed as cloud-init's NoCloud would, but only the two files a key exchange and a login need.
_INIT = """\
#!/bin/sh
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts
mount -t devpts pts /dev/pts
[ -c /dev/ttyS0 ] && exec </dev/ttyS0 >/dev/ttyS0 2>&1
say() { echo "tiny: $*"; }
say init

while read -r module; do insmod "/modules/$module"; done </modules/order
acpid -c /etc/acpi -l /dev/null

find_seed() {
  for block in /sys/block/*; do
    device=/dev/${block##*/}
    # The volume label of an ISO 9660 disk, at its fixed place.
    label=$(dd if="$device" bs=8 skip=4101 count=1 2>/dev/null)
    case "$label" in
      cidata*|CIDATA*) mount -t iso9660 -o ro "$device" /seed && say "seed on $device" && return 0 ;;
    esac
  done
  return 1
}
find_seed || { sleep 2; find_seed; } || say "no seed: nobody can log in"

ip link set lo up
ip link set eth0 up
udhcpc -i eth0 -s /etc/udhcpc.script -t 20 -T 1 -A 5 -b -S &

if [ -f /seed/authorized_keys ]; then
  cp /seed/authorized_keys /root/.ssh/authorized_keys
  chmod 600 /root/.ssh/authorized_keys
fi
if dropbearconvert openssh dropbear /seed/ssh_host_ed25519_key /etc/dropbear/host_key; then
  dropbear -E -s -r /etc/dropbear/host_key -p 22
  say "ssh listens"
else
  say "no host key in the seed: no ssh"
fi
say ready
# Process 1 must stay, and collect what others leave behind.
while :; do wait; sleep 1; done
"""

_UDHCPC = """\
#!/bin/sh
case "$1" in
  bound|renew)
    ip addr flush dev "$interface"
    ip addr add "$ip/${mask:-24}" dev "$interface"
    [ -n "$router" ] && ip route replace default via "${router%% *}" dev "$interface"
    echo "tiny: address $ip"
    ;;
esac
"""

_FILES = {
    "init": (0o755, _INIT),
    "etc/udhcpc.script": (0o755, _UDHCPC),
    "etc/acpi/PWRF/00000080": (0o755, "#!/bin/sh\necho 'tiny: power button' >/dev/ttyS0\npoweroff -f\n"),
    "etc/passwd": (0o644, "root:*:0:0:root:/root:/bin/sh\n"),
    "etc/group": (0o644, "root:x:0:\n"),
    "etc/shells": (0o644, "/bin/sh\n"),
    "etc/hostname": (0o644, "tiny\n"),
}
_FOLDERS = ("bin", "dev", "proc", "sys", "run", "tmp", "seed", "modules", "etc/dropbear", "root/.ssh")


def ensure_tiny_image(progress: Progress = quiet) -> Path:
    """A qcow2 that UEFI boots to an SSH banner with the seed's host key; built once."""
    vmlinuz, initrd = ensure_kernel(progress)
    return cache.ensure(_place("guests", "qcow2"), lambda made: _build(made, vmlinuz, initrd))


def ensure_kernel(progress: Progress = quiet) -> tuple[Path, Path]:
    """The same guest as kernel and initramfs, for a direct boot: it says `tiny: init` when it has come to life."""
    kernel = ensure_guest_kernel(progress)
    initrd = cache.ensure(_place("kernels", "initrd"), lambda made: _make_initramfs(made, kernel / "modules"))
    return kernel / "vmlinuz", initrd


def _place(shelf: str, ending: str) -> Path:
    kernel = ensure_guest_kernel()
    key = cache.recipe_hash(kernel.name, Path(__file__).read_bytes(), Path(disk.__file__).read_bytes())
    return cache.cache_dir() / shelf / f"tiny-{key}.{ending}"


def _build(image: Path, vmlinuz: Path, initrd: Path) -> None:
    need_programs(disk.PROGRAMS, doing="Building the tiny guest")
    mib = 8 + (vmlinuz.stat().st_size + initrd.stat().st_size) // (1024 * 1024)
    disk.make_disk(image, _GRUB_CFG, esp={"/vmlinuz": vmlinuz, "/initrd": initrd}, esp_mib=mib)


def _make_initramfs(out: Path, modules: Path) -> None:
    need_programs(("busybox", "cpio", "zstd", *_BINARIES), doing="Building the tiny guest")
    tree = out.parent / "initramfs"
    for folder in _FOLDERS:
        (tree / folder).mkdir(parents=True, exist_ok=True)
    (tree / "root/.ssh").chmod(0o700)
    for name, (mode, text) in _FILES.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    _add_busybox(tree)
    for name in _BINARIES:
        _add_binary(tree, name)
    _add_modules(tree, modules)
    names = ["."] + [os.fspath(path.relative_to(tree)) for path in sorted(tree.rglob("*"))]
    archive = out.parent / "initramfs.cpio"
    run(
        ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0", "-D", tree, "-O", archive],
        doing="Packing the tiny guest",
        stdin="\n".join(names).encode(),
    )
    run(["zstd", "-q", "-19", archive, "-o", out], doing="Packing the tiny guest")
    out.chmod(0o644)


def _add_busybox(tree: Path) -> None:
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    # A static program names no loader; one that does would find none of its libraries in the guest.
    if b"/ld-linux" in busybox.read_bytes():
        raise SetupError(f"{busybox} is not a static one", hint="Install busybox-static.")
    shutil.copy(busybox, tree / "bin/busybox")
    for applet in run([busybox, "--list"], doing="Reading busybox").split():
        if applet != "busybox":
            (tree / "bin" / applet).symlink_to("busybox")


def _add_binary(tree: Path, name: str) -> None:
    program = Path(shutil.which(name) or name)
    shutil.copy(program, tree / "bin" / name)
    for library in re.findall(r"(/\S+) \(0x", run(["ldd", program], doing=f"Reading {name}")):
        target = tree / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)


def _add_modules(tree: Path, modules: Path) -> None:
    order = []
    for source in _with_needs(_MODULES, modules):
        name = re.sub(r"\.ko.*", ".ko", source.name)
        unpack = _UNPACK.get(source.suffix)
        raw = run_bytes([unpack, "-dc", source], doing="Unpacking a module") if unpack else source.read_bytes()
        (tree / "modules" / name).write_bytes(raw)
        order.append(name)
    (tree / "modules/order").write_text("".join(f"{name}\n" for name in order))


def _with_needs(names: Iterable[str], modules: Path) -> Iterator[Path]:
    """The files of these modules, each after those it needs; what is built into the kernel has none."""
    needs: dict[str, list[str]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {re.sub(r"\.ko.*", "", Path(path).name).replace("-", "_"): path for path in needs}
    done: set[str] = set()
    for name in names:
        if name in by_name:
            # modules.dep lists what must be loaded first last.
            for path in [*reversed(needs[by_name[name]]), by_name[name]]:
                if path not in done:
                    done.add(path)
                    yield modules / path


if __name__ == "__main__":
    sys.exit(cache.show("tiny guest", ensure_tiny_image))
