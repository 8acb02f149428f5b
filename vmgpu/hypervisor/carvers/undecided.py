"""A card whose functions were off when it was surveyed: how its vGPUs reach a guest shows once they are on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vmgpu.errors import HostRefused
from vmgpu.hypervisor import Carved, Carver, SliceRef
from vmgpu.hypervisor.carvers import functions, mig
from vmgpu.hypervisor.carvers.functions import Ask


class UndecidedCarver:
    """`decided` gives the carver of a framework. Every call looks, until a survey has seen the functions on."""

    def __init__(self, mode: str, ask: Ask, decided: Callable[[str], Carver]) -> None:
        self._mode, self._ask, self._decided = mode, ask, decided

    def carve(self, ref: SliceRef) -> Carved:
        """Switch the functions on, see what they take, and cut that way."""
        if self._mode == "mig":
            mig.mode_on(self._ask, ref.gpu)  # the mode comes first: to switch it wipes the functions
        functions.of(self._ask, ref)
        framework = self._framework(ref)
        if framework is None:
            raise HostRefused(
                f"The virtual functions of card {ref.gpu.address} are on and take no vGPU",
                hint="Is NVIDIA's vGPU manager running there? Look at: journalctl -u nvidia-vgpu-mgr.",
            )
        return self._decided(framework).carve(_on_functions(ref, framework))

    def release(self, ref: SliceRef) -> None:
        """Give back what was cut that way; where the functions are off nothing is left of it."""
        if framework := self._framework(ref):
            self._decided(framework).release(_on_functions(ref, framework))

    def _framework(self, ref: SliceRef) -> str | None:
        there = functions.seen(self._ask, ref.gpu)
        if any(each.get("nvidia") is not None for each in there):
            return "vfio"
        return "mdev" if any(each.get("mdev_types") for each in there) else None


def _on_functions(ref: SliceRef, framework: str) -> SliceRef:
    return replace(ref, gpu=replace(ref.gpu, framework=framework, on_functions=True))
