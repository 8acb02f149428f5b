"""What NVML hands out: handles of devices, GPU instances and vGPUs, and what becomes of old ones."""

from __future__ import annotations

from collections.abc import Iterable

from tests.gpuhost.card import Card, GpuInstance, Vgpu
from tests.gpuhost.catalogue import Profile, VgpuType
from tests.gpuhost.host import Host, active
from tests.gpuhost.refusal import Nvml, Refused

Values = Iterable[object]


def not_supported() -> Refused:
    """This GPU or this mode does not have it."""
    return Refused("not supported", code=Nvml.NOT_SUPPORTED)


class Handles:
    """Finds what a handle means now."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def _card(self, handle: int) -> Card:
        card = next((each for each in self._host.visible if device_handle(each) == handle), None)
        if card is None:
            raise Refused("no such device", code=Nvml.INVALID_ARGUMENT)
        if card.dead:
            raise Refused("GPU has fallen off the bus", code=Nvml.GPU_IS_LOST)
        return card

    def _vgpu_card(self, handle: int) -> Card:
        card = self._card(handle)
        if not card.model.vgpu:
            raise not_supported()
        return card

    def _mig_card(self, handle: int) -> Card:
        card = self._card(handle)
        if not card.model.profiles:
            raise not_supported()
        return card

    def _instance(self, handle: int) -> tuple[Card, GpuInstance]:
        """Handles of instances die with a reset, an unbind or a change of mode."""
        for card in self._host.visible:
            for instance in card.instances.values():
                if instance_handle(card, instance) == handle:
                    return card, instance
        raise Refused("dead handle", code=Nvml.INVALID_ARGUMENT)

    def _type(self, number: int) -> VgpuType:
        for card in self._host.visible:
            found = card.model.type(number)
            if found:
                return found
        raise Refused("no such type", code=Nvml.INVALID_ARGUMENT)

    def _vgpu(self, handle: int) -> tuple[Card, Vgpu]:
        found = next(((card, each) for card, each in active(self._host) if each.handle == handle), None)
        if found is None:
            raise Refused("no such vGPU", code=Nvml.NOT_FOUND)
        return found


def device_handle(card: Card) -> int:
    return card.number + 1


def instance_handle(card: Card, instance: GpuInstance) -> int:
    return (card.number + 1) << 40 | (card.generation & 0xFFFF) << 16 | instance.id + 1


def profile_of(card: Card, number: int) -> Profile:
    found = card.model.profile(number)
    if found is None:
        raise Refused("no such profile", code=Nvml.INVALID_ARGUMENT)
    return found
