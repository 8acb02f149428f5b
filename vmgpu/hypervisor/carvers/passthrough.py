"""A whole card for one guest: libvirt hands it over with its companions, once nothing on the host needs it."""

from __future__ import annotations

from typing import Any

from defusedxml import ElementTree

from vmgpu.errors import HostRefused, ReasonCode, reason
from vmgpu.hypervisor import Carved, GpuRef, Pci, SliceRef, inventory, pci
from vmgpu.hypervisor.carvers.functions import Ask
from vmgpu.hypervisor.carvers.mdev import Use, node_name
from vmgpu.hypervisor.connection import maybe


class PassthroughCarver:
    """`ask` is hostctl on the card's host; None means a host without it, where libvirt alone refuses.

    `use` gives a libvirt connection. A card on an NVSwitch fabric is taken from its driver first, then its partition is
    switched on, then the guest starts; and back in reverse, as NVIDIA's fabric manager guide has it.
    """

    def __init__(self, ask: Ask | None, use: Use) -> None:
        self._ask, self._use = ask, use

    def carve(self, ref: SliceRef) -> Carved:
        """The card and its companions; refused when the host has begun to need them since the survey.

        Other cards of its group are taken from the host's drivers: the group could not go to a guest otherwise.
        """
        address = ref.gpu.address
        if address is None:
            raise HostRefused(f"Card {ref.gpu.id} has no PCI address", hint="Survey the host again.")
        companions = ref.gpu.companions if self._ask is None else _checked(self._ask, address, ref)
        for name in self._beside(ref.gpu):
            with self._use() as connection:
                connection.nodeDeviceLookupByName(name).detachFlags(None)
        if self._ask is not None and ref.gpu.partition is not None:
            with self._use() as connection:
                connection.nodeDeviceLookupByName(node_name(address)).detachFlags(None)
            self._ask("partition", {"action": "activate", "id": ref.gpu.partition})
        # managed: libvirt unbinds the host's driver at start and gives the card back when the guest ends
        return Carved(tuple(Pci(each, managed=True) for each in (address, *companions)))

    def release(self, ref: SliceRef) -> None:
        """libvirt gave the card back when the guest ended; its partition and its group are ended here."""
        self._leave_fabric(ref.gpu)
        for name in self._beside(ref.gpu):
            with self._use() as connection:
                device = maybe(connection.nodeDeviceLookupByName, name)
                if device is not None:
                    device.reAttach()

    def _leave_fabric(self, gpu: GpuRef) -> None:
        if self._ask is None or gpu.partition is None or gpu.address is None:
            return
        self._ask("partition", {"action": "deactivate", "id": gpu.partition})
        with self._use() as connection:
            device = maybe(connection.nodeDeviceLookupByName, node_name(gpu.address))
            if device is not None and driver_of(device) == "vfio-pci":
                device.reset()  # what the guest left on the fabric's links goes with it
                device.reAttach()

    def _beside(self, gpu: GpuRef) -> list[str]:
        """What libvirt calls the functions of the other cards in the group."""
        if not gpu.mates:
            return []
        functions = inventory.functions_of(self._ask("facts", {})) if self._ask else {}
        boards = [functions.get(mate, pci.Function(mate)) for mate in gpu.mates]
        return [node_name(each) for board in boards for each in (board.address, *pci.companions(board, functions))]


def driver_of(device: Any) -> str | None:
    """The driver that a node device of libvirt is bound to."""
    return ElementTree.fromstring(device.XMLDesc(0)).findtext("driver/name")


def _checked(ask: Ask, address: str, ref: SliceRef) -> tuple[str, ...]:
    """The companions, after every refusal was looked at again; the guest that holds its own card is no obstacle."""
    told = ask("facts", {})
    functions = inventory.functions_of(told)
    if address not in functions:
        raise _unhealthy(address, "it is no longer on the PCI bus")
    if next(each for each in told["pci"] if each["address"] == address).get("dead"):
        raise _unhealthy(address, "its configuration space reads all ones")
    there = f"{functions[address].vendor}:{functions[address].device}"
    if ":" in ref.gpu.model and there != ref.gpu.model:
        raise _unhealthy(address, f"another device ({there}) is at its address since the last survey")
    found = pci.obstacles(functions[address], functions, mates=ref.gpu.mates, allow_vm=ref.vm_id)
    if found:
        first = found[0]
        cure = first.reason.cure() if first.reason else ""
        raise HostRefused("; ".join(each.sentence for each in found), hint=cure, reason=first.reason)
    return pci.companions(functions[address], functions)


def _unhealthy(address: str, detail: str) -> HostRefused:
    why = reason(ReasonCode.card_unhealthy, gpu=address, detail=detail)
    return HostRefused(why.sentence(), hint=why.cure(), reason=why)
