"""One GPU's silicon: MIG mode and instances, vGPUs and their rules, and who uses it, whichever driver holds it."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from uuid import NAMESPACE_OID, uuid5

from tests.gpuhost.catalogue import Model, Profile, VgpuType
from tests.gpuhost.refusal import Nvml, Refused


@dataclass
class GpuInstance:
    """A cut of the grid; a compute instance is (its id, its width in slices)."""

    id: int
    profile: Profile
    start: int
    compute: dict[int, int] = field(default_factory=dict)


@dataclass
class Vgpu:
    """A vGPU that exists, active while `vm` is set. `seat` is the VF's address, or the mdev's UUID on its `parent`."""

    handle: int
    type: VgpuType
    seat: str
    parent: str
    instance: int | None
    placement: int | None
    params: str = ""
    vm: str | None = None
    guest_driver: str = ""
    licensed: bool = False
    autostart: bool = False
    dirty: bool = False
    group: int | None = None


class Card:
    """A GPU. It knows nothing of PCI drivers: the bus tells it when its driver leaves."""

    def __init__(self, model: Model, address: str, number: int, module: int = 0, host: str = "") -> None:
        self.model = model
        self.address = address
        self.number = number
        self.module = module
        self.uuid = f"GPU-{uuid5(NAMESPACE_OID, f'{host} {address}')}"
        self.serial = str(uuid5(NAMESPACE_OID, self.uuid).int)[:13]
        self.mig = False
        self.mig_pending = False
        self.mixed = False
        self.instances: dict[int, GpuInstance] = {}
        self.vgpus: list[Vgpu] = []
        self.dead = False
        self.generation = 0
        self.takes_other = False
        self.mig_waits = False
        self._handles = 0

    # MIG

    def set_mig(self, on: bool, in_use: bool) -> Nvml:
        """Change the mode; says whether it took effect or waits for a reset."""
        if not self.model.profiles:
            raise Refused("this GPU has no MIG", code=Nvml.NOT_SUPPORTED)
        self.mig_pending = on
        if on == self.mig:
            return Nvml.SUCCESS
        if in_use or self.vgpus:
            return Nvml.IN_USE
        if self.mig_waits:
            return Nvml.RESET_REQUIRED
        self._enter(on)
        return Nvml.SUCCESS

    def starts(self, profile: Profile) -> list[int]:
        """Where one more instance of this profile may start now."""
        taken = [each.profile for each in self.instances.values()]
        if sum(each.slices for each in taken) + profile.slices > self.model.slices:
            return []
        if taken.count(profile) >= profile.most or (profile.media and any(each.media for each in taken)):
            return []
        return [start for start in profile.starts if not self._overlaps(start, profile.size)]

    def remaining(self, profile: Profile) -> int:
        """How many more of it fit if nothing else is made; the numbers of different profiles are not additive."""
        probe = Card(self.model, self.address, self.number)
        probe.mig, probe.instances = True, dict(self.instances)
        count = 0
        while probe.starts(profile):
            probe.create_instance(profile)
            count += 1
        return count

    def create_instance(self, profile: Profile, start: int | None = None) -> GpuInstance:
        """Cut an instance; without a place the driver chooses."""
        if not self.mig:
            raise Refused("MIG mode is off", code=Nvml.NOT_SUPPORTED)
        if start is not None and start not in profile.starts:
            raise Refused("no such place", code=Nvml.INVALID_ARGUMENT)
        free = self.starts(profile)
        if not free or (start is not None and start not in free):
            raise Refused("Insufficient Resources", code=Nvml.INSUFFICIENT_RESOURCES)
        # As the MIG guide's examples show: narrow ones from the left, wide ones from the right.
        narrow = profile.size == min(each.size for each in self.model.profiles)
        chosen = start if start is not None else free[0 if narrow else -1]
        made = GpuInstance(self._instance_id(profile, chosen), profile, chosen)
        self.instances[made.id] = made
        return made

    def destroy_instance(self, number: int) -> None:
        instance = self.instances[number]
        if instance.compute or any(each.instance == number for each in self.vgpus):
            raise Refused("In use by another client", code=Nvml.IN_USE)
        del self.instances[number]

    # vGPU

    def room(self, wanted: VgpuType) -> int:
        """How many more of this type the whole GPU takes, whatever virtual function asks."""
        if self.dead or (wanted.profile is not None) != self.mig:
            return 0
        if wanted.profile is not None:
            return sum(self._room_in(each, wanted) for each in self.instances.values())
        if self.mixed:
            return self._free_starts(wanted)
        for other in self.vgpus:
            same = other.type.id == wanted.id if self.model.same_type else other.type.gb == wanted.gb
            if not same:
                return 0
        return max(0, wanted.most - len(self.vgpus))

    def creatable(self) -> list[VgpuType]:
        return [each for each in self.model.types if self.room(each)]

    def create_vgpu(self, wanted: VgpuType, seat: str, parent: str) -> Vgpu:
        """Make a vGPU; which free GPU instance it gets is the driver's choice, its placement an offset inside."""
        if not self.room(wanted):
            raise Refused("vgpu create request failed: 0x38", number=errno.EIO)
        instance: int | None = None
        placement: int | None = None
        if wanted.profile is not None:
            free = sorted(each.id for each in self.instances.values() if self._room_in(each, wanted))
            instance = free[-1 if self.takes_other else 0]
            taken = {each.placement for each in self.vgpus if each.instance == instance}
            placement = next(at for at in (n * wanted.gb for n in range(wanted.per_instance)) if at not in taken)
        elif wanted.starts:
            placement = next(start for start in self._placements(wanted) if self.placement_free(start, wanted.gb))
        self._handles += 1
        made = Vgpu(self.number * 1000 + self._handles, wanted, seat, parent, instance, placement)
        self.vgpus.append(made)
        return made

    def placement_free(self, start: int, gb: int, besides: Vgpu | None = None) -> bool:
        """Whether [start, start + gb) meets no other time-sliced vGPU."""
        return all(
            start + gb <= (each.placement or 0) or (each.placement or 0) + each.type.gb <= start
            for each in self.vgpus
            if each is not besides and each.instance is None
        )

    def remove_vgpu(self, seat: str) -> None:
        held = self.at(seat)
        if held is None:
            return
        if held.vm:
            raise Refused("the vGPU is in use by a VM", number=errno.EBUSY, code=Nvml.IN_USE)
        self.vgpus.remove(held)

    def at(self, seat: str) -> Vgpu | None:
        return next((each for each in self.vgpus if each.seat == seat), None)

    def set_mixed(self, on: bool) -> None:
        """Mixed-size mode: only while no vGPU exists."""
        if not self.model.mixed:
            raise Refused("no mixed-size mode", code=Nvml.NOT_SUPPORTED)
        if self.vgpus:
            raise Refused("GPU is in use", code=Nvml.IN_USE)
        self.mixed = on

    # what wipes

    def lose_driver(self) -> None:
        """What driver reload, GPU reset and the rebind of sriov-manage all wipe; the MIG mode stays."""
        self.instances.clear()
        self.vgpus.clear()
        self.mixed = False
        self.generation += 1

    def reset(self) -> None:
        self.lose_driver()
        self._enter(self.mig_pending)

    def reboot(self) -> None:
        self.lose_driver()
        if not self.model.keeps_mig:
            self.mig_pending = False
        self._enter(self.mig_pending)

    def _enter(self, mig: bool) -> None:
        self.mig = self.mig_pending = mig
        self.instances.clear()
        self.generation += 1

    def _overlaps(self, start: int, size: int) -> bool:
        return any(
            start < each.start + each.profile.size and each.start < start + size for each in self.instances.values()
        )

    def _instance_id(self, profile: Profile, start: int) -> int:
        """Ids in the order of a binary tree over the grid: 7g 0, 3g 1 and 2, 2g 3 to 5, 1g 7 to 13 on 8 cells."""
        level = (self.model.cells // profile.size).bit_length() - 1
        number = (1 << level) - 1 + start // profile.size
        while number in self.instances:  # a whole-GPU id of another width
            number += 1
        return number

    def _room_in(self, instance: GpuInstance, wanted: VgpuType) -> int:
        if instance.profile.id != wanted.profile:
            return 0
        inside = [each.type for each in self.vgpus if each.instance == instance.id]
        if any(each.gb != wanted.gb for each in inside):
            return 0
        return max(0, wanted.per_instance - len(inside))

    def _placements(self, wanted: VgpuType) -> tuple[int, ...]:
        """Equal sizes stand side by side; mixed sizes keep to the vendor's places."""
        return wanted.starts if self.mixed else tuple(wanted.gb * n for n in range(wanted.most))

    def _free_starts(self, wanted: VgpuType) -> int:
        return sum(self.placement_free(start, wanted.gb) for start in wanted.starts)
