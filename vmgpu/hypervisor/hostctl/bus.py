"""Every PCI function in few words: who it is, who drives it, whom it shares a group with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .files import Files
from .patterns import ADDRESS

DEVICES = "sys/bus/pci/devices"
_MODALIAS = re.compile(
    r"pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})bc([0-9A-F]{2})sc([0-9A-F]{2})i.*"
)
_CARD_CLASSES = ("03", "12")  # displays and processing accelerators
_BRIDGES = ("0600", "0604")


@dataclass(frozen=True)
class Ids:
    """What a function is; "" is unknown."""

    vendor: str = ""
    device: str = ""
    subvendor: str = ""
    subdevice: str = ""
    code: str = ""


@dataclass(frozen=True)
class Function:
    """One function, from one opened file and four links."""

    address: str
    ids: Ids
    driver: str | None
    group: int | None
    physfn: str | None
    path: tuple[str, ...]

    @property
    def is_bridge(self) -> bool:
        return self.ids.code in _BRIDGES

    @property
    def is_card(self) -> bool:
        return self.physfn is None and self.ids.code[:2] in _CARD_CLASSES

    @property
    def is_switch(self) -> bool:
        """An NVSwitch."""
        return self.ids.vendor == "10de" and self.ids.code == "0680"

    @property
    def folder(self) -> str:
        return f"{DEVICES}/{self.address}"


@dataclass
class Bus:
    """All functions by address, and the groups they form."""

    functions: dict[str, Function] = field(default_factory=dict)

    def members(self, group: int | None) -> tuple[str, ...]:
        """The functions of an IOMMU group."""
        if group is None:
            return ()
        return tuple(each.address for each in self.functions.values() if each.group == group)


def look(files: Files) -> Bus:
    """See the whole bus. Of all VFs of a card only the first is asked who it is: SR-IOV gives all the same ids."""
    bus = Bus()
    of_vfs: dict[str, Ids] = {}
    for address in files.names(DEVICES):
        if not ADDRESS.fullmatch(address):
            continue
        folder = f"{DEVICES}/{address}"
        physfn = files.link(f"{folder}/physfn")
        if physfn is not None and physfn in of_vfs:
            ids = of_vfs[physfn]
        else:
            ids = _ids(files, folder)
            if physfn is not None:
                of_vfs[physfn] = ids
        bus.functions[address] = Function(
            address=address,
            ids=ids,
            driver=files.link(f"{folder}/driver"),
            group=_decimal(files.link(f"{folder}/iommu_group")),
            physfn=physfn,
            path=upstream(files.target(folder), address),
        )
    return bus


def upstream(target: str, address: str) -> tuple[str, ...]:
    """The ports between the root and a function, from where its link points."""
    return tuple(each for each in target.split("/") if ADDRESS.fullmatch(each) and each != address)


def _ids(files: Files, folder: str) -> Ids:
    """`modalias` holds it all in one file; unlike `uevent` it does not wait for a lock that a stuck unbind holds."""
    found = _MODALIAS.fullmatch(files.text(f"{folder}/modalias") or "")
    if found:
        vendor, device, subvendor, subdevice, base, sub = (each.lower() for each in found.groups())
        return Ids(vendor, device, subvendor, subdevice, base + sub)
    code = files.number(f"{folder}/class")
    return Ids(
        _hex(files.number(f"{folder}/vendor")),
        _hex(files.number(f"{folder}/device")),
        _hex(files.number(f"{folder}/subsystem_vendor")),
        _hex(files.number(f"{folder}/subsystem_device")),
        _hex(None if code is None else code >> 8),
    )


def _hex(number: int | None) -> str:
    return "" if number is None else f"{number & 0xFFFF:04x}"


def _decimal(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) else None
