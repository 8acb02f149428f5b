"""IOMMU groups: who shares with whom, and what can really be handed out one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vmgpu.hypervisor.doctor.facts import Facts, Function
from vmgpu.hypervisor.doctor.findings import Check, Level, LibvirtSeen, broken, ok, warning
from vmgpu.hypervisor.pci import CLASS_NAMES

_OTHER_SLOT = "Move the card to another slot (groups follow the slots; best one wired to the processor)."


def look(facts: Facts, _seen: LibvirtSeen) -> Iterator[Check]:
    """One check for each card, one for its virtual functions, one for all cards together."""
    for card in facts.cards:
        yield from _group(card, facts)
        yield from _functions(card, facts)
    yield from _singly(facts)


def _group(card: Function, facts: Facts) -> Iterator[Check]:
    name = f"card-group:{card.address}"
    if card.group is None:
        if any(each.group is not None for each in facts.functions.values()):
            yield broken(
                name,
                "no IOMMU group",
                "The kernel isolates other devices but not this one: it cannot be handed out.",
                f"{_OTHER_SLOT} Look for this address in: journalctl -k | grep -Ei 'dmar|amd-vi|iommu'.",
            )
        elif facts.host.groups:
            yield warning(
                name,
                "its IOMMU group is unknown",
                "Whether it can be handed out cannot be said.",
                f"Look: readlink /sys/bus/pci/devices/{card.address}/iommu_group; then run the helper as root.",
            )
        return
    foreign, cards = _others(card, facts)
    if foreign:
        yield Check(
            name,
            # A card that is cut into vGPUs stays with the host, and so does its group.
            Level.warning if facts.vgpu_host and card.driver == "nvidia" else Level.broken,
            f"group {card.group} is shared with {_listed(foreign)}",
            "A group goes to one guest as a whole, and the host needs what else is in it: the card cannot be given.",
            f"{_OTHER_SLOT} If the host can do without, bind the others to vfio-pci: "
            + "; ".join(f"virsh nodedev-detach {_nodedev(each)}" for each in foreign)
            + ".",
        )
    elif cards:
        yield warning(
            name,
            f"group {card.group} also holds {_listed(cards)}",
            "Only one guest can have these cards, all at once.",
            f"{_OTHER_SLOT} Or ask for them together; for one card each prefer cards with a group of their own.",
        )
    else:
        own = [each for each in facts.group_of(card) if each.address != card.address and each.physfn != card.address]
        beside = f"with its own {_listed(own)}" if own else "alone"
        yield ok(name, f"group {card.group}, {beside}", "It can be handed out singly; its own functions go along.")


def _functions(card: Function, facts: Facts) -> Iterator[Check]:
    vfs = [each for each in facts.vfs_of(card) if each.group is not None]
    if not vfs:
        return
    shared = [each for each in vfs if len(facts.group_of(each)) > 1]
    name = f"card-vf-groups:{card.address}"
    if shared:
        yield broken(
            name,
            f"{len(shared)} of {len(vfs)} virtual functions share an IOMMU group",
            "The root port above cannot keep them apart (no ACS): they cannot go to different guests.",
            "Use a slot on a root port with ACS (lspci -vvv shows ACSCap), and switch on ACS and ARI in the firmware.",
        )
    else:
        yield ok(name, f"{len(vfs)} virtual functions, each in its own group", "Each can go to a guest of its own.")


def _singly(facts: Facts) -> Iterator[Check]:
    cards = [card for card in facts.cards if card.group is not None]
    if not cards:
        if facts.bus_known and not facts.cards:
            yield warning(
                "cards",
                "no NVIDIA, AMD or Intel card on the PCI bus",
                "Only guests with emulated slices, or without a GPU, can run here.",
                "If a card is built in: seat it and its power again, and look for it: lspci -nn | grep -Ei "
                "'vga|3d|display'.",
            )
        return
    usable = {card.group for card in cards if not (_others(card, facts)[0] or card.boot_vga or card.dead)}
    seen = f"{_count(len(cards), 'card')} in {_count(len({card.group for card in cards}), 'IOMMU group')}"
    if len(usable) == len(facts.cards):
        yield ok("cards", seen, "Each can be handed out by itself.")
    elif usable:
        yield warning(
            "cards",
            seen,
            f"Whole cards for at most {len(usable)} of {len(cards)} guests at the same time.",
            "See the checks of the single cards; vGPUs do not need whole groups.",
        )
    else:
        yield broken("cards", seen, "None can be handed out as a whole.", "See the checks of the single cards.")


def _others(card: Function, facts: Facts) -> tuple[list[Function], list[Function]]:
    """The endpoints of its group that are not its own functions: foreign ones, and other cards with theirs."""
    others = [
        each
        for each in facts.group_of(card)
        if not each.beside(card) and each.physfn != card.address and each.address not in card.vfs
    ]
    cards = [each for each in others if facts.is_card(each)]
    foreign = [each for each in others if not any(each.beside(one) or each.physfn == one.address for one in cards)]
    return foreign, cards


def _listed(functions: Iterable[Function]) -> str:
    return ", ".join(f"{_kind(each)} {each.address} ({each.driver or 'no driver'})" for each in functions)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _kind(function: Function) -> str:
    return CLASS_NAMES.get(function.class_code) or f"class {function.class_code or 'unknown'}"


def _nodedev(function: Function) -> str:
    return "pci_" + function.address.replace(":", "_").replace(".", "_")
