"""PCI functions: what each shows of itself, and the arithmetic of their addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.gpuhost.card import Card

_MEMORY = 0x40200  # 32-bit memory window
_MEMORY_64 = 0x14220C  # 64-bit, prefetchable
_UNUSED = "0x0000000000000000 0x0000000000000000 0x0000000000000000"


@dataclass
class Function:
    """One PCI function; `above` are its upstream ports, root first; `natural` is the driver that claims it by id."""

    address: str
    vendor: str
    device: str
    class_code: str
    subvendor: str = "0000"
    subdevice: str = "0000"
    natural: str | None = None
    group: int | None = None
    numa: int = -1
    above: tuple[str, ...] = ()
    bars_mib: tuple[int, ...] = ()
    reset_methods: tuple[str, ...] = ()
    boot_vga: bool | None = None
    total_vfs: int = 0
    physfn: str | None = None
    card: Card | None = None
    speed: str = "16.0 GT/s PCIe"
    width: int = 16
    unassigned_bar: bool = False
    driver: str | None = None
    override: str = ""
    locked: bool = False
    vfs: list[str] = field(default_factory=list)

    @property
    def bridge(self) -> bool:
        return self.class_code.startswith("06") and self.class_code[2:4] == "04"

    @property
    def dead(self) -> bool:
        return self.card is not None and self.card.dead


def neighbour(address: str, distance: int) -> str:
    """The address whose routing id lies `distance` further; VFs run over slots and buses this way."""
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    routing = (int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)) + distance
    return f"{domain}:{routing >> 8:02x}:{routing >> 3 & 0x1F:02x}.{routing & 7}"


def config_space(function: Function) -> bytes:
    """The standard header as hardware answers it."""
    if function.dead:
        return b"\xff" * 256
    space = bytearray(256)
    # A VF's own id registers read ffff by the SR-IOV standard; the kernel takes the ids from the PF.
    ids = (0xFFFF, 0xFFFF) if function.physfn else (int(function.vendor, 16), int(function.device, 16))
    for at, number in enumerate((*ids, 0x0006, 0x0010)):
        space[at * 2 : at * 2 + 2] = number.to_bytes(2, "little")
    space[8:12] = bytes((0xA1, *reversed(bytes.fromhex(function.class_code))))
    space[14] = 0x01 if function.bridge else 0x00
    space[44:46] = int(function.subvendor, 16).to_bytes(2, "little")
    space[46:48] = int(function.subdevice, 16).to_bytes(2, "little")
    return bytes(space)


def resource(function: Function) -> str:
    """13 lines of start, end, flags: 64-bit windows take every second line."""
    lines: list[str] = []
    base = (int(function.address.split(":")[1], 16) + 1) << 40
    for index, size in enumerate(function.bars_mib):
        if function.unassigned_bar and size == max(function.bars_mib):
            lines += [_UNUSED, _UNUSED]
            continue
        start = base + (index << 38)
        lines.append(f"0x{start:016x} 0x{start + (size << 20) - 1:016x} 0x{_MEMORY if index == 0 else _MEMORY_64:016x}")
        if index:
            lines.append(_UNUSED)
    return "\n".join((lines + [_UNUSED] * 13)[:13]) + "\n"


def hgx_partitions(gpus: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Fabric partitions of an HGX board: all, halves, quarters, singles, by physical ids from 1."""
    number, size = 0, gpus
    while size:
        for first in range(1, gpus + 1, size):
            yield number, tuple(range(first, first + size))
            number += 1
        size //= 2
