"""The function-level reset of a card between two guests, and whether the card still answers after it."""

from __future__ import annotations

from typing import Any

from . import holders, mdev, pci
from .bus import DEVICES, Function, Ids
from .deadline import Deadline
from .files import Files
from .patterns import Arguments
from .pci import virtual_functions
from .programs import NVIDIA_SMI
from .programs import run as run_program
from .refusal import Refusal, of_kernel
from .vfs import refuse_used

# These drive the card themselves and do not survive a reset under their feet; NVIDIA's has a reset of its own.
_DRIVERS = ("nouveau", "amdgpu", "radeon", "i915", "xe", "gim")
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
    if function.driver == "nvidia" and function.physfn is None:
        return _by_driver(files, function, deadline)
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
            hint="Give it to vfio-pci first.",
        )


def _by_driver(files: Files, function: Function, deadline: Deadline) -> dict[str, Any]:
    """Ask NVIDIA's driver for a reset, after which a pending MIG mode is the current one.

    It wipes what is cut from the card, so that nothing may be: neither vGPUs nor mediated devices.
    """
    folder = f"{DEVICES}/{function.address}"
    vfs = virtual_functions(files, folder, set(files.names(folder)))
    refuse_used(files, vfs)
    for each in mdev.Mdevs(files).live:
        if each["parent"] in (function.address, *vfs):
            raise Refusal("busy", f"Mediated device {each['uuid']} is on {each['parent']}", hint="Remove it first.")
    if not files.exists(NVIDIA_SMI):
        raise Refusal("not_supported", "nvidia-smi is missing", hint="Install NVIDIA's driver whole, or reboot.")
    ran = run_program(files, NVIDIA_SMI, ["--gpu-reset", "-i", function.address], deadline)
    if ran.status != 0:
        raise Refusal(
            "refused",
            f"Resetting {function.address}: {ran.said()}",
            hint="End what uses the card (nvidia-persistenced, DCGM, exporters), or reboot the host.",
        )
    return {"method": "driver", "ok": True}
