"""What this machine's own /sys and /proc say of a PCI function; reads only, so that no card is ever touched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from vmgpu.hypervisor.pci import Function, Holder

_MEMORY_BAR = 0x200  # IORESOURCE_MEM in the third column of `resource`
_DEVICE_FILE = re.compile(r"/dev/(nvidia\d+|dri/(card|renderD)\d+|vfio/\d+|vfio/devices/vfio\d+)")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Sysfs:
    """The machine below `root`; one object is one look: who holds what is read once."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def boot_id(self) -> str:
        """A text that changes when this machine boots."""
        return _text(self._root / "proc/sys/kernel/random/boot_id")

    def machine_id(self) -> str:
        """A text that no other machine has, and that stays."""
        return _text(self._root / "etc/machine-id")

    def cpu_model(self) -> str:
        """The processor's name as the kernel prints it."""
        found = re.search(r"^model name\s*:\s*(.+)$", _text(self._root / "proc/cpuinfo"), re.M)
        return found.group(1).strip() if found else ""

    def functions(self, address: str) -> Mapping[str, Function]:
        """This function and all others of its IOMMU group."""
        own = self.function(address)
        return {each: self.function(each) for each in (address, *own.members)}

    def has(self, address: str) -> bool:
        """Whether the bus has this function now."""
        return _ADDRESS.fullmatch(address) is not None and self._folder(address).is_dir()

    def function(self, address: str) -> Function:
        """All that the machine says of one function."""
        return self.enriched(Function(address))

    def enriched(self, known: Function) -> Function:
        """What libvirt said, completed and corrected by what the kernel says."""
        if not self.has(known.address):
            return known
        folder = self._folder(known.address)
        driver = _link(folder / "driver")
        group = _link(folder / "iommu_group")
        members = self._members(group) if group else ()
        seen = replace(
            known,
            vendor=_hex(folder / "vendor", known.vendor),
            device=_hex(folder / "device", known.device),
            class_code=_hex(folder / "class", known.class_code, drop=8),
            driver=driver,
            group=int(group) if group and group.isdecimal() else None,
            members=members,
            numa_node=_number(folder / "numa_node"),
            boot_vga=_text(folder / "boot_vga") == "1",
            bars_mib=_bars(_text(folder / "resource")),
            memory_mib=_mib(_number(folder / "mem_info_vram_total")),
            virtual=known.virtual or (folder / "physfn").exists(),
            virtual_functions=_number(folder / "sriov_numvfs") or 0,
        )
        return replace(seen, holder=self._holder(seen))

    def is_dead(self, address: str) -> bool:
        """Whether the card no longer answers (all ones). Wakes a sleeping card: for carving, not for a survey."""
        try:
            with (self._folder(address) / "config").open("rb") as config:
                return config.read(2) == b"\xff\xff"
        except OSError:
            return False

    def _folder(self, address: str) -> Path:
        return self._root / "sys/bus/pci/devices" / address

    def _members(self, group: str) -> tuple[str, ...]:
        return _names(self._root / "sys/kernel/iommu_groups" / group / "devices")

    def _holder(self, function: Function) -> Holder | None:
        return next((self._open_files[each] for each in self._device_files(function) if each in self._open_files), None)

    def _device_files(self, function: Function) -> tuple[str, ...]:
        folder = self._folder(function.address)
        files = [f"/dev/dri/{name}" for name in _names(folder / "drm")]
        files += [f"/dev/vfio/devices/{name}" for name in _names(folder / "vfio-dev")]
        if function.group is not None:
            files.append(f"/dev/vfio/{function.group}")
        if function.driver == "nvidia":
            files += self._nvidia_files(function.address)
        return tuple(files)

    def _nvidia_files(self, address: str) -> list[str]:
        """The driver numbers its cards itself; where it does not say how, any open card may be this one."""
        told = _text(self._root / "proc/driver/nvidia/gpus" / address / "information")
        minor = re.search(r"Device Minor:\s*(\d+)", told)
        if minor:
            return [f"/dev/nvidia{minor.group(1)}"]
        return sorted(each for each in self._open_files if each.startswith("/dev/nvidia"))

    @cached_property
    def _open_files(self) -> Mapping[str, Holder]:
        held: dict[str, Holder] = {}
        processes = [name for name in _names(self._root / "proc") if name.isdecimal()]
        for pid in sorted(processes, key=int):
            folder = self._root / "proc" / pid
            for descriptor in _names(folder / "fd"):
                target = _target(folder / "fd" / descriptor)
                if _DEVICE_FILE.fullmatch(target):
                    held.setdefault(target, Holder(int(pid), _command(folder), _vm(folder)))
        return held


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(each.name for each in folder.iterdir()))
    except OSError:
        return ()  # a process that ended, or one that is not ours to look into


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _link(path: Path) -> str | None:
    return Path(_target(path)).name or None


def _number(path: Path) -> int | None:
    try:
        number = int(_text(path), 0)
    except ValueError:
        return None
    return number if number >= 0 else None


def _hex(path: Path, otherwise: str, *, drop: int = 0) -> str:
    number = _number(path)
    return otherwise if number is None else f"{number >> drop:04x}"


def _mib(size: int | None) -> int | None:
    return None if size is None else size // 2**20


def _bars(resource: str) -> tuple[int, ...]:
    """Sizes of the memory BARs; the first six lines are BARs, the rest ROM and bridge windows."""
    sizes = []
    for line in resource.splitlines()[:6]:
        try:
            start, end, flags = (int(each, 16) for each in line.split())
        except ValueError:
            continue
        if end > start and flags & _MEMORY_BAR:
            sizes.append(-(-(end - start + 1) // 2**20))
    return tuple(sizes)


def _command(folder: Path) -> str:
    return _text(folder / "comm") or "unknown"


def _vm(folder: Path) -> str | None:
    """libvirt starts QEMU with `-uuid`: so a process says itself whose guest it is."""
    words = _text(folder / "cmdline").split("\0")
    return next((uuid for flag, uuid in pairwise(words) if flag == "-uuid"), None)
