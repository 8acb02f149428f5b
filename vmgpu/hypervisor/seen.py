"""What a host shows of itself, its cards and its domains; None is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Power(StrEnum):
    """What a host says of a domain."""

    absent = "absent"
    off = "off"
    running = "running"
    paused = "paused"
    crashed = "crashed"


@dataclass(frozen=True)
class DomainSeen:
    """A domain found on a host. `why`: libvirt's reason for being off; `installation`: whose it is (None: nobody's)."""

    id: str
    name: str
    power: Power
    why: str = ""
    installation: str | None = None
    build: int | None = None


@dataclass(frozen=True)
class Held:
    """A piece of a card that a domain has, as its description tells: of the card at `address`, else of `model`."""

    profile: str
    address: str | None = None
    model: str = ""
    start: int | None = None


@dataclass(frozen=True)
class Cut:
    """One size that can be cut from a card: `type` is the vendor's number for it.

    What has `marks` (me, gfx, series B or A) is given only to those who ask for it by name.
    `cells` of the card's memory grid from one of `starts` (best first), and so many `compute` slices.
    """

    name: str
    cells: int
    compute: int
    starts: tuple[int, ...]
    memory_mib: int
    most: int
    type: int | None = None
    cuda: bool = True
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cuts:
    """What a card can be cut into in one mode; `equal`: all pieces at one time are of one size.

    `left`: told by counts of what is left, which says what the whole card is only while nothing is cut from it.
    """

    cells: int
    compute: int
    instances: int
    pieces: tuple[Cut, ...]
    equal: bool = False
    left: bool = False


@dataclass(frozen=True)
class Live:
    """A piece that is cut from a card now, ours or not: by its function's number, its mdev's UUID, its start."""

    name: str
    slot: int | None = None
    uuid: str | None = None
    start: int | None = None


@dataclass(frozen=True)
class GpuFacts:
    """A card as a survey saw it; None is unknown. `key` identifies the card across surveys.

    `refusals`: mode → the sentence why that mode is not possible, where it is not; `cuts`: mode → what can be cut;
    `now`: the mode it is in; `place`: slot and ids, by which a card is known while nobody can ask for its UUID;
    `partition`: the one of the NVSwitch fabric that is this card alone, None where it hangs on no fabric.
    """

    key: str
    address: str | None
    vendor: str
    device: str
    name: str
    model: str
    emulated: bool = False
    class_code: str = ""
    driver: str | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    companions: tuple[str, ...] = ()
    mates: tuple[str, ...] = ()
    boot_vga: bool = False
    bars_mib: tuple[int, ...] = ()
    memory_mib: int | None = None
    modes: tuple[str, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)
    cuts: Mapping[str, Cuts] = field(default_factory=dict)
    live: tuple[Live, ...] = ()
    held_by: str = ""
    uuid: str = ""
    serial: str = ""
    place: str = ""
    framework: str | None = None
    on_functions: bool = False
    parent: str | None = None
    now: str | None = None
    reset_methods: tuple[str, ...] | None = None
    link: str = ""
    module_id: int | None = None
    partition: int | None = None


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node: its CPUs as a range list (`0-7,16-23`) and its memory."""

    id: int
    cpus: str
    memory_mib: int


@dataclass(frozen=True)
class HostFacts:
    """The answer of a survey; None is unknown.

    `machine` is the same under whatever address it is reached, empty where unknown; `here` is the service's own machine
    where that is the host; `disk_written_mib`: what of each VM's disk (by its id) and of each image (by its file's
    name) is written, and so missing from the free space already.
    """

    hostname: str
    machine: str
    here: str
    boot_id: str
    libvirt: str
    qemu: str
    cpu_model: str
    threads: int
    memory_mib: int
    accel: str
    accel_why: str
    disk_total_gib: int
    disk_free_gib: int
    disk_written_mib: Mapping[str, int]
    pool: str
    network: str
    network_range: str
    numa: tuple[NumaNode, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    warnings: tuple[str, ...] = ()
