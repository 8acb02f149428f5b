"""A whole card for one guest: libvirt hands it over with its companions, once nothing on the host needs it."""

from __future__ import annotations

from vmgpu.errors import HostRefused, ReasonCode, reason
from vmgpu.hypervisor import Carved, Pci, SliceRef, inventory, pci
from vmgpu.hypervisor.carvers.functions import Ask


class PassthroughCarver:
    """`ask` is hostctl on the card's host; None means a host without it, where libvirt alone refuses."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask

    def carve(self, ref: SliceRef) -> Carved:
        """The card and its companions; refused when the host has begun to need them since the survey."""
        address = ref.gpu.address
        if address is None:
            raise HostRefused(f"Card {ref.gpu.id} has no PCI address", hint="Survey the host again.")
        companions = ref.gpu.companions if self._ask is None else _checked(self._ask, address, ref)
        # managed: libvirt unbinds the host's driver at start and gives the card back when the guest ends
        return Carved(tuple(Pci(each, managed=True) for each in (address, *companions)))

    def release(self, ref: SliceRef) -> None:
        """libvirt gave the card back when the guest ended."""


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
    found = pci.obstacles(functions[address], functions, allow_vm=ref.vm_id)
    if found:
        first = found[0]
        cure = first.reason.cure() if first.reason else ""
        raise HostRefused("; ".join(each.sentence for each in found), hint=cure, reason=first.reason)
    return pci.companions(functions[address], functions)


def _unhealthy(address: str, detail: str) -> HostRefused:
    why = reason(ReasonCode.card_unhealthy, gpu=address, detail=detail)
    return HostRefused(why.sentence(), hint=why.cure(), reason=why)
