"""The virtual functions of a card: which is a slice's, and switched on where they are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vmgpu.errors import HostRefused, ReasonCode, reason
from vmgpu.hypervisor import GpuRef, SliceRef

# A verb of hostctl with its arguments, on the card's host; raises HostRefused and HostUnreachable.
Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def seen(ask: Ask, gpu: GpuRef) -> list[Mapping[str, Any]]:
    """What hostctl tells of the card's virtual functions now."""
    told = ask("facts", {})
    return [each for each in told["pci"] if each.get("physfn") == gpu.address]


def of(ask: Ask, ref: SliceRef) -> str:
    """The address of the slice's function; the card's functions are switched on where a reboot has taken them."""
    addresses = ask("vfs", {"address": ref.gpu.address, "on": True})["vfs"]
    if ref.slot >= len(addresses):
        raise HostRefused(
            f"Card {ref.gpu.address} has {len(addresses)} virtual functions, and function {ref.slot} is needed",
            hint="Survey the host again: the card or its driver has changed.",
        )
    return str(addresses[ref.slot])


def strayed(ask: Ask, ref: SliceRef) -> HostRefused | None:
    """Whether a card that is cut into time-sliced vGPUs takes none because it is in MIG mode now."""
    devices = ask("facts", {})["nvml"]["devices"]
    if not any(each["address"] == ref.gpu.address and (each.get("mig") or {}).get("current") for each in devices):
        return None
    why = reason(ReasonCode.card_other_mode, gpu=ref.gpu.address, mode=ref.gpu.mode, now="mig")
    return HostRefused(why.sentence(), hint=why.cure(), reason=why)


def known(ask: Ask, ref: SliceRef) -> str | None:
    """The address of the slice's function; None where the functions are gone, and with them what was cut."""
    addresses = [str(each["address"]) for each in seen(ask, ref.gpu)]
    return addresses[ref.slot] if ref.slot < len(addresses) else None
