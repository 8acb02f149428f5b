"""MIG: its mode, GPU instances at the places asked for, and their end; by NVML, by id, never by order."""

from __future__ import annotations

from ctypes import byref, c_uint
from typing import Any

from . import holders
from .deadline import Deadline
from .files import Files
from .nvml import (
    FUNCTION_NOT_FOUND,
    IN_USE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    QUIET,
    RESET_REQUIRED,
    Nvml,
    needed,
    refusal,
    text,
)
from .patterns import Arguments
from .refusal import Refusal

_SHARED_ENGINE = 0
_ACTIVATION = {0: None, RESET_REQUIRED: "needs_reset", IN_USE: "in_use"}


def run(files: Files, arguments: Arguments, deadline: Deadline) -> dict[str, Any]:
    """The verb."""
    action = arguments.choice("action", "mode", "create", "destroy", "list")
    address = arguments.address()
    if action == "list":
        arguments.only("action", "address")
        with needed(files) as nvml:
            device = nvml.device(address)
            mode(nvml, device, address)
            known = profiles(nvml, device)
            return {"instances": instances(nvml, device, known, compute=True), "profiles": known}
    if action == "mode":
        arguments.only("action", "address", "on")
        wanted = arguments.flag("on")
        files.may_write()
        held = holders.Holders(files).of(address, None)  # looked at before NVML is opened: we would find ourselves
        with needed(files) as nvml:
            told = _switch(nvml, nvml.device(address), address, wanted=wanted)
        return told if told["activation"] is None else {**told, "holders": holders.named(held)}
    if action == "create":
        arguments.only("action", "address", "profile", "start", "size")
        profile, start, size = (arguments.number(each, most=2**16) for each in ("profile", "start", "size"))
        files.may_write()
        with needed(files) as nvml:
            return _create(nvml, nvml.device(address), address, (profile, start, size))
    arguments.only("action", "address", "instance")
    instance = arguments.number("instance", most=2**16)
    files.may_write()
    with needed(files) as nvml:
        return _destroy(nvml, nvml.device(address), address, instance)


def mode(nvml: Nvml, device: Any, address: str) -> tuple[bool, bool]:
    """Current and pending; a card without MIG is a refusal."""
    try:
        current, pending = nvml.call("nvmlDeviceGetMigMode", device)
    except Refusal as no:
        if no.code != "not_supported":
            raise
        raise Refusal("not_supported", f"Card {address} has no MIG") from no
    return current == 1, pending == 1


def profiles(nvml: Nvml, device: Any) -> list[dict[str, Any]]:
    """What the card can be cut into, its legal starts included; the same with MIG on or off."""
    found = []
    for number in range(getattr(nvml.module, "NVML_GPU_INSTANCE_PROFILE_COUNT", 0x12)):
        info = _profile(nvml, device, number)
        if info is None:
            break
        if info:
            places = _placements(nvml, device, info[0].id)
            found.append(
                {
                    "id": info[0].id,
                    # nvidia-smi prints "MIG 1g.10gb", the tables 1g.10gb
                    "name": (text(getattr(info[0], "name", None)) or "").replace("MIG ", "") or None,
                    "slices": info[0].sliceCount,
                    "memory_mib": info[0].memorySizeMB,
                    "instances": info[0].instanceCount,
                    "starts": sorted(each.start for each in places),
                    "size": places[0].size if places else None,
                }
            )
    return found


def instances(nvml: Nvml, device: Any, known: list[dict[str, Any]], *, compute: bool = False) -> list[dict[str, Any]]:
    """The GPU instances that are; none while MIG is off."""
    found = []
    for profile in known:
        room = (nvml.module.c_nvmlGpuInstance_t * max(1, profile["instances"]))()
        count = c_uint(len(room))
        if nvml.ask("nvmlDeviceGetGpuInstances", device, profile["id"], room, byref(count)) is None:
            continue
        for handle in room[: count.value]:
            info = nvml.ask("nvmlGpuInstanceGetInfo", handle)
            if info is None:
                continue
            one = {"instance": info.id, "profile": info.profileId, "name": profile["name"]}
            one.update(start=info.placement.start, size=info.placement.size)
            if compute:
                one["compute"] = len(_compute_instances(nvml, handle))
            found.append(one)
    return sorted(found, key=lambda each: each["start"])


def _switch(nvml: Nvml, device: Any, address: str, *, wanted: bool) -> dict[str, Any]:
    """Set the mode; a card in use keeps its current one, and `activation` says what the pending one waits for."""
    current, pending = mode(nvml, device, address)
    activation = None
    if pending != wanted or current != wanted:
        status = nvml.call("nvmlDeviceSetMigMode", device, int(wanted))
        current, pending = mode(nvml, device, address)
        if current != wanted:
            activation = _ACTIVATION.get(status) or "needs_reset"
        if pending != wanted:
            raise Refusal(
                "in_use" if status == IN_USE else "refused",
                f"Card {address} did not take MIG mode {'on' if wanted else 'off'} (status {status})",
                hint="Its vGPUs and instances must be gone, and nothing may hold it open.",
            )
    return {"current": current, "pending": pending, "activation": activation}


def _create(nvml: Nvml, device: Any, address: str, wanted: tuple[int, int, int]) -> dict[str, Any]:
    profile, start, size = wanted
    current, pending = mode(nvml, device, address)
    if not current:
        if pending:
            raise Refusal("needs_reset", f"MIG of card {address} waits for a reset", hint="Reboot the host.")
        raise Refusal("refused", f"MIG of card {address} is off", hint="Switch it on first: mig mode.")
    place = nvml.module.c_nvmlGpuInstancePlacement_t(start, size)
    what = f"Profile {profile} at {start} of card {address}"
    handle = _named(what, nvml, "nvmlDeviceCreateGpuInstanceWithPlacement", device, profile, byref(place))
    info = nvml.call("nvmlGpuInstanceGetInfo", handle)
    made = (info.profileId, info.placement.start, info.placement.size)
    if made != wanted:
        nvml.call("nvmlGpuInstanceDestroy", handle)
        raise Refusal("failed", f"Card {address} made profile, start, size {made} instead of {wanted}; taken back")
    return {"instance": info.id, "profile": profile, "start": start, "size": size}


def _destroy(nvml: Nvml, device: Any, address: str, instance: int) -> dict[str, Any]:
    mode(nvml, device, address)
    try:
        handle = nvml.raw("nvmlDeviceGetGpuInstanceById", device, instance)
    except nvml.module.NVMLError as error:
        if error.value in (NOT_FOUND, INVALID_ARGUMENT):  # drivers differ in which
            raise Refusal("not_found", f"Card {address} has no GPU instance {instance}") from error
        raise refusal(error, f"GPU instance {instance} of card {address}") from error
    for compute in _compute_instances(nvml, handle):
        what = f"A compute instance of GPU instance {instance} of card {address}"
        _named(what, nvml, "nvmlComputeInstanceDestroy", compute)
    _named(f"GPU instance {instance} of card {address}", nvml, "nvmlGpuInstanceDestroy", handle)
    return {"instance": instance}


def _named(what: str, nvml: Nvml, name: str, *arguments: Any) -> Any:
    """Call NVML; a refusal says what it was about."""
    try:
        return nvml.call(name, *arguments)
    except Refusal as no:
        hint = "Stop its guest or processes, and take its vGPU away first." if no.code == "in_use" else no.hint
        raise Refusal(no.code, f"{what}: {no.message}", hint=hint) from no


def _compute_instances(nvml: Nvml, instance: Any) -> list[Any]:
    found: list[Any] = []
    for number in range(getattr(nvml.module, "NVML_COMPUTE_INSTANCE_PROFILE_COUNT", 9)):
        name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        profile = nvml.ask(name, instance, number, _SHARED_ENGINE, quiet=(*QUIET, INVALID_ARGUMENT))
        if profile is None:
            continue
        room = (nvml.module.c_nvmlComputeInstance_t * max(1, profile.instanceCount))()
        count = c_uint(len(room))
        if nvml.ask("nvmlGpuInstanceGetComputeInstances", instance, profile.id, room, byref(count)) is not None:
            found += room[: count.value]
    return found


def _profile(nvml: Nvml, device: Any, number: int) -> list[Any] | None:
    """One profile in a list; [] where the card lacks it, None where the driver knows no such number and no later."""
    for version in (2, 1):
        try:
            return [nvml.raw("nvmlDeviceGetGpuInstanceProfileInfo", device, number, version)]
        except nvml.module.NVMLError as error:
            if error.value == INVALID_ARGUMENT:
                return None
            if error.value != FUNCTION_NOT_FOUND:
                return []
    return []


def _placements(nvml: Nvml, device: Any, profile: int) -> list[Any]:
    name, count = "nvmlDeviceGetGpuInstancePossiblePlacements", c_uint(0)
    try:
        nvml.raw(name, device, profile, None, byref(count))
    except nvml.module.NVMLError as error:
        if not count.value:
            nvml.trouble(f"NVML: {refusal(error, name).message}")
            return []
    room = (nvml.module.c_nvmlGpuInstancePlacement_t * count.value)()
    if not count.value or nvml.ask(name, device, profile, room, byref(count)) is None:
        return []
    return list(room[: count.value])
