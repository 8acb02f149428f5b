"""What a survey says of cards: libvirt's node devices, joined with hostctl's look at the host's files and NVML."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vmgpu.hypervisor import Cuts, GpuFacts, Live, fabric, modes, pci
from vmgpu.hypervisor.pci import Function, Holder

Facts = Mapping[str, Any]
_UNKNOWN_PARENT = "libvirt knows no parent {} of mediated devices: it makes none there, whatever the kernel offers"


def functions_of(told: Facts) -> dict[str, Function]:
    """hostctl's functions by address, each with the members of its group."""
    members: dict[int, list[str]] = {}
    for each in told["pci"]:
        if each.get("group") is not None:
            members.setdefault(each["group"], []).append(each["address"])
    return {each["address"]: _function(each, members.get(each.get("group"), ())) for each in told["pci"]}


def joined(seen: Mapping[str, Function], told: Mapping[str, Function]) -> dict[str, Function]:
    """The host's own files know better than libvirt what a function is; libvirt knows its name in words."""
    both = {
        address: replace(function, product=seen[address].product, misnamed=seen[address].misnamed)
        if address in seen
        else function
        for address, function in told.items()
    }
    return {**seen, **both}


def cards(
    functions: Mapping[str, Function], told: Facts | None, *, ours: Mapping[str, str], more: Collection[str] = ()
) -> tuple[GpuFacts, ...]:
    """Every card with the ways it can be given out.

    `ours`: address → the VM of ours that holds the card; `more`: ids that are cards on this host too.
    """
    found = sorted((each for each in functions.values() if each.is_card(more)), key=lambda each: each.address)
    own = {each["address"]: each for each in told["pci"]} if told else {}
    return tuple(
        _card(each, functions, own, told, ours.get(each.address), pci.mates(each, functions, more)) for each in found
    )


def parents(told: Facts | None, names: Collection[str], *, known: Collection[str]) -> tuple[GpuFacts, ...]:
    """Parents of mediated devices of these names, as cards without address, group or BARs.

    `known`: those that libvirt takes for parents. Of all that are no PCI devices it knows few, by their drivers' names.
    """
    found = {each["name"]: each for each in (told or {}).get("mdev_parents") or () if each.get("address") is None}
    return tuple(_parent(found[name], told or {}, known=name in known) for name in names if name in found)


def _parent(each: Facts, told: Facts, *, known: bool) -> GpuFacts:
    name = str(each["name"])
    cuts = modes.from_mdev_types(each.get("types") or ()) if known else _UNKNOWN_PARENT.format(name)
    here = [mdev for mdev in told.get("mdevs") or () if mdev["parent"] == name]
    return GpuFacts(
        key=f"mdev:{name}",
        address=None,
        vendor="",
        device="",
        name=name,
        model=name,
        modes=(modes.VGPU,) if isinstance(cuts, Cuts) else (),
        refusals={} if isinstance(cuts, Cuts) else {modes.VGPU: cuts},
        cuts={modes.VGPU: cuts} if isinstance(cuts, Cuts) else {},
        live=tuple(Live(str(mdev["type"]), None, mdev["uuid"]) for mdev in here),
        framework="mdev",
        parent=name,
        now=modes.VGPU if here else None,
    )


def _function(each: Facts, members: Sequence[str]) -> Function:
    holders = each.get("holders") or ()
    return Function(
        address=each["address"],
        vendor=each.get("vendor") or "",
        device=each.get("device") or "",
        class_code=each.get("class") or "",
        driver=each.get("driver"),
        group=each.get("group"),
        members=tuple(sorted(members)),
        numa_node=each.get("numa"),
        boot_vga=bool(each.get("boot_vga")),
        bars_mib=tuple(-(-bar["size"] // 2**20) for bar in each.get("bars") or () if bar["size"]),
        memory_mib=each.get("vram_mib"),
        virtual=each.get("physfn") is not None,
        bridge=bool(each.get("bridge")),
        virtual_functions=each.get("vfs_on") or 0,
        holder=Holder(holders[0]["pid"], holders[0]["command"] or "unknown", holders[0].get("vm")) if holders else None,
    )


def _card(
    card: Function,
    functions: Mapping[str, Function],
    own: Mapping[str, Facts],
    told: Facts | None,
    ours: str | None,
    mates: tuple[str, ...],
) -> GpuFacts:
    raw = own.get(card.address, {})
    nvml = _of_nvml(told, card.address)
    below = [own[each] for each in raw.get("vfs") or () if each in own]
    in_the_way = [each.sentence for each in pci.obstacles(card, functions, mates=mates, allow_vm=ours)]
    if raw.get("dead"):
        in_the_way.append(f"Card {card.address} answers all ones: it needs a power cycle")
    seat = fabric.Seat(card.address, (nvml or {}).get("uuid") or "", (nvml or {}).get("module_id"))
    partition = fabric.partition_of((told or {}).get("fabric"), (seat,)) if card.vendor == modes.NVIDIA else None
    if isinstance(partition, str):
        in_the_way.append(partition)
    ways = (
        modes.ways(raw, below, nvml, nvml_state=(told or {}).get("nvml", {}).get("state", "")) if raw else modes.Ways()
    )
    possible = (*(() if in_the_way else (modes.PASSTHROUGH,)), *ways.cuts)
    refusals = {modes.PASSTHROUGH: "; ".join(in_the_way)} if in_the_way else {}
    return GpuFacts(
        key=_key(card, raw, nvml),
        address=card.address,
        vendor=card.vendor,
        device=card.device,
        name=(nvml or {}).get("name") or card.product or f"{card.vendor}:{card.device}",
        model=f"{card.vendor}:{card.device}",
        class_code=card.class_code,
        driver=card.driver,
        numa_node=card.numa_node,
        iommu_group=card.group,
        companions=pci.companions(card, functions),
        mates=mates,
        boot_vga=card.boot_vga,
        bars_mib=card.bars_mib,
        memory_mib=(nvml or {}).get("memory_mib") or card.memory_mib,
        modes=possible,
        refusals={**refusals, **ways.refusals},
        cuts=ways.cuts,
        live=_live(card.address, below, nvml, told, ways),
        held_by=f"process {card.holder.pid} ({card.holder.command})" if card.holder and not ours else "",
        uuid=(nvml or {}).get("uuid") or "",
        serial=(nvml or {}).get("serial") or "",
        place=_place(card, raw),
        framework=ways.framework,
        on_functions=bool(below),
        now=ways.now,
        reset_methods=tuple(raw["reset_methods"]) if raw.get("reset_methods") is not None else None,
        link=_link(raw.get("link")),
        module_id=(nvml or {}).get("module_id"),
        partition=partition if isinstance(partition, int) else None,
    )


def _live(
    address: str, below: Sequence[Facts], nvml: Facts | None, told: Facts | None, ways: modes.Ways
) -> tuple[Live, ...]:
    """What is cut from the card now. A plain MIG instance counts as well: its place is taken."""
    names = {each["id"]: modes.short_name(each["name"] or "") for each in (nvml or {}).get("vgpu_types") or ()}
    if ways.now == modes.MIG:
        slots = {(each.get("nvidia") or {}).get("gpu_instance"): number for number, each in enumerate(below)}
        instances = (nvml or {}).get("instances") or ()
        return tuple(Live(each["name"], slots.get(each["instance"]), None, each["start"]) for each in instances)
    seats = [(number, each.get("nvidia") or {}) for number, each in enumerate(below)]
    found = [
        Live(names.get(kind, str(kind)), number, None, held.get("placement") if ways.now == modes.MIXED else None)
        for number, held in seats
        if (kind := held.get("current"))
    ]
    numbers = {each["address"]: number for number, each in enumerate(below)}
    for mdev in (told or {}).get("mdevs") or ():
        if mdev["parent"] == address or mdev["parent"] in numbers:
            name = names.get(modes.type_number(mdev["type"]), str(mdev["type"]))
            found.append(Live(name, numbers.get(mdev["parent"]), mdev["uuid"]))
    return tuple(found)


def _of_nvml(told: Facts | None, address: str) -> Facts | None:
    devices = (told or {}).get("nvml", {}).get("devices") or ()
    return next((each for each in devices if each["address"] == address), None)


def _key(card: Function, raw: Facts, nvml: Facts | None) -> str:
    """What stays when the card moves to another slot, where anything does."""
    if nvml and (identity := nvml.get("uuid") or nvml.get("serial")):
        return str(identity)
    return f"pci:{_place(card, raw)}"


def _link(told: Facts | None) -> str:
    """The PCIe link as it runs now; a narrower one than the card's own is a slot or a riser worth a look."""
    if not told or not told.get("width"):
        return ""
    least = told.get("max_width") or told["width"]
    width = f"x{told['width']}" if told["width"] >= least else f"x{told['width']} of x{least}"
    return f"{width} at {told['speed']}" if told.get("speed") else width


def _place(card: Function, raw: Facts) -> str:
    """The slot by its ports, which bus numbers are not, and what sits there: another model in it is another card."""
    slot = "/".join((*(raw.get("path") or ()), card.address))
    subsystem = f":{raw['subvendor']}:{raw['subdevice']}" if raw.get("subvendor") else ""
    return f"{slot}:{card.vendor}:{card.device}{subsystem}"
