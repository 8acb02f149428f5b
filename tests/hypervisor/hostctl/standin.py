"""NVML made of a few values, with the real library's structures: cards, MIG's memory grid, vGPU types."""

from __future__ import annotations

import types
from ctypes import c_void_p, cast
from dataclasses import dataclass, field
from typing import Any

import pynvml


@dataclass
class Card:
    """One card as NVML has it."""

    bus_id: str = "00000000:41:00.0"
    mig: list[int] | None = None  # current, pending
    activation: int = 0
    stubborn: bool = False  # takes no new mode
    profiles: dict[int, tuple[int, str, int, int, int, tuple[int, ...]]] = field(default_factory=dict)
    instances: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # id: profile, start, size
    compute: dict[int, list[int]] = field(default_factory=dict)  # instance id: compute instances
    held: set[int] = field(default_factory=set)  # instances whose guest runs
    misplaces: bool = False
    types: dict[int, tuple[str, int]] = field(default_factory=dict)  # id: name, MiB
    vgpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    mixed: bool | None = None
    lost: bool = False
    processes: list[int] = field(default_factory=list)


# NVML's own number of a profile: its id, name, slices, MiB, most, starts
A100 = {
    0: (19, "1g.5gb", 1, 4864, 7, (0, 1, 2, 3, 4, 5, 6)),
    1: (14, "2g.10gb", 2, 9856, 3, (0, 2, 4)),
    2: (9, "3g.20gb", 3, 19968, 2, (0, 4)),
    4: (0, "7g.40gb", 7, 40192, 1, (0,)),
}
SIZES = {19: 1, 14: 2, 9: 4, 0: 8}


class StandIn(types.ModuleType):
    """Stands where `pynvml` stands; what is not made here is not supported by the card."""

    def __init__(self, *cards: Card, start: int = 0) -> None:
        super().__init__("pynvml")
        self.__spec__ = pynvml.__spec__
        self.cards = cards
        self.start = start
        self.calls: list[str] = []
        self.old = False  # a library without the newer functions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            made = Calls.__dict__.get(name)

            def call(*arguments: Any) -> Any:
                self.calls.append(name)
                if made is None:
                    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
                return made(self, *arguments)

            return call
        return getattr(pynvml, name)


def error(number: int) -> Exception:
    return pynvml.NVMLError(number)


def number_of(handle: Any) -> int:
    return int(cast(handle, c_void_p).value or 0)


class Calls:
    """The functions; a card's handle is its number, an instance's is card × 1000 + id, a compute instance's × 100."""

    def nvmlInit(self: StandIn) -> None:
        if self.start:
            raise error(self.start)

    def nvmlShutdown(self: StandIn) -> None:
        return None

    def nvmlSystemGetDriverVersion(self: StandIn) -> str:
        return "570.133.20"

    def nvmlDeviceGetCount(self: StandIn) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self: StandIn, index: int) -> int:
        if self.cards[index].lost:
            raise error(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetPciInfo(self: StandIn, card: int) -> Any:
        info = pynvml.nvmlPciInfo_t()
        info.busId = self.cards[card].bus_id.encode()
        return info

    def nvmlDeviceGetUUID(self: StandIn, card: int) -> str:
        return f"GPU-{card}"

    def nvmlDeviceGetName(self: StandIn, card: int) -> bytes:
        return b"NVIDIA Made-up"

    def nvmlDeviceGetMemoryInfo(self: StandIn, card: int) -> Any:
        memory = pynvml.c_nvmlMemory_t()
        memory.total = 46068 * 2**20
        return memory

    def nvmlDeviceGetMigMode(self: StandIn, card: int) -> list[int]:
        mode = self.cards[card].mig
        if mode is None:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return list(mode)

    def nvmlDeviceSetMigMode(self: StandIn, card: int, wanted: int) -> int:
        one = self.cards[card]
        assert one.mig is not None
        if not one.stubborn:
            one.mig[1] = wanted
            if one.activation == 0:
                one.mig[0] = wanted
        return one.activation

    def nvmlDeviceGetGpuInstanceProfileInfo(self: StandIn, card: int, number: int, version: int) -> Any:
        if self.old and version == 2:
            raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if number > 9:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        told = self.cards[card].profiles.get(number)
        if told is None:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        new = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t
        info = new() if version == 2 else pynvml.c_nvmlGpuInstanceProfileInfo_t()
        info.id, name, info.sliceCount, info.memorySizeMB, info.instanceCount, _ = told
        if version == 2:
            info.name = f"MIG {name}".encode()
        return info

    def nvmlDeviceGetGpuInstancePossiblePlacements(
        self: StandIn, card: int, profile: int, room: Any, count: Any
    ) -> int:
        starts = next(each[5] for each in self.cards[card].profiles.values() if each[0] == profile)
        if room is not None:
            for place, start in zip(room, starts, strict=True):
                place.start, place.size = start, SIZES[profile]
        count._obj.value = len(starts)
        return 0

    def nvmlDeviceGetGpuInstances(self: StandIn, card: int, profile: int, room: Any, count: Any) -> int:
        one = self.cards[card]
        if not one.mig or not one.mig[0]:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        found = [each for each, (of, _, _) in one.instances.items() if of == profile]
        for at, each in enumerate(found):
            room[at] = cast(card * 1000 + each, pynvml.c_nvmlGpuInstance_t)
        count._obj.value = len(found)
        return 0

    def nvmlDeviceGetGpuInstanceById(self: StandIn, card: int, instance: int) -> Any:
        if instance not in self.cards[card].instances:
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return cast(card * 1000 + instance, pynvml.c_nvmlGpuInstance_t)

    def nvmlGpuInstanceGetInfo(self: StandIn, handle: Any) -> Any:
        card, instance = divmod(number_of(handle), 1000)
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        info.id = instance
        info.profileId, info.placement.start, info.placement.size = self.cards[card].instances[instance]
        return info

    def nvmlDeviceCreateGpuInstanceWithPlacement(self: StandIn, card: int, profile: int, place: Any) -> Any:
        one, start, size = self.cards[card], place._obj.start, place._obj.size
        known = {each[0]: each[5] for each in one.profiles.values()}
        if profile not in known or start not in known[profile] or size != SIZES[profile]:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if any(start < at + of and at < start + size for _, at, of in one.instances.values()):
            raise error(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        instance = max(one.instances, default=0) + 1
        one.instances[instance] = (profile, start + one.misplaces, size)
        return cast(card * 1000 + instance, pynvml.c_nvmlGpuInstance_t)

    def nvmlGpuInstanceDestroy(self: StandIn, handle: Any) -> int:
        card, instance = divmod(number_of(handle), 1000)
        one = self.cards[card]
        if instance in one.held or one.compute.get(instance):
            raise error(pynvml.NVML_ERROR_IN_USE)
        del one.instances[instance]
        return 0

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self: StandIn, handle: Any, number: int, engine: int) -> Any:
        if number > 1:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if number == 1:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
        info.id, info.instanceCount = 0, 7
        return info

    def nvmlGpuInstanceGetComputeInstances(self: StandIn, handle: Any, profile: int, room: Any, count: Any) -> int:
        card, instance = divmod(number_of(handle), 1000)
        found = self.cards[card].compute.get(instance, [])
        for at, each in enumerate(found):
            room[at] = cast(number_of(handle) * 100 + each + 1, pynvml.c_nvmlComputeInstance_t)
        count._obj.value = len(found)
        return 0

    def nvmlComputeInstanceDestroy(self: StandIn, handle: Any) -> int:
        owner, number = divmod(number_of(handle), 100)
        card, instance = divmod(owner, 1000)
        if instance in self.cards[card].held:
            raise error(pynvml.NVML_ERROR_IN_USE)
        self.cards[card].compute[instance].remove(number - 1)
        return 0

    def nvmlDeviceGetVirtualizationMode(self: StandIn, card: int) -> int:
        return 3

    def nvmlDeviceGetHostVgpuMode(self: StandIn, card: int) -> int:
        return 1

    def nvmlDeviceGetVgpuCapabilities(self: StandIn, card: int, capability: int) -> int:
        if self.cards[card].mixed is None:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 1

    def nvmlDeviceGetVgpuHeterogeneousMode(self: StandIn, card: int) -> int:
        mixed = self.cards[card].mixed
        if mixed is None:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(mixed)

    def nvmlDeviceSetVgpuHeterogeneousMode(self: StandIn, card: int, mode: int) -> int:
        if self.cards[card].vgpus:
            raise error(pynvml.NVML_ERROR_IN_USE)
        if not self.cards[card].stubborn:
            self.cards[card].mixed = bool(mode)
        return 0

    def nvmlDeviceGetSupportedVgpus(self: StandIn, card: int) -> list[int]:
        return list(self.cards[card].types)

    def nvmlDeviceGetCreatableVgpus(self: StandIn, card: int) -> list[int]:
        return list(self.cards[card].types)[:1]

    def nvmlVgpuTypeGetName(self: StandIn, number: int) -> str:
        for card in self.cards:
            if number in card.types:
                return card.types[number][0]
        raise error(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlVgpuTypeGetFramebufferSize(self: StandIn, number: int) -> int:
        return next(card.types[number][1] for card in self.cards if number in card.types) * 2**20

    def nvmlVgpuTypeGetMaxInstances(self: StandIn, card: int, number: int) -> int:
        return 12

    def nvmlVgpuTypeGetGpuInstanceProfileId(self: StandIn, number: int) -> int:
        return 0xFFFFFFFF

    def nvmlDeviceGetActiveVgpus(self: StandIn, card: int) -> list[int]:
        return list(self.cards[card].vgpus)

    def nvmlVgpuInstanceGetVmID(self: StandIn, number: int) -> tuple[bytes, int]:
        return _vgpu(self, number)["vm"].encode(), 1

    def nvmlVgpuInstanceGetVmDriverVersion(self: StandIn, number: int) -> str:
        return str(_vgpu(self, number).get("driver", "Not Available"))

    def nvmlVgpuInstanceGetLicenseInfo(self: StandIn, number: int) -> Any:
        info = pynvml.c_nvmlVgpuLicenseInfo_t()
        info.isLicensed = int(_vgpu(self, number)["licensed"])
        return info

    def nvmlVgpuInstanceGetType(self: StandIn, number: int) -> int:
        return int(_vgpu(self, number)["type"])

    def nvmlVgpuInstanceGetGpuInstanceId(self: StandIn, number: int) -> int:
        return 0xFFFFFFFF

    def nvmlVgpuInstanceGetPlacementId(self: StandIn, number: int) -> int:
        return 6

    def nvmlDeviceGetComputeRunningProcesses(self: StandIn, card: int) -> list[Any]:
        return [types.SimpleNamespace(pid=pid) for pid in self.cards[card].processes]

    def nvmlDeviceGetGpuFabricInfoV(self: StandIn, card: int, info: Any) -> int:
        info._obj.state = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        return 0


def _vgpu(nvml: StandIn, number: int) -> dict[str, Any]:
    return next(card.vgpus[number] for card in nvml.cards if number in card.vgpus)
