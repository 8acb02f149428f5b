"""NVML's calls about MIG: mode, GPU instances, compute instances."""

from __future__ import annotations

from tests.gpuhost.card import Card
from tests.gpuhost.catalogue import Profile
from tests.gpuhost.nvml_handles import Handles, Values, device_handle, instance_handle, not_supported, profile_of
from tests.gpuhost.refusal import Nvml, Refused

_ENGINES = {"Ampere": (1, 0), "Hopper": (1, 0), "Blackwell": (1, 1)}  # decoders and encoders per slice
_CI_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}  # compute instance profile by enum; its id is the same number


class MigCalls(Handles):
    """One method per question of nvml_mig.c."""

    def mig_mode(self, device: int) -> Values:
        card = self._card(device)
        if not card.model.profiles:
            raise not_supported()
        return (int(card.mig), int(card.mig_pending))

    def set_mig_mode(self, device: int, on: int) -> Values:
        return (int(self._host.set_mig(self._card(device), bool(on))),)

    def profile_by_enum(self, device: int, enum: int) -> Values:
        card = self._mig_card(device)
        if enum > 0x11:
            raise Refused("unknown profile", code=Nvml.INVALID_ARGUMENT)
        found = next((each for each in card.model.profiles if each.enum == enum), None)
        if found is None:
            raise not_supported()
        return _told(card, found)

    def profile_by_id(self, device: int, number: int) -> Values:
        card = self._mig_card(device)
        return _told(card, profile_of(card, number))

    def placements(self, device: int, number: int) -> Values:
        """Works whether MIG is on or off."""
        profile = profile_of(self._mig_card(device), number)
        return (len(profile.starts), profile.size, *profile.starts)

    def remaining(self, device: int, number: int) -> Values:
        card = self._mig_card(device)
        if not card.mig:
            raise not_supported()
        return (card.remaining(profile_of(card, number)),)

    def create_instance(self, device: int, number: int, start: int, size: int) -> Values:
        card = self._mig_card(device)
        profile = profile_of(card, number)
        if start >= 0 and size != profile.size:
            raise Refused("wrong size", code=Nvml.INVALID_ARGUMENT)
        return (instance_handle(card, card.create_instance(profile, None if start < 0 else start)),)

    def instances(self, device: int, number: int) -> Values:
        card = self._mig_card(device)
        if not card.mig:
            raise not_supported()
        profile = profile_of(card, number)
        handles = [instance_handle(card, each) for each in card.instances.values() if each.profile == profile]
        return (len(handles), *handles)

    def instance_by_id(self, device: int, number: int) -> Values:
        card = self._mig_card(device)
        if number not in card.instances:
            raise Refused("no such instance", code=Nvml.NOT_FOUND)
        return (instance_handle(card, card.instances[number]),)

    def instance_info(self, handle: int) -> Values:
        card, instance = self._instance(handle)
        profile = instance.profile
        return (device_handle(card), instance.id, profile.id, instance.start, profile.size)

    def destroy_instance(self, handle: int) -> Values:
        card, instance = self._instance(handle)
        card.destroy_instance(instance.id)
        return ()

    # compute instances: their profile ids are their enums

    def compute_profile(self, handle: int, enum: int) -> Values:
        _, instance = self._instance(handle)
        slices = _CI_SLICES.get(enum)
        if slices is None or slices > instance.profile.slices:
            raise Refused("not here", code=Nvml.INVALID_ARGUMENT if enum > 8 else Nvml.NOT_SUPPORTED)
        sms = instance.profile.sms * slices // instance.profile.slices
        return (enum, slices, instance.profile.slices // slices, sms, f"{slices}c.{instance.profile.name}")

    def create_compute(self, handle: int, profile: int) -> Values:
        _, instance = self._instance(handle)
        slices = _CI_SLICES.get(profile, 99)
        if sum(instance.compute.values()) + slices > instance.profile.slices:
            raise Refused("Insufficient Resources", code=Nvml.INSUFFICIENT_RESOURCES)
        number = next(each for each in range(8) if each not in instance.compute)
        instance.compute[number] = slices
        return (handle << 4 | number,)

    def computes(self, handle: int, profile: int) -> Values:
        _, instance = self._instance(handle)
        slices = _CI_SLICES.get(profile)
        found = [handle << 4 | number for number, wide in instance.compute.items() if wide == slices]
        return (len(found), *found)

    def destroy_compute(self, handle: int) -> Values:
        _, instance = self._instance(handle >> 4)
        if instance.compute.pop(handle & 15, None) is None:
            raise Refused("no such compute instance", code=Nvml.INVALID_ARGUMENT)
        return ()


def _told(card: Card, profile: Profile) -> Values:
    """Id, slices, most instances, SMs, engines (copy, decoders, encoders, jpeg, ofa), memory in MiB, name."""
    decoders, encoders = _ENGINES.get(card.model.architecture, (0, 0))
    engines = (profile.slices, decoders * profile.slices, encoders * profile.slices, 0, int(profile.media))
    return (
        profile.id,
        profile.slices,
        profile.most,
        profile.sms,
        *engines,
        profile.memory_mib,
        f"MIG {profile.name}",
    )  # the driver's prefix
