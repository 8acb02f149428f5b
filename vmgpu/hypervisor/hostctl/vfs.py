"""A card's virtual functions, on or off: by NVIDIA's own program, or by the kernel's count for AMD and Intel."""

from __future__ import annotations

import time
from typing import Any

from . import holders
from .bus import DEVICES
from .deadline import Deadline
from .files import Files
from .patterns import ADDRESS, Arguments
from .pci import virtual_functions
from .programs import SRIOV_MANAGE
from .programs import run as run_program
from .refusal import Refusal, of_kernel

_TRIES, _PAUSE = 5, 1.0
_LOCKED = "Cannot obtain unbindLock"


def run(files: Files, arguments: Arguments, deadline: Deadline) -> dict[str, Any]:
    """The verb. A card that is as wanted is left alone: turning its VFs on again would wipe its GPU instances."""
    arguments.only("address", "on", "count")
    address, on = arguments.address(), arguments.flag("on")
    files.may_write()
    folder = f"{DEVICES}/{address}"
    if not files.exists(folder):
        raise Refusal("not_found", f"There is no function {address}")
    most = files.number(f"{folder}/sriov_totalvfs")
    if not most:
        raise Refusal(
            "not_supported",
            f"{address} offers no virtual functions",
            hint="Switch on SR-IOV, ARI and the IOMMU in the firmware; not every card has them.",
        )
    count = arguments.maybe_number("count", most=most)
    vendor = files.number(f"{folder}/vendor")
    if vendor == 0x10DE and count is not None:
        raise Refusal("bad_argument", "NVIDIA's cards turn on all their virtual functions", hint="Leave count out.")
    wanted = (count or most) if on else 0
    before = _vfs(files, folder)
    if not on:
        refuse_used(files, before)
    if (len(before) != wanted) if vendor != 0x10DE else (bool(before) != on):
        if vendor == 0x10DE:
            _manage(files, address, deadline, on=on)
        else:
            _count(files, folder, address, before, wanted)
    after = _vfs(files, folder)
    if bool(after) != on:
        raise Refusal(
            "failed",
            f"The virtual functions of {address} are still {'off' if on else 'on'}",
            hint="See the kernel log, and the journal of nvidia-vgpu-mgr.",
        )
    return {"vfs": after}


def _vfs(files: Files, folder: str) -> list[str]:
    return [each for each in virtual_functions(files, folder, set(files.names(folder))) if ADDRESS.fullmatch(each)]


def refuse_used(files: Files, vfs: list[str]) -> None:
    """Turning VFs off under a guest hangs the driver; under a type it loses what the service believes is there."""
    held = holders.Holders(files) if vfs else None
    for vf in vfs:
        group = files.link(f"{DEVICES}/{vf}/iommu_group") or ""
        holding = held.of(vf, int(group) if group.isascii() and group.isdigit() else None) if held else []
        if holding:
            raise Refusal(
                "in_use",
                f"{vf} is held open by process {holding[0]['pid']} ({holding[0]['command']})",
                hint="Stop its guest first.",
            )
        current = files.number(f"{DEVICES}/{vf}/nvidia/current_vgpu_type")
        if current:
            raise Refusal("busy", f"{vf} holds vGPU type {current}", hint="Clear it first.")


def _manage(files: Files, address: str, deadline: Deadline, *, on: bool) -> None:
    if not files.exists(SRIOV_MANAGE):
        raise Refusal(
            "not_supported",
            "sriov-manage is missing",
            hint="Install NVIDIA's vGPU host driver; the data-centre driver has no virtual functions.",
        )
    for attempt in range(1, _TRIES + 1):
        ran = run_program(files, SRIOV_MANAGE, ["-e" if on else "-d", address], deadline)
        if _LOCKED not in ran.output:
            break
        if attempt == _TRIES:
            raise Refusal(
                "in_use",
                f"sriov-manage: {ran.said()}",
                hint="Stop what uses the card: persistenced, DCGM, X, exporters.",
            )
        time.sleep(_PAUSE)
    if ran.status != 0:
        raise Refusal("refused", f"sriov-manage: {ran.said()}", hint="See the kernel log.")


def _count(files: Files, folder: str, address: str, before: list[str], wanted: int) -> None:
    if before and wanted:
        raise Refusal(
            "busy", f"{len(before)} virtual functions of {address} are on", hint="Turn them off before another count."
        )
    try:
        files.write(f"{folder}/sriov_numvfs", str(wanted))
    except OSError as error:
        raise of_kernel(error, f"{wanted} virtual functions of {address}", hint="See the kernel log.") from error
