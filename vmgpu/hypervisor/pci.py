"""PCI functions of a host: read from libvirt's node devices, and judged whether one can go into a guest whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from defusedxml.ElementTree import fromstring

from vmgpu.errors import Reason, ReasonCode, reason

VENDORS = ("10de", "1002", "8086")  # NVIDIA, AMD, Intel: a server's own VGA (ASPEED, Matrox) is never a card
CARD_CLASSES = ("0300", "0302", "0380", "1200")  # VGA, 3D, other display, processing accelerator
CARD_DRIVERS = ("nvidia", "nouveau", "amdgpu", "radeon", "i915", "xe")
# Host and PCI-to-PCI bridges stay with the host and do not spoil a group. 0680 is not among them: an NVSwitch is an
# endpoint with a driver of its own.
BRIDGE_CLASSES = ("0600", "0604")
# what a card's board carries beside its display: display, sound, USB and USB-C, accelerator. A disk controller or NIC
# at the next function is the host's.
_BOARD_CLASSES = ("03", "04", "0c", "12")
# what people call a device of a class
CLASS_NAMES = {
    "0101": "IDE controller",
    "0104": "RAID controller",
    "0106": "SATA controller",
    "0107": "SAS controller",
    "0108": "NVMe disk",
    "0200": "network card",
    "0207": "InfiniBand card",
    "0300": "VGA",
    "0302": "3D controller",
    "0380": "display",
    "0403": "sound",
    "0601": "ISA bridge",
    "0680": "bridge device",
    "0c03": "USB controller",
    "0c05": "SMBus",
    "0c80": "USB-C controller",
    "1200": "accelerator",
}
_LARGE_BAR_MIB = 256
_LEAST_WINDOW_MIB = 32 * 1024
_SYSFS_NAME = re.compile(r"pci_([0-9a-f]{4,8})_([0-9a-f]{2})_([0-9a-f]{2})_([0-7])")


@dataclass(frozen=True)
class Holder:
    """A process that has a device file of a card open; `vm` is the domain's UUID where it is a guest's QEMU."""

    pid: int
    command: str
    vm: str | None = None


@dataclass(frozen=True)
class Function:
    """One PCI function; "" and None are unknown. `class_code` is base class and subclass, four hex digits."""

    address: str
    vendor: str = ""
    device: str = ""
    class_code: str = ""
    product: str = ""
    driver: str | None = None
    group: int | None = None
    members: tuple[str, ...] = ()
    numa_node: int | None = None
    boot_vga: bool = False
    bars_mib: tuple[int, ...] = ()
    memory_mib: int | None = None
    virtual: bool = False
    bridge: bool = False
    virtual_functions: int = 0
    holder: Holder | None = None
    misnamed: str = ""

    @property
    def is_bridge(self) -> bool:
        return self.bridge or self.class_code in BRIDGE_CLASSES

    def is_card(self, more: Collection[str] = ()) -> bool:
        """A whole card: a display or accelerator of a vendor we know; a virtual function is a child, never a card.

        `more`: ids (`1234:1111`) that somebody says are cards as well.
        """
        if self.virtual or self.is_bridge:
            return False
        if f"{self.vendor}:{self.device}" in more:
            return True
        if self.vendor not in VENDORS:
            return False
        # Older libvirt names no class: a graphics driver then says as much.
        return self.class_code in CARD_CLASSES or (not self.class_code and self.driver in CARD_DRIVERS)

    @property
    def is_integrated(self) -> bool:
        """Intel's processor graphics sit on the root bus; a card never does."""
        return self.vendor == "8086" and self.address.startswith("0000:00:")


@dataclass(frozen=True)
class Obstacle:
    """Why a card cannot go into a guest, in one sentence; `reason` is its code where there is one."""

    sentence: str
    reason: Reason | None = None


def function_of(xml: str) -> Function | None:
    """The function that a node device's XML describes; None when it is no PCI device or has no usable address."""
    root = fromstring(xml)
    pci = next((each for each in root.findall("capability") if each.get("type") == "pci"), None)
    address = _address_of(pci) if pci is not None else None
    if pci is None or address is None:
        return None
    nested = {each.get("type", ""): each for each in pci.findall("capability")}
    group = pci.find("iommuGroup")
    numa = pci.find("numa")
    virtual = nested.get("virt_functions")
    return Function(
        address=address,
        vendor=_id_of(pci.find("vendor")),
        device=_id_of(pci.find("product")),
        class_code=_class_of(pci.findtext("class")),
        product=(pci.findtext("product") or "").strip(),
        driver=root.findtext("driver/name") or None,
        group=_number(group.get("number")) if group is not None else None,
        members=_addresses(group),
        numa_node=_number(numa.get("node")) if numa is not None else None,
        virtual="phys_function" in nested,
        bridge=any(kind.endswith("bridge") for kind in nested),
        virtual_functions=len(_addresses(virtual)),
        misnamed=_misnamed(root.findtext("name") or "", address),
    )


def obstacles(
    card: Function, functions: Mapping[str, Function], *, mates: Collection[str] = (), allow_vm: str | None = None
) -> tuple[Obstacle, ...]:
    """All that keeps a card from a guest; `functions` knows its group; `allow_vm` may hold it already.

    `mates`: the cards that share its group. They go to nobody else while it is given away.
    """
    found: list[Obstacle] = []
    if card.is_integrated:
        found.append(Obstacle(f"Card {card.address} is the processor's own graphics, not a card of its own"))
    if card.boot_vga:
        found.append(_coded(ReasonCode.card_is_console, gpu=card.address))
    if card.group is None:
        found.append(
            Obstacle(
                f"Card {card.address} has no IOMMU group: the host's IOMMU is off "
                "(switch on VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on iommu=pt)"
            )
        )
    if card.virtual_functions:
        found.append(Obstacle(f"{card.virtual_functions} virtual functions of card {card.address} are switched on"))
    for culprit in culprits(card, functions, mates=mates):
        found.append(
            _coded(ReasonCode.group_not_viable, gpu=card.address, group=card.group, culprit=_describe(culprit))
        )
    # a mate that a guest has is the planner's business; one that a process of the host has cannot be taken from it
    beside = (functions[mate] for mate in mates if mate in functions)
    for each in (card, *(mate for mate in beside if mate.holder and mate.holder.vm is None)):
        if each.holder is not None and (allow_vm is None or each.holder.vm != allow_vm):
            held = {"pid": each.holder.pid, "command": each.holder.command}
            found.append(_coded(ReasonCode.card_held_open, gpu=each.address, **held))
    return tuple(found)


def culprits(card: Function, functions: Mapping[str, Function], *, mates: Collection[str] = ()) -> tuple[Function, ...]:
    """The endpoints of the card's group that are neither bridges nor functions of its own or of its mates."""
    boards = [card, *(functions[mate] for mate in mates if mate in functions)]
    others = (functions.get(each, Function(each)) for each in card.members)
    return tuple(each for each in others if not each.is_bridge and not any(_on_board(each, board) for board in boards))


def companions(card: Function, functions: Mapping[str, Function]) -> tuple[str, ...]:
    """The card's other functions in its group (its sound, USB, …): they go where the card goes."""
    others = (functions.get(each, Function(each)) for each in card.members if each != card.address)
    return tuple(sorted(each.address for each in others if not each.is_bridge and _on_board(each, card)))


def mates(card: Function, functions: Mapping[str, Function], more: Collection[str] = ()) -> tuple[str, ...]:
    """The other cards of the card's group that could be given away as well; `more` as in `is_card`."""
    others = (functions[each] for each in card.members if each in functions and each != card.address)
    return tuple(
        sorted(
            each.address
            for each in others
            if each.is_card(more) and not (each.boot_vga or each.is_integrated or same_slot(each.address, card.address))
        )
    )


def _on_board(function: Function, card: Function) -> bool:
    """Whether a function is the card itself or part of its board: at its slot, by its maker, and of such a class."""
    if function.address == card.address:
        return True
    theirs = not (function.vendor and card.vendor) or function.vendor == card.vendor
    fits = not function.class_code or function.class_code.startswith(_BOARD_CLASSES)
    return same_slot(function.address, card.address) and theirs and fits


def window_mib(bars: Iterable[int]) -> int:
    """The 64-bit MMIO window for all cards' BARs, a power of two; 0 leaves it to the firmware."""
    sizes = tuple(bars)
    if not any(size >= _LARGE_BAR_MIB for size in sizes):
        return 0
    return max(_LEAST_WINDOW_MIB, 1 << (sum(sizes) - 1).bit_length())


def same_slot(one: str, other: str) -> bool:
    """Whether two addresses are functions of one device."""
    return one.rpartition(".")[0] == other.rpartition(".")[0]


def _coded(code: ReasonCode, **args: object) -> Obstacle:
    why = reason(code, **args)
    return Obstacle(why.sentence(), why)


def _describe(function: Function) -> str:
    name = CLASS_NAMES.get(function.class_code, "")
    known = f"class {function.class_code or 'unknown'}, driver {function.driver or 'none'}"
    return f"{name} {function.address} ({known})".strip()


def _address_of(pci: Element) -> str | None:
    parts = [_number(pci.findtext(name)) for name in ("domain", "bus", "slot", "function")]
    return _written(parts)


def _addresses(parent: Element | None) -> tuple[str, ...]:
    if parent is None:
        return ()
    each = (
        _written([_number(a.get(n)) for n in ("domain", "bus", "slot", "function")]) for a in parent.iter("address")
    )
    return tuple(sorted(a for a in each if a is not None))


def _written(parts: list[int | None]) -> str | None:
    domain, bus, slot, function = parts
    if bus is None or slot is None or function is None:
        return None
    return f"{domain or 0:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _number(text: str | None) -> int | None:
    """libvirt writes decimal in elements and hex in attributes; -1 means unknown."""
    text = (text or "").strip().lower()
    try:
        number = int(text, 16) if text.startswith("0x") else int(text)
    except ValueError:
        return None
    return number if number >= 0 else None


def _id_of(element: Element | None) -> str:
    number = _number(element.get("id")) if element is not None else None
    return f"{number:04x}" if number is not None else ""


def _class_of(text: str | None) -> str:
    number = _number(text)
    return f"{number >> 8:04x}" if number is not None else ""


def _misnamed(name: str, address: str) -> str:
    named = _SYSFS_NAME.fullmatch(name)
    if named is None:
        return ""
    written = "{}:{}:{}.{}".format(*named.groups())
    return (
        "" if written == address else f"libvirt names device {address} {name}; the address is taken from its elements"
    )
