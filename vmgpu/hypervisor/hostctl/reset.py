"""The function-level reset of a card between two guests, and whether the card still answers after it."""

from __future__ import annotations

from typing import Any

from . import holders, pci
from .bus import DEVICES, Function, Ids
from .deadline import Deadline
from .files import Files
from .patterns import Arguments
from .refusal import Refusal, of_kernel

# These drive the card themselves and do not survive a reset under their feet.
_DRIVERS = ("nvidia", "nouveau", "amdgpu", "radeon", "i915", "xe", "gim")
_POWER = "Power-cycle the host; a card that does not answer is not given out before."


def run(files: Files, arguments: Arguments, deadline: Deadline) -> dict[str, Any]:
    """The verb."""
    arguments.only("address")
    address = arguments.address()
    files.may_write()
    folder = f"{DEVICES}/{address}"
    if not files.exists(folder):
        raise Refusal("not_found", f"There is no function {address}")
    group = files.link(f"{folder}/iommu_group") or ""
    function = Function(
        address=address,
        ids=Ids(),
        driver=files.link(f"{folder}/driver"),
        group=int(group) if group.isascii() and group.isdigit() else None,
        physfn=files.link(f"{folder}/physfn"),
        path=(),
    )
    _refuse_used(files, function)
    method = (files.text(f"{folder}/reset_method") or "").split()
    if not files.exists(f"{folder}/reset"):
        raise Refusal(
            "not_supported", f"{address} has no reset of its own", hint="Only a reset of its whole bus is left."
        )
    try:
        files.write(f"{folder}/reset", "1")
    except OSError as error:
        raise of_kernel(error, f"Resetting {address}", hint="See the kernel log.") from error
    dead = pci.is_dead(files, function)
    if dead is None:
        raise Refusal("failed", f"{address} was reset; whether it answers cannot be read", hint=_POWER)
    if dead:
        raise Refusal("dead", f"{address} does not answer after its reset", hint=_POWER)
    return {"method": method[0] if method else None, "ok": True}


def _refuse_used(files: Files, function: Function) -> None:
    held = holders.Holders(files).of(function.address, function.group)
    if held:
        raise Refusal(
            "in_use",
            f"{function.address} is held open by process {held[0]['pid']} ({held[0]['command']})",
            hint="Stop its guest, or end that process.",
        )
    if function.driver in _DRIVERS and function.physfn is None:
        raise Refusal(
            "in_use",
            f"{function.address} is driven by {function.driver}",
            hint="Give it to vfio-pci first; for a card of NVIDIA's own driver there is nvidia-smi --gpu-reset.",
        )
