"""NVML's calls about vGPU: types, vGPUs whose VM runs, mixed-size mode."""

from __future__ import annotations

from tests.gpuhost.host import active
from tests.gpuhost.nvml_handles import Handles, Values, not_supported

_NO_INSTANCE = 0xFFFFFFFF


class VgpuCalls(Handles):
    """One method per question of nvml_vgpu.c."""

    def supported(self, device: int) -> Values:
        types = self._vgpu_card(device).model.types
        return (len(types), *(each.id for each in types))

    def creatable(self, device: int) -> Values:
        types = self._vgpu_card(device).creatable()
        return (len(types), *(each.id for each in types))

    def type_name(self, number: int) -> Values:
        return (self._type(number).name,)

    def type_class(self, number: int) -> Values:
        return (self._type(number).klass,)

    def type_license(self, number: int) -> Values:
        return (self._type(number).license,)

    def type_framebuffer(self, number: int) -> Values:
        return (self._type(number).framebuffer_mib << 20,)

    def type_heads(self, number: int) -> Values:
        return (self._type(number).heads,)

    def type_frame_rate(self, number: int) -> Values:
        return (self._type(number).frame_rate,)

    def type_resolution(self, number: int) -> Values:
        return self._type(number).resolution

    def type_most(self, device: int, number: int) -> Values:
        card, wanted = self._card(device), self._type(number)
        return (len(wanted.starts) if card.mixed and wanted.profile is None else wanted.most,)

    def type_most_per_vm(self, number: int) -> Values:
        self._type(number)
        return (16,)

    def type_most_per_instance(self, number: int) -> Values:
        return (self._type(number).per_instance,)

    def type_profile(self, number: int) -> Values:
        profile = self._type(number).profile
        return (_NO_INSTANCE if profile is None else profile,)

    def supported_placements(self, device: int, number: int) -> Values:
        self._vgpu_card(device)
        wanted = self._type(number)
        return (wanted.gb, len(wanted.starts), *wanted.starts)

    def creatable_placements(self, device: int, number: int) -> Values:
        card, wanted = self._vgpu_card(device), self._type(number)
        free = [start for start in wanted.starts if card.room(wanted) and card.placement_free(start, wanted.gb)]
        return (wanted.gb, len(free), *free)

    # vGPUs

    def active(self, device: int) -> Values:
        card = self._vgpu_card(device)
        mine = [each.handle for owner, each in active(self._host) if owner is card]
        return (len(mine), *mine)

    def vgpu_vm(self, handle: int) -> Values:
        return (self._vgpu(handle)[1].vm,)

    def vgpu_uuid(self, handle: int) -> Values:
        return (f"00000000-0000-4000-8000-{handle:012d}",)

    def vgpu_mdev(self, handle: int) -> Values:
        _, vgpu = self._vgpu(handle)
        if vgpu.seat == vgpu.parent:
            raise not_supported()
        return (vgpu.seat,)

    def vgpu_type(self, handle: int) -> Values:
        return (self._vgpu(handle)[1].type.id,)

    def vgpu_instance(self, handle: int) -> Values:
        instance = self._vgpu(handle)[1].instance
        return (_NO_INSTANCE if instance is None else instance,)

    def vgpu_placement(self, handle: int) -> Values:
        placement = self._vgpu(handle)[1].placement
        if placement is None:
            raise not_supported()
        return (placement,)

    def vgpu_driver(self, handle: int) -> Values:
        return (self._vgpu(handle)[1].guest_driver or "Not Available",)

    def vgpu_license(self, handle: int) -> Values:
        """Licensed or not, and the state: 5 licensed, 2 unlicensed but unrestricted, 1 no guest driver yet."""
        vgpu = self._vgpu(handle)[1]
        return (int(vgpu.licensed), 5 if vgpu.licensed else 2 if vgpu.guest_driver else 1)

    # modes of vGPU

    def mixed(self, device: int) -> Values:
        card = self._vgpu_card(device)
        if not card.model.mixed:
            raise not_supported()
        return (int(card.mixed),)

    def set_mixed(self, device: int, on: int) -> Values:
        self._vgpu_card(device).set_mixed(bool(on))
        return ()

    def capability(self, device: int, number: int) -> Values:
        """0 fractional multi-vGPU, 1 mixed profiles, 2 mixed sizes, 10 and 11 several vGPUs in one instance."""
        card = self._vgpu_card(device)
        shares = int(any(each.per_instance > 1 for each in card.model.types))
        known: dict[int, int] = {0: 1, 1: 1, 2: int(card.model.mixed), 10: shares, 11: shares}
        return (known.get(number, 0),)
