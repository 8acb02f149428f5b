"""What a host is asked to do and what it answers: plain frozen values, and the protocols that kvm and fake fulfil.

Sizes are in MiB or GiB as their names say; PCI addresses are `0000:65:00.0`. Every `ensure_…` may be repeated.
Errors of all calls: HostUnreachable (nothing is known, ask again later), HostRefused (the host said no).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vmgpu.hypervisor.doctor import Check
from vmgpu.hypervisor.seen import Cut as Cut
from vmgpu.hypervisor.seen import Cuts as Cuts
from vmgpu.hypervisor.seen import DomainSeen as DomainSeen
from vmgpu.hypervisor.seen import GpuFacts as GpuFacts
from vmgpu.hypervisor.seen import Held as Held
from vmgpu.hypervisor.seen import HostFacts as HostFacts
from vmgpu.hypervisor.seen import Live as Live
from vmgpu.hypervisor.seen import NumaNode as NumaNode
from vmgpu.hypervisor.seen import Power as Power

Progress = Callable[[int], None]  # called with whole percents


@dataclass(frozen=True)
class Pci:
    """A function of the host that goes into the guest; `managed`: libvirt binds and unbinds it."""

    address: str
    managed: bool = True


@dataclass(frozen=True)
class Mdev:
    """A mediated device of the host."""

    uuid: str


@dataclass(frozen=True)
class Emulated:
    """A display device that stands for a slice: a scale model of its memory, its true size told by SMBIOS."""

    video_mib: int
    label: str


HostDevice = Pci | Mdev | Emulated


@dataclass(frozen=True)
class GpuRef:
    """A card as a carver is told of it. `companions`: its own other functions, `mates`: other cards in its IOMMU group.

    `framework`: how a vGPU reaches a guest on its host (mdev, vfio), and whether that is by its virtual functions;
    `parent`: its name in libvirt where it is a parent of mediated devices without an address; `partition`: what is
    active of an NVSwitch fabric while a guest has the whole card.
    """

    id: str
    mode: str
    model: str
    address: str | None = None
    companions: tuple[str, ...] = ()
    framework: str | None = None
    on_functions: bool = False
    parent: str | None = None
    mates: tuple[str, ...] = ()
    partition: int | None = None


@dataclass(frozen=True)
class SliceRef:
    """One piece of one card, held by one VM. `slot`: which virtual function is its; `type`: the vendor's number."""

    id: str
    vm_id: str
    gpu: GpuRef
    profile: str
    start: int
    cells: int
    compute: int
    memory_mib: int
    slot: int = 0
    type: int | None = None


@dataclass(frozen=True)
class Carved:
    """What goes into the guest; `start`: where the slice lies, where the driver chose another place than the plan's."""

    devices: tuple[HostDevice, ...]
    start: int | None = None


class Network(StrEnum):
    """How guests reach the world: our own NAT network, or a bridge that the host has."""

    nat = "nat"
    bridge = "bridge"


@dataclass(frozen=True)
class NetworkRef:
    """`name` is the libvirt network for nat, the bridge device for bridge."""

    kind: Network
    name: str


@dataclass(frozen=True)
class ImageRef:
    """A bootable disk: `volume` is its file in a host's pool, `virtual_mib` the disk it becomes at least."""

    id: str
    volume: str
    virtual_mib: int
    has_init: bool = True


@dataclass(frozen=True)
class Seed:
    """The files of the NoCloud disk, name to content; made by render, never changed here."""

    files: Mapping[str, bytes]


@dataclass(frozen=True)
class VMSpec:
    """All a host must know to run one VM. `id` is the domain's UUID; every file's name begins with it."""

    id: str
    name: str
    title: str
    installation: str
    build: int
    vcpus: int
    memory_mib: int
    disk_gib: int
    image: ImageRef
    mac: str
    network: NetworkRef
    seed: Seed
    accel: str
    devices: tuple[HostDevice, ...] = ()
    numa_node: int | None = None
    window_mib: int = 0  # 64-bit MMIO window that the passed-through cards' BARs need; 0 = the firmware's own choice


@dataclass(frozen=True, repr=False)
class HostKeys:
    """The installation's private keys on hosts: one for libvirt and channels to guests, one for hostctl."""

    libvirt: str
    hostctl: str


@dataclass(frozen=True)
class HostRef:
    """A host as it is opened. `uri`: qemu:///system, qemu+ssh://…, fake://…; `emulate`: models of its emulated cards.

    `device_ids`: PCI ids that are cards here beside those of the makers we know; `mdev_parents`: names of parents of
    mediated devices that are given out though they are no PCI device. `host_key` is the pinned SSH key line of a
    remote host, `keys` are for one that was set up for us; `state_dir` is where a simulated host keeps its state.
    A start may take `start_seconds`, and so many more for each GiB of a guest whose memory is pinned for a card.
    """

    id: str
    name: str
    uri: str
    installation: str
    network: NetworkRef
    accel: str
    state_dir: Path
    emulate: tuple[str, ...] = ()
    device_ids: tuple[str, ...] = ()
    mdev_parents: tuple[str, ...] = ()
    host_key: str | None = None
    keys: HostKeys | None = None
    start_seconds: float = 60
    start_seconds_per_gib: float = 1


class Hypervisor(Protocol):
    """One host. Calls block; the caller gives each a deadline. Nothing here reads or writes our database."""

    def survey(self) -> HostFacts:
        """Say what is there; makes our pool and network ready on the way (first time: defines and starts them)."""

    def checkup(self) -> tuple[Check, ...]:
        """Say what is wrong with the host, and the cure; nothing is changed there."""

    def boot_id(self) -> str:
        """A text that changes when the host boots; cheap."""

    def has_image(self, image: ImageRef) -> bool:
        """Whether the pool holds this image whole (a part-copied one is not there)."""

    def ensure_image(self, image: ImageRef, source: Path, *, progress: Progress) -> None:
        """Copy the master file into the pool, once, verified; a half copy of an earlier try is replaced."""

    def drop_image(self, image: ImageRef) -> None:
        """Remove the pool's copy; nothing there is fine. HostRefused when a disk still stands on it."""

    def ensure_disk(self, spec: VMSpec) -> None:
        """The VM's disk: a qcow2 over the image, `disk_gib` large; an existing one is kept as it is."""

    def drop_disk(self, vm_id: str) -> None:
        """Remove the VM's disk, so that `ensure_disk` makes a fresh one; nothing there is fine."""

    def has_disk(self, vm_id: str) -> bool:
        """Whether the VM's disk lies here."""

    def ensure_defined(self, spec: VMSpec) -> None:
        """Seed written, domain defined as the spec says; a running domain is left alone."""

    def ensure_running(self, vm_id: str) -> None:
        """Start the domain unless it runs. HostRefused with the host's own words when it will not."""

    def look(self, vm_id: str) -> DomainSeen:
        """This VM's domain; `Power.absent` when the host does not know it."""

    def domains(self) -> tuple[DomainSeen, ...]:
        """Every domain of the host, foreign ones too; one call however many there are."""

    def holds(self, vm_id: str) -> tuple[Held, ...]:
        """What a domain has of the host's cards; asked only of one that has no row, whose row would tell."""

    def shutdown(self, vm_id: str) -> None:
        """Ask the guest to power off (ACPI); off already is fine."""

    def power_off(self, vm_id: str) -> None:
        """Take the power away; off already, or absent, is fine."""

    def erase(self, vm_id: str) -> None:
        """Remove domain, NVRAM, disk, seed and console of this VM; nothing there is fine."""

    def leftovers(self, vm_id: str) -> tuple[str, ...]:
        """Whatever the host still has of this VM, by name: domain, NVRAM, disk, seed, console."""

    def address(self, vm_id: str, mac: str, network: NetworkRef) -> str | None:
        """The guest's IPv4 address for our MAC: from the DHCP leases on nat, from the guest agent on a bridge."""

    def wait_guest(self, vm_id: str, seconds: float) -> bool:
        """Wait until the guest's agent connects, at most so long, without asking the guest; True if it has."""

    def console(self, vm_id: str, limit: int = 256 * 1024) -> bytes:
        """The end of the serial console's log; empty when there is none."""

    def see_room(self, vm_id: str, target: Path) -> None:
        """Raises HostRefused where `copy_flat` would find no room, here or at `target`; the VM may run meanwhile."""

    def copy_flat(self, vm_id: str, target: Path, *, progress: Progress) -> None:
        """Copy the (powered-off) VM's disk into one qcow2 file without a backing file at `target`."""

    def dial(self, address: str, port: int) -> object | None:
        """A socket to a guest that only this host reaches; None where this machine reaches it directly."""

    def carver(self, mode: str, framework: str | None = None) -> Carver:
        """What cuts cards in this mode on this host; `framework` of those that are cut into vGPUs."""

    def withdraw(self) -> None:
        """Leave the host: remove our network and pool where nothing is left in them; our images are dropped before."""

    def close(self) -> None:
        """Let go of the connection."""


class Simulated(Hypervisor, Protocol):
    """A host that is played: nobody can log in to its guests, so it says itself what a login would have shown."""

    def guest_checked(self, vm_id: str, devices: Sequence[HostDevice]) -> tuple[bool, str]:
        """Whether the guest is up, and what was seen of its card."""


class Carver(Protocol):
    """One way to cut cards on one host; its survey says what can be cut. Data out, never XML; verbs may be repeated."""

    def carve(self, ref: SliceRef) -> Carved:
        """Cut the slice, or find it already cut, and say what goes into the guest."""

    def release(self, ref: SliceRef) -> None:
        """Give the slice back; nothing there is fine."""
