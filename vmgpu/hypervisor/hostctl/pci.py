"""PCI functions as the answer carries them: cards in full, what lies around them in part, all others by name.

Opened per card: its folder's list, modalias, numa_node, boot_vga, resource, reset_method, four of the link,
power_state, driver_override, sriov_totalvfs, config. Per VF: `current_vgpu_type`, and where it holds a vGPU its
instance (MIG) and its placement (mixed sizes). Of the first VF its modalias, of the first free one its types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import vgpu_files
from .bus import Bus, Function
from .files import Files, number_of
from .holders import Holders
from .mdev import Mdevs

_MEMORY, _UNSET = 0x200, 0x20000000  # IORESOURCE_MEM, IORESOURCE_UNSET
_ASLEEP = ("D1", "D2", "D3hot", "D3cold")  # "unknown" is not among them: so a dead card says
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})")


def functions(
    files: Files, bus: Bus, held: Holders, mdevs: Mdevs, modes: Mapping[str, vgpu_files.Modes]
) -> list[dict[str, Any]]:
    """All functions; `modes` is what NVML says of a card, which spares files that cannot hold anything."""
    full = {each.address for each in bus.functions.values() if each.is_card or each.is_switch}
    around = {member for address in full for member in bus.members(bus.functions[address].group)} - full
    ports = {port for address in full for port in bus.functions[address].path}
    found = {address: named(each) for address, each in bus.functions.items()}
    for address in sorted(full | around):
        each = bus.functions[address]
        if each.physfn not in full:
            found[address] = in_full(files, each, held)
    for address in sorted(ports & bus.functions.keys() - full - around):
        port = bus.functions[address]
        found[address].update(link=_link(files, port.folder, None), path=list(port.path))
    for address in sorted(full):
        card, seen = bus.functions[address], found[address]
        vfs = [bus.functions[each] for each in seen["vfs"] or () if each in bus.functions]
        states = vgpu_files.look(files, vfs, modes.get(address, vgpu_files.Modes()))
        typed = mdevs.first_free([each.address for each in vfs]) if vfs and not states else None
        for vf in vfs:
            found[vf.address] = {
                **_virtual(vf, seen["numa"], held),
                "nvidia": states.get(vf.address),
                "mdev_types": mdevs.types(f"{vf.folder}/mdev_supported_types") if vf.address == typed else None,
            }
        if card.is_card and not vfs and files.exists(f"{card.folder}/mdev_supported_types"):
            seen["mdev_types"] = mdevs.types(f"{card.folder}/mdev_supported_types")
    return [found[address] for address in sorted(found)]


def named(function: Function) -> dict[str, Any]:
    """A function by name only."""
    return {
        "address": function.address,
        "vendor": function.ids.vendor,
        "device": function.ids.device,
        "class": function.ids.code,
        "driver": function.driver,
        "group": function.group,
        "bridge": function.is_bridge,
    }


def in_full(files: Files, function: Function, held: Holders) -> dict[str, Any]:
    """A function with all that keeps it from a guest or sends it there; only files that are there are opened."""
    folder = function.folder
    there = set(files.names(folder))

    def text(name: str) -> str | None:
        return files.text(f"{folder}/{name}") if name in there else None

    vfs = virtual_functions(files, folder, there)
    power = text("power_state")
    override = text("driver_override")
    vram = number_of(text("mem_info_vram_total"))
    return {
        **named(function),
        "subvendor": function.ids.subvendor,
        "subdevice": function.ids.subdevice,
        "numa": number_of(text("numa_node")),
        "boot_vga": text("boot_vga") == "1",
        "reset_methods": _reset_methods(text("reset_method"), there),
        # reading the config space wakes a card that sleeps: a look must not
        "dead": is_dead(files, function) if power not in _ASLEEP and "config" in there else None,
        "bars": bars(text("resource")),
        "link": _link(files, folder, there),
        "power": None if power in ("unknown", "") else power,
        "path": list(function.path),
        "physfn": function.physfn,
        "vfs": vfs,
        "vfs_on": len(vfs),
        "vfs_most": number_of(text("sriov_totalvfs")) or 0,
        "driver_override": None if override in ("(null)", "") else override,
        "mdev_types": [],
        "nvidia": None,
        "holders": held.of(function.address, function.group),
        "vram_mib": None if vram is None else vram // 2**20,
    }


def virtual_functions(files: Files, folder: str, there: set[str]) -> list[str]:
    """The VFs of a card in the card's order; their addresses are not always consecutive."""
    numbered = sorted((int(found.group(1)), found.group(0)) for found in map(_VIRTFN.fullmatch, there) if found)
    links = (files.link(f"{folder}/{name}") for _, name in numbered)
    return [each for each in links if each]


def is_dead(files: Files, function: Function) -> bool | None:
    """Whether it answers all ones. A VF's ids read as ones by design (SR-IOV): its command register tells."""
    wanted = 8 if function.physfn else 2
    content = files.bytes(f"{function.folder}/config", wanted)
    return None if not content else content == b"\xff" * len(content)


def bars(resource: str | None) -> list[dict[str, Any]] | None:
    """The memory BARs; the first six lines of `resource` are BARs, the rest ROM and bridge windows."""
    if resource is None:
        return None
    found = []
    for index, line in enumerate(resource.splitlines()[:6]):
        numbers = [number_of(each) for each in line.split()]
        if len(numbers) != 3 or None in numbers:
            continue
        start, last, flags = (each or 0 for each in numbers)
        if flags & _MEMORY:
            size = last - start + 1 if last > start else 0
            found.append(
                {"index": index, "size": size, "start": start, "assigned": bool(start and size and not flags & _UNSET)}
            )
    return found


def _virtual(function: Function, numa: int | None, held: Holders) -> dict[str, Any]:
    """A VF, without a file of its own opened; null is what nobody read."""
    return {
        **named(function),
        "subvendor": function.ids.subvendor,
        "subdevice": function.ids.subdevice,
        "numa": numa,
        "boot_vga": False,
        "reset_methods": None,
        "dead": None,
        "bars": None,
        "link": None,
        "power": None,
        "path": list(function.path),
        "physfn": function.physfn,
        "vfs": [],
        "vfs_on": 0,
        "vfs_most": 0,
        "driver_override": None,
        "holders": held.of(function.address, function.group),
        "vram_mib": None,
    }


def _reset_methods(text: str | None, there: set[str]) -> list[str] | None:
    if text is not None:
        return text.split()
    # kernels before 5.15 have `reset` without naming the method
    return None if "reset" in there or not there else []


def _link(files: Files, folder: str, there: set[str] | None) -> dict[str, Any] | None:
    names = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
    width, widest, speed, fastest = (
        files.text(f"{folder}/{name}") if there is None or name in there else None for name in names
    )
    if width is None and speed is None:
        return None
    return {
        "width": number_of(width),
        "max_width": number_of(widest),
        "speed": _speed(speed),
        "max_speed": _speed(fastest),
    }


def _speed(text: str | None) -> str | None:
    return None if not text or text.lower().startswith("unknown") else text
