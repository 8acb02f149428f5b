"""The host itself: firmware, processor, memory, IOMMU, modules, and what of them a guest with a card needs."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
from typing import Any

from . import kernel_log
from .files import Files, number_of

MODULES = (
    "vfio",
    "vfio_pci",
    "vfio_iommu_type1",
    "mdev",
    "nvidia",
    "nvidia_vgpu_vfio",
    "nouveau",
    "amdgpu",
    "radeon",
    "i915",
    "xe",
    "kvm",
    "kvm_intel",
    "kvm_amd",
    "gim",
)
UNLIMITED_KIB = 2**53 - 1  # the largest that every JSON reader keeps exact
_NODES = "sys/devices/system/node"
_EFI = "sys/firmware/efi"
_SECURE_BOOT = f"{_EFI}/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_LOADER_INFO = f"{_EFI}/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_TIME_ERROR = 5


def look(files: Files) -> dict[str, Any]:
    """All of the host in one look."""
    kernel = files.text("proc/sys/kernel/osrelease")
    log = kernel_log.lines(files)
    uefi = files.exists(_EFI)
    return {
        "hostname": files.text("proc/sys/kernel/hostname"),
        "boot_id": files.text("proc/sys/kernel/random/boot_id"),
        "kernel": kernel,
        "arch": files.text("proc/sys/kernel/arch") or os.uname().machine,
        "cmdline": files.text("proc/cmdline"),
        "os": _distribution(files),
        "cpu": _cpu(files.text("proc/cpuinfo")),
        "memory_mib": _mib(files.text("proc/meminfo")),
        "uefi": uefi,
        "secure_boot": _secure_boot(files) if uefi else False,
        "bootloader": _bootloader(files),
        "iommu": {
            "dmar": files.exists("sys/firmware/acpi/tables/DMAR"),
            "ivrs": files.exists("sys/firmware/acpi/tables/IVRS"),
            "groups": len(files.names("sys/kernel/iommu_groups")),
            "units": list(files.names("sys/class/iommu")),
            "remapping": kernel_log.remapping(log),
        },
        "modules": _modules(files, kernel),
        "vfio": files.exists("dev/vfio/vfio"),
        "unsafe_interrupts": files.flag("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"),
        "kvm": files.exists("dev/kvm"),
        "nested": _nested(files),
        "hugepages": _hugepages(files),
        "memlock_kib": _memlock(files),
        "time_synced": _time_synced(files),
        "numa": _numa(files),
        "kernel_log": log,
    }


def _distribution(files: Files) -> dict[str, Any]:
    told = files.text("etc/os-release") or files.text("usr/lib/os-release") or ""
    found: dict[str, str] = {}
    for line in told.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            try:
                found[name] = " ".join(shlex.split(value))
            except ValueError:
                continue  # a quote that never ends
    return {
        "id": found.get("ID", "").lower() or None,
        "version_id": found.get("VERSION_ID") or None,
        "like": found.get("ID_LIKE", "").lower().split(),
    }


def _cpu(told: str | None) -> dict[str, Any]:
    def first(name: str) -> str | None:
        found = re.search(rf"^{name}\s*:\s*(.+)$", told or "", re.M)
        return found.group(1).strip() if found else None

    flags = first("flags")
    sockets = set(re.findall(r"^physical id\s*:\s*([0-9]+)$", told or "", re.M))
    return {
        "model": first("model name") or first("cpu"),
        "vendor": first("vendor_id"),
        "threads": len(re.findall(r"^processor\s*:", told or "", re.M)) or None,
        "flags_virt": None if flags is None else bool({"vmx", "svm"} & set(flags.split())),
        "sockets": len(sockets) or None,
    }


def _mib(meminfo: str | None) -> int | None:
    found = re.search(r"MemTotal:\s*([0-9]{1,15}) kB", meminfo or "")
    return int(found.group(1)) // 1024 if found else None


def _secure_boot(files: Files) -> bool | None:
    """The firmware's variable: four bytes of attributes, then one that is 1 or 0."""
    content = files.bytes(_SECURE_BOOT)
    return None if content is None or len(content) != 5 else content[4] == 1


def _bootloader(files: Files) -> str | None:
    told = (files.bytes(_LOADER_INFO) or b"")[4:].decode("utf-16-le", "replace").lower()
    if "systemd-boot" in told:
        return "systemd-boot"
    if files.exists("etc/zipl.conf"):
        return "zipl"
    if any(files.exists(each) for each in ("boot/grub/grub.cfg", "boot/grub2/grub.cfg", "etc/default/grub")):
        return "grub"
    if any(files.exists(each) for each in ("boot/loader/loader.conf", "boot/efi/loader/loader.conf")):
        return "systemd-boot"
    return None


def _modules(files: Files, kernel: str | None) -> dict[str, dict[str, bool]]:
    told = files.text("proc/modules")
    loaded = {line.split()[0] for line in (told or "").splitlines() if line.strip()}
    in_kernel = ""
    if kernel and re.fullmatch(r"[A-Za-z0-9_.+~-]{1,100}", kernel) and ".." not in kernel:
        in_kernel = files.text(f"lib/modules/{kernel}/modules.builtin") or ""
    builtin = {line.rpartition("/")[2].partition(".ko")[0].replace("-", "_") for line in in_kernel.splitlines()}
    there = {name for name in MODULES if files.exists(f"sys/module/{name}")}
    if told is not None:
        builtin |= there - loaded
    return {
        name: {"loaded": name in loaded or name in builtin or name in there, "builtin": name in builtin}
        for name in MODULES
    }


def _nested(files: Files) -> bool | None:
    for name in ("kvm_intel", "kvm_amd"):
        path = f"sys/module/{name}/parameters/nested"
        if files.exists(path):
            return files.flag(path)
    return None


def _hugepages(files: Files) -> list[dict[str, Any]]:
    places: list[tuple[int | None, str]] = [(node, f"{_NODES}/node{node}/hugepages") for node in _nodes(files)]
    found = []
    for node, place in places or [(None, "sys/kernel/mm/hugepages")]:
        for name in files.names(place):
            size = re.fullmatch(r"hugepages-([0-9]{1,12})kB", name)
            if size:
                total = files.number(f"{place}/{name}/nr_hugepages")
                # most hosts have none: their free ones need no second file
                free = files.number(f"{place}/{name}/free_hugepages") if total else total
                found.append({"size_kib": int(size.group(1)), "total": total, "free": free, "node": node})
    return found


def _nodes(files: Files) -> list[int]:
    names = (re.fullmatch(r"node([0-9]{1,4})", each) for each in files.names(_NODES))
    return sorted(int(each.group(1)) for each in names if each)


def _numa(files: Files) -> list[dict[str, Any]]:
    return [
        {
            "node": node,
            "cpus": files.text(f"{_NODES}/node{node}/cpulist"),
            "memory_mib": _mib(files.text(f"{_NODES}/node{node}/meminfo")),
        }
        for node in _nodes(files)
    ]


def _memlock(files: Files) -> int | None:
    """What libvirt's daemon may lock, and so its guests at first; where it does not run, what services may."""
    daemons = (number_of(files.text(f"run/{name}.pid")) for name in ("virtqemud", "libvirtd"))
    for pid in [each for each in daemons if each] + [1]:
        found = re.search(r"^Max locked memory\s+(\S+)", files.text(f"proc/{pid}/limits") or "", re.M)
        if found:
            limit = number_of(found.group(1))
            return UNLIMITED_KIB if limit is None else limit // 1024
    return None


def _time_synced(files: Files) -> bool | None:
    if files.exists("run/systemd/timesync/synchronized"):
        return True
    if not files.is_real:
        return None
    try:
        # modes = 0 changes nothing; the answer holds for every time daemon
        return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))) != _TIME_ERROR
    except (OSError, AttributeError):
        return None
