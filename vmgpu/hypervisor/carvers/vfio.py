"""A vGPU by the driver's own files: a type is written to a virtual function, which then goes into the guest."""

from __future__ import annotations

from vmgpu.errors import HostRefused
from vmgpu.hypervisor import Carved, Pci, SliceRef
from vmgpu.hypervisor.carvers import functions
from vmgpu.hypervisor.carvers.functions import Ask


class VfioCarver:
    """`ask` is hostctl on the card's host; `mixed`: sizes side by side, each at its slice's place."""

    def __init__(self, ask: Ask, *, mixed: bool = False) -> None:
        self._ask, self._mixed = ask, mixed

    def carve(self, ref: SliceRef) -> Carved:
        """Write the slice's type to its function, or find it written."""
        address = functions.of(self._ask, ref)
        # the functions' coming has ended mixed-size mode, and the first vGPU keeps the card in the mode it is in
        self._ask("vgpu", {"action": "mixed", "address": ref.gpu.address, "on": self._mixed})
        place = {"placement": ref.start} if self._mixed else {}
        try:
            self._ask("vgpu", {"action": "set", "address": address, "type": ref.type or ref.profile, **place})
        except HostRefused as no:
            raise functions.strayed(self._ask, ref) or no from no
        # not managed: libvirt would bind the function to plain vfio-pci, and the vGPU would be gone
        return Carved((Pci(address, managed=False),))

    def release(self, ref: SliceRef) -> None:
        """Write 0 to its function; hostctl refuses that while a process holds it."""
        address = functions.known(self._ask, ref)
        if address is not None:
            self._ask("vgpu", {"action": "clear", "address": address})
