"""The facts that a host's helper sent, into their own types: bounded, printable, and unknown where not understood."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vmgpu.hypervisor.doctor.cures import platform_of
from vmgpu.hypervisor.doctor.facts import (
    Bar,
    Device,
    Fabric,
    Facts,
    Function,
    Holder,
    Host,
    Hugepages,
    Module,
    Nvml,
    Partition,
    Vgpu,
)

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LONGEST = 4096
_MOST = 4096  # entries of one list: a host has fewer of anything


def read(told: Any) -> Facts:
    """The facts in their own types; what is not understood counts as unknown."""
    top = _mapping(told)
    functions = (_function(each) for each in _items(top.get("pci")))
    return Facts(
        told=bool(top),
        host=_host(_mapping(top.get("host"))),
        functions={each.address: each for each in functions if each is not None},
        bus_known=isinstance(top.get("pci"), list),
        mdev_parents=_column(top.get("mdev_parents"), "name"),
        mdevs=_column(top.get("mdevs"), "uuid"),
        nvml=_nvml(_mapping(top.get("nvml"))),
        fabric=_fabric(_mapping(top.get("fabric"))),
        errors=_words(top.get("errors")),
    )


def _host(told: Mapping[str, Any]) -> Host:
    system, cpu, iommu = _mapping(told.get("os")), _mapping(told.get("cpu")), _mapping(told.get("iommu"))
    pages = [_mapping(each) for each in _items(told.get("hugepages"))]
    return Host(
        kernel=_text(told.get("kernel")),
        arch=_text(told.get("arch")),
        cmdline=_text(told.get("cmdline")) if isinstance(told.get("cmdline"), str) else None,
        platform=platform_of(
            _text(system.get("id")), " ".join(_words(system.get("like"))), _text(told.get("bootloader"))
        ),
        cpu_vendor=_text(cpu.get("vendor")),
        cpu_model=_text(cpu.get("model")),
        virtualization=_flag(cpu.get("flags_virt")),
        memory_mib=_number(told.get("memory_mib")),
        uefi=_flag(told.get("uefi")),
        secure_boot=_flag(told.get("secure_boot")),
        dmar=_flag(iommu.get("dmar")),
        ivrs=_flag(iommu.get("ivrs")),
        groups=_number(iommu.get("groups")),
        remapping=_flag(iommu.get("remapping")),
        modules={
            _text(name): Module(_flag(_mapping(each).get("loaded")), _flag(_mapping(each).get("builtin")))
            for name, each in _mapping(told.get("modules")).items()
        },
        vfio=_flag(told.get("vfio")),
        unsafe_interrupts=_flag(told.get("unsafe_interrupts")),
        kvm=_flag(told.get("kvm")),
        hugepages=tuple(
            Hugepages(
                _number(each.get("size_kib")) or 0, _number(each.get("total")) or 0, _number(each.get("free")) or 0
            )
            for each in pages
        ),
        memlock_kib=_number(told.get("memlock_kib")),
        time_synced=_flag(told.get("time_synced")),
        kernel_log="\n".join(_words(told.get("kernel_log"))),
    )


def _function(value: Any) -> Function | None:
    told = _mapping(value)
    address = _address(told.get("address"))
    if not address:
        return None
    link, nvidia = _mapping(told.get("link")), told.get("nvidia")
    bars = [_bar(_mapping(each)) for each in _items(told.get("bars"))]
    methods = told.get("reset_methods")
    return Function(
        address=address,
        vendor=_text(told.get("vendor")).lower().removeprefix("0x"),
        device=_text(told.get("device")).lower().removeprefix("0x"),
        class_code=_text(told.get("class")).lower().removeprefix("0x")[:4],
        driver=_text(told.get("driver")),
        group=_number(told.get("group")),
        boot_vga=_flag(told.get("boot_vga")),
        bridge=_flag(told.get("bridge")) or False,
        reset_methods=_words(methods) if isinstance(methods, list) else None,
        dead=_flag(told.get("dead")),
        bars=tuple(each for each in bars if each is not None),
        width=_number(link.get("width")),
        max_width=_number(link.get("max_width")),
        physfn=_address(told.get("physfn")),
        vfs=_addresses(told.get("vfs")),
        vfs_on=_number(told.get("vfs_on")),
        vfs_most=_number(told.get("vfs_most")),
        driver_override=_text(told.get("driver_override")).removeprefix("(null)"),
        mdev_types=_column(told.get("mdev_types"), "id"),
        vendor_vfio=isinstance(nvidia, Mapping),
        vgpu_type=_number(_mapping(nvidia).get("current")),
        holders=tuple(
            Holder(_number(each.get("pid")), _text(each.get("command")) or "unknown", _text(each.get("vm")))
            for each in map(_mapping, _items(told.get("holders")))
        ),
    )


def _bar(told: Mapping[str, Any]) -> Bar | None:
    index, size = _number(told.get("index")), _number(told.get("size"))
    if index is None:
        return None
    return Bar(index, -(-(size or 0) // 2**20), _flag(told.get("assigned")))


def _nvml(told: Mapping[str, Any]) -> Nvml:
    devices = (_device(_mapping(each)) for each in _items(told.get("devices")))
    return Nvml(
        state=_text(told.get("state")),
        driver=_text(told.get("driver")),
        error=_text(told.get("error")),
        devices={each.address: each for each in devices if each.address},
    )


def _device(told: Mapping[str, Any]) -> Device:
    mig, mixed = _mapping(told.get("mig")), _mapping(told.get("mixed"))
    ecc = told.get("ecc")
    return Device(
        address=_address(told.get("address")),
        mig=(_on(mig.get("current")), _on(mig.get("pending"))) if mig else None,
        virtualization=_text(told.get("virtualization")),
        sriov=_flag(told.get("sriov")),
        mixed=(_flag(mixed.get("supported")), _flag(mixed.get("on"))),
        instances=len(_items(told.get("instances"))),
        vgpu_types=_column(told.get("vgpu_types"), "name"),
        vgpus=tuple(
            Vgpu(_text(each.get("vm")), _text(each.get("driver")), _flag(each.get("licensed")))
            for each in map(_mapping, _items(told.get("vgpus")))
        ),
        processes=tuple(
            f"{_number(each.get('pid')) or '?'} ({_text(each.get('command')) or 'unknown'})"
            for each in map(_mapping, _items(told.get("processes")))
        ),
        ecc=_on(_mapping(ecc).get("current")) if isinstance(ecc, Mapping) else _flag(ecc),
        display_active=_flag(told.get("display_active")),
    )


def _on(value: Any) -> bool:
    return _flag(value) is True


def _fabric(told: Mapping[str, Any]) -> Fabric:
    parts = told.get("partitions")
    return Fabric(
        switches=_addresses(told.get("switches")),
        manager=_text(told.get("manager")),
        mode=_number(told.get("mode")),
        partitions=tuple(
            Partition(_flag(each.get("active")), len(_items(each.get("gpus")))) for each in map(_mapping, _items(parts))
        )
        if isinstance(parts, list)
        else None,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    """An object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    """A list, else an empty one."""
    return list(value[:_MOST]) if isinstance(value, list | tuple) else []


def _flag(value: Any) -> bool | None:
    """True or False (a driver's 1 or 0 as well), else unknown."""
    return bool(value) if isinstance(value, bool | int) and value in (0, 1) else None


def _number(value: Any) -> int | None:
    """A whole number of 64 bits, else unknown."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -(2**63) <= value < 2**63 or value != int(value):
        return None
    return int(value)


def _text(value: Any) -> str:
    """Printable text of one line."""
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else " " for c in value[:_LONGEST]).strip()


def _words(value: Any) -> tuple[str, ...]:
    """The texts of a list; a lone text is a list of one."""
    return tuple(found for each in (_items(value) or [value]) if (found := _text(each)))


def _address(value: Any) -> str:
    """A PCI address in sysfs's spelling, else empty."""
    found = _text(value).lower()
    return found if _ADDRESS.fullmatch(found) else ""


def _addresses(value: Any) -> tuple[str, ...]:
    """The PCI addresses of a list."""
    return tuple(found for each in _items(value) if (found := _address(each)))


def _column(value: Any, name: str) -> tuple[str, ...]:
    """One text out of each object of a list."""
    return tuple(found for each in _items(value) if (found := _text(_mapping(each).get(name))))
