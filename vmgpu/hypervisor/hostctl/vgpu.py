"""A vGPU on a virtual function: set, cleared and read back; and a card's mixed-size mode."""

from __future__ import annotations

import errno
from typing import Any

from . import holders, nvml_facts, vgpu_files
from .bus import DEVICES
from .deadline import Deadline
from .files import Files
from .nvml import Absent, Nvml, needed, session, text
from .patterns import Arguments
from .refusal import Refusal, of_kernel

_HINTS = {
    errno.EIO: "The card is full, its GPU instances are missing, or nvidia-vgpu-mgr does not run; see the kernel log.",
    errno.EINVAL: "This type cannot be made here now; list what can.",
    errno.EBUSY: "A guest has it open: stop the guest first.",
}


def run(files: Files, arguments: Arguments, deadline: Deadline) -> dict[str, Any]:
    """The verb."""
    action = arguments.choice("action", "set", "clear", "mixed")
    address = arguments.address()
    if action == "mixed":
        arguments.only("action", "address", "on")
        on = arguments.flag("on")
        files.may_write()
        with needed(files) as nvml:
            return _mix(nvml, address, on=on)
    if action == "clear":
        arguments.only("action", "address")
        files.may_write()
        return _clear(files, _folder(files, address), address)
    arguments.only("action", "address", "type", "placement")
    wanted, placement = arguments.vgpu_type(), arguments.maybe_number("placement", most=2**16)
    files.may_write()
    return _set(files, _folder(files, address), address, wanted, placement)


def _folder(files: Files, address: str) -> str:
    folder = f"{DEVICES}/{address}"
    if not files.exists(folder):
        raise Refusal("not_found", f"There is no function {address}", hint="Are the card's virtual functions on?")
    if not files.exists(f"{folder}/nvidia/current_vgpu_type"):
        raise Refusal(
            "not_supported",
            f"{address} takes no vGPU type",
            hint="It is no virtual function of a card under NVIDIA's vGPU manager, or this host works by mdev.",
        )
    return folder


def _set(files: Files, folder: str, address: str, wanted: int | str, placement: int | None) -> dict[str, Any]:
    current = _current(files, folder, address)
    if current:
        name = _name(files, current)
        if wanted != current and not (isinstance(wanted, str) and name and _same(name, wanted)):
            raise Refusal(
                "busy",
                f"{address} already holds vGPU type {current}" + (f" ({name})" if name else ""),
                hint="Clear it first, or take another virtual function.",
            )
        if placement is not None and vgpu_files.placement(files, folder) != placement:
            _place(files, folder, address, placement)  # an earlier call may have ended between its two writes
        return _state(files, folder, current, name)
    number, name = _resolved(files, folder, address, wanted)
    _write(files, f"{folder}/nvidia/current_vgpu_type", str(number), f"Type {number} on {address}")
    seen = _current(files, folder, address)
    if seen != number:
        raise Refusal("failed", f"{address} was given vGPU type {number} and reads {seen}", hint="See the kernel log.")
    if placement is not None:
        try:
            _place(files, folder, address, placement)
        except Refusal:
            # ours, a moment old, and at no place we know: no guest can have it yet
            _write(files, f"{folder}/nvidia/current_vgpu_type", "0", f"Taking type {number} back from {address}")
            raise
    return _state(files, folder, number, name)


def _place(files: Files, folder: str, address: str, placement: int) -> None:
    """Ask for a place on the card: after the type is made, before its guest starts."""
    doing = f"Placement {placement} on {address}"
    _write(files, f"{folder}/nvidia/vgpu_params", f"vgpu-placement-id={placement}", doing)


def _clear(files: Files, folder: str, address: str) -> dict[str, Any]:
    if _current(files, folder, address):
        held = holders.Holders(files).of(address, _group(files, folder))
        if held:
            raise Refusal(
                "in_use",
                f"{address} is held open by process {held[0]['pid']} ({held[0]['command']})",
                hint="Stop its guest first.",
            )
        _write(files, f"{folder}/nvidia/current_vgpu_type", "0", f"Clearing {address}")
        seen = _current(files, folder, address)
        if seen:
            raise Refusal("failed", f"{address} was cleared and still reads type {seen}", hint="See the kernel log.")
    return {"type": 0, "name": None, "gpu_instance": None, "placement": None}


def _current(files: Files, folder: str, address: str) -> int:
    current = files.number(f"{folder}/nvidia/current_vgpu_type")
    if current is None:
        raise Refusal(
            "failed", f"The vGPU type of {address} cannot be read", hint="The driver may hang; see the kernel log."
        )
    return current


def _write(files: Files, path: str, content: str, doing: str) -> None:
    try:
        files.write(path, content)
    except OSError as error:
        no = of_kernel(error, doing, hint=_HINTS.get(error.errno or 0, "See the kernel log."))
        raise Refusal("in_use" if no.code == "busy" else no.code, no.message, hint=no.hint, number=no.number) from error


def _resolved(files: Files, folder: str, address: str, wanted: int | str) -> tuple[int, str | None]:
    """The number of a type that the driver offers here now; numbers differ between driver branches, names do not."""
    offered = vgpu_files.creatable(files, folder)
    if offered is None:
        raise Refusal("failed", f"What {address} can hold cannot be read", hint="See the kernel log.")
    for each in offered:
        if each["id"] == wanted or (isinstance(wanted, str) and each["name"] and _same(each["name"], wanted)):
            return each["id"], each["name"]
    names = ", ".join(each["name"] or str(each["id"]) for each in offered)
    raise Refusal(
        "refused",
        f"vGPU type {wanted} cannot be made on {address} now",
        hint=f"It offers: {names[:600]}." if offered else "It offers nothing: the card is full, or its MIG layout is.",
    )


def _same(name: str, wanted: str) -> bool:
    """Exact but for the maker: P40-2B must not be taken for P40-2B4."""
    return name == wanted or vgpu_files.short(name) == vgpu_files.short(wanted)


def _name(files: Files, number: int) -> str | None:
    """A taken VF no longer lists its type; NVML knows the name of every number."""
    try:
        with session(files) as nvml:
            return text(nvml.ask("nvmlVgpuTypeGetName", number))
    except Absent:
        return None


def _state(files: Files, folder: str, number: int, name: str | None) -> dict[str, Any]:
    return {
        "type": number,
        "name": name,
        "gpu_instance": vgpu_files.instance(files, folder),
        "placement": vgpu_files.placement(files, folder),
    }


def _group(files: Files, folder: str) -> int | None:
    group = files.link(f"{folder}/iommu_group") or ""
    return int(group) if group.isascii() and group.isdigit() else None


def _mix(nvml: Nvml, address: str, *, on: bool) -> dict[str, Any]:
    device = nvml.device(address)
    seen = nvml_facts.mixed(nvml, device)
    if seen is None or not (seen["supported"] or seen["on"]):
        if not on:
            return {"supported": False, "on": False}
        raise Refusal("not_supported", f"Card {address} holds no vGPUs of mixed sizes")
    if seen["on"] != on:
        nvml.call("nvmlDeviceSetVgpuHeterogeneousMode", device, int(on))
        seen = nvml_facts.mixed(nvml, device) or seen
    if seen["on"] != on:
        raise Refusal(
            "failed",
            f"Card {address} did not take mixed-size mode {'on' if on else 'off'}",
            hint="Only after the virtual functions are on and before the first vGPU is made.",
        )
    return seen
