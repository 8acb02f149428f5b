"""MIG-backed vGPUs: an instance at the slice's place, and on it a vGPU; what the driver took is read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vmgpu.errors import HostRefused, ReasonCode, reason
from vmgpu.hypervisor import Carved, GpuRef, Pci, SliceRef
from vmgpu.hypervisor.carvers import functions
from vmgpu.hypervisor.carvers.functions import Ask
from vmgpu.hypervisor.carvers.mdev import MdevCarver

Instance = Mapping[str, Any]


class MigCarver:
    """`ask` is hostctl on the card's host. Mode, functions, instances, types come in this order, and go in reverse.

    `mdevs` where vGPUs are mediated devices: which instance one took shows only while its guest runs, and any of its
    size is as good. One that a running guest has by such a choice is not destroyed; the slice waits for that guest.
    """

    def __init__(self, ask: Ask, mdevs: MdevCarver | None = None) -> None:
        self._ask, self._mdevs = ask, mdevs

    def carve(self, ref: SliceRef) -> Carved:
        """An instance at the slice's place with a vGPU on it; where the driver chose another, that is followed."""
        mode_on(self._ask, ref.gpu)
        address = functions.of(self._ask, ref)
        own = self._instance_at(ref, ref.start) or self._made(ref)
        if self._mdevs:
            return self._mdevs.carve(ref)
        told = self._ask("vgpu", {"action": "set", "address": address, "type": ref.type or ref.profile})
        device = Pci(address, managed=False)
        took = told.get("gpu_instance")
        if took is None or took == own["instance"]:
            return Carved((device,))
        other = next((each for each in self._instances(ref.gpu) if each["instance"] == took), None)
        if other is None or other["profile"] != own["profile"]:
            self._ask("vgpu", {"action": "clear", "address": address})
            self._destroy(ref.gpu, own)
            why = reason(ReasonCode.card_unhealthy, gpu=ref.gpu.address, detail=f"its driver took instance {took}")
            raise HostRefused(why.sentence(), hint=why.cure(), reason=why)
        # a free instance of the same size was left over: the vGPU lies there, and ours is not needed
        self._destroy(ref.gpu, own)
        return Carved((device,), start=int(other["start"]))

    def release(self, ref: SliceRef) -> None:
        """The vGPU first, then the instance that lies at the slice's place."""
        address = functions.known(self._ask, ref)
        if self._mdevs:
            self._mdevs.release(ref)
        elif address is not None:
            self._ask("vgpu", {"action": "clear", "address": address})
        if own := self._instance_at(ref, ref.start):
            self._destroy(ref.gpu, own)

    def _made(self, ref: SliceRef) -> Instance:
        profiles = self._ask("mig", {"action": "list", "address": ref.gpu.address})["profiles"]
        profile = next((each for each in profiles if each["name"] == ref.profile), None)
        if profile is None:
            raise HostRefused(f"Card {ref.gpu.address} has no profile {ref.profile}", hint="Survey the host again.")
        wanted = {"profile": profile["id"], "start": ref.start, "size": ref.cells}
        return self._ask("mig", {"action": "create", "address": ref.gpu.address, **wanted})

    def _instance_at(self, ref: SliceRef, start: int) -> Instance | None:
        here = [each for each in self._instances(ref.gpu) if each["start"] == start]
        if here and here[0]["size"] != ref.cells:
            raise HostRefused(
                f"On card {ref.gpu.address} an instance that is not ours lies at {start}",
                hint="Destroy it by hand (nvidia-smi mig -dgi), or keep the card out: vmgpu gpu offer --off.",
            )
        return here[0] if here else None

    def _instances(self, gpu: GpuRef) -> list[Instance]:
        return list(self._ask("mig", {"action": "list", "address": gpu.address})["instances"])

    def _destroy(self, gpu: GpuRef, instance: Instance) -> None:
        self._ask("mig", {"action": "destroy", "address": gpu.address, "instance": instance["instance"]})


def mode_on(ask: Ask, gpu: GpuRef) -> None:
    """Switch MIG on. A card that takes the mode at its next reset is reset, where nothing holds it."""
    asked = {"action": "mode", "address": gpu.address, "on": True}
    mode = ask("mig", asked)
    if not mode.get("current") and not mode.get("holders"):
        ask("reset", {"address": gpu.address})
        mode = ask("mig", asked)
    if mode.get("current"):
        return
    held = ", ".join(f"process {each['pid']} ({each['command']})" for each in mode.get("holders") or ())
    raise HostRefused(
        f"MIG mode of card {gpu.address} is pending: " + (f"held by {held}" if held else "it waits for a reset"),
        hint=(f"End {held}; the mode then comes by itself at the next try." if held else "Reboot the host."),
    )
