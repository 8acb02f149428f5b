"""What the planner is given and what it answers: plain frozen values, sizes with their unit in the name."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from vmgpu.errors import Reason
from vmgpu.placement.tables import CardModel, Mode, Window, shape_of

# smaller is sooner: (priority, queued_at as seconds, id)
Order = tuple[int, float, str]


@dataclass(frozen=True, slots=True)
class ByProfile:
    """A GPU wish by the vendor's name for the size, in any case of letters; `whole` is a whole card."""

    name: str
    cuda: bool = False


@dataclass(frozen=True, slots=True)
class ByShare:
    """A GPU wish by size: this many fGPU, on any card that has as much."""

    fgpu: Fraction
    cuda: bool = False


GpuWish = ByProfile | ByShare


@dataclass(frozen=True, slots=True)
class Wish:
    """What one waiting VM needs. It holds no slice: a stopped VM that kept its slices does not queue."""

    vm_id: str
    order: Order
    vcpus: int
    memory_mib: int
    disk_gib: int = 0
    image: str = ""  # what its disk stands on: a host that has no copy of it needs room for one
    image_gib: int = 0
    gpu: GpuWish | None = None
    disk_on: str | None = None  # the host where its disk lies already: no other will do, and no new disk is needed
    other_kind: frozenset[str] = frozenset()  # hosts that do not run its image: a simulated host runs no real one
    not_hosts: frozenset[str] = frozenset()  # blamed for its last failure
    not_gpus: frozenset[str] = frozenset()

    @property
    def kind(self) -> tuple[object, ...]:
        """All that decides where it fits: of two wishes of one kind, only the order differs."""
        return (
            self.gpu, self.vcpus, self.memory_mib, self.disk_gib, self.image, self.disk_on, self.other_kind,
            self.not_hosts, self.not_gpus,
        )  # fmt: skip

    @property
    def most_disk_gib(self) -> int:
        """The disk space it needs on a host that has nothing of it yet."""
        return 0 if self.disk_on else self.disk_gib + self.image_gib


@dataclass(frozen=True, slots=True)
class HostState:
    """One host: what it has, and what the VMs placed on it hold."""

    id: str
    name: str
    threads: int
    memory_mib: int
    disk_gib: int  # the size of its disk pool
    disk_free_gib: int  # what is neither used nor promised
    images: frozenset[str] = frozenset()  # those whose copy lies in the pool, or is promised its room there
    vcpus_used: int = 0
    vcpus_pinned: int = 0  # of VMs with a thread of their own for each vCPU; not in vcpus_used
    memory_used_mib: int = 0
    overcommit: float = 4
    pins: bool = False  # it has several NUMA nodes: a VM with a whole physical card is pinned beside it
    known: bool = True  # surveyed and reachable: what it has is a fact
    closed: Reason | None = None  # why it takes no VM now
    version: int = 0

    @property
    def reserve_mib(self) -> int:
        """The memory the host keeps for itself: the larger of 1 GiB and 5 %."""
        return max(1024, -(-self.memory_mib // 20))

    @property
    def memory_most_mib(self) -> int:
        """The memory VMs may have in all."""
        return max(0, self.memory_mib - self.reserve_mib)

    @property
    def memory_free_mib(self) -> int:
        """The memory VMs may still have; below 0 where more is held than the host now shows."""
        return self.memory_most_mib - self.memory_used_mib

    def new_image_gib(self, wish: Wish) -> int:
        """The disk space that a copy of its image needs here: none where it has one, or its disk already."""
        return 0 if wish.disk_on or wish.image in self.images else wish.image_gib

    def new_disk_gib(self, wish: Wish) -> int:
        """The disk space that a wish needs here: its disk, and its image where there is no copy yet."""
        return (0 if wish.disk_on else wish.disk_gib) + self.new_image_gib(wish)

    @property
    def threads_free(self) -> float:
        """The threads not spoken for; a vCPU takes one where pinned, else 1/overcommit of one."""
        return self.threads - self.vcpus_pinned - self.vcpus_used / self.overcommit


@dataclass(frozen=True, slots=True)
class CardState:
    """One card and the slices on it; sizes of slices are in cells of its memory grid."""

    id: str
    host_id: str
    model: str
    mode: Mode
    taken: tuple[Window, ...] = ()
    closed: Reason | None = None  # why nothing new is cut from it now
    version: int = 0
    name: str = ""  # what people call it, for reasons
    told: CardModel | None = None  # what its host says can be cut from it; None: what the tables know of its model
    mates: tuple[str, ...] = ()  # cards of its IOMMU group: one guest has the group, so that one card goes at a time

    @property
    def shape(self) -> CardModel:
        """What can be cut from it in its mode."""
        return self.told or shape_of(self.model, self.mode)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a wish goes, all it takes there, and the row versions it was decided on."""

    vm_id: str
    host_id: str
    host_version: int
    vcpus: int
    memory_mib: int
    disk_gib: int
    image: str = ""  # what it stands on; a copy of it is brought where the host has none, and stays there
    image_gib: int = 0  # the room of that copy, where it is new
    pinned: bool = False
    gpu_id: str | None = None
    gpu_version: int | None = None
    slice: Window | None = None
    slice_mib: int = 0  # the slice's memory


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wish that fits nowhere now: its place in the queue, from 1, and what is short."""

    vm_id: str
    position: int
    reason: Reason
