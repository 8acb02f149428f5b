"""What NVML says of each card that NVIDIA's driver has: identity, modes, instances, vGPU types and running vGPUs."""

from __future__ import annotations

import threading
from ctypes import byref
from typing import Any

from . import mig
from .files import Files
from .nvml import QUIET, Absent, Nvml, session, text
from .patterns import UUID
from .vgpu_files import Modes

SECONDS = 12.0  # of the facts' 20: the rest needs one
_MIXED_SIZES = 2  # NVML_DEVICE_VGPU_CAP_HETEROGENEOUS_TIMESLICE_SIZES
_MIXED = 0  # NVML_VGPU_PGPU_HETEROGENEOUS_MODE
_OTHER_VERSION = 25
_VIRTUALIZATION = ("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")
_FABRIC = (None, "not_started", "in_progress", "completed")
_NONE = 0xFFFFFFFF
_VM_UUID = 1


def look(files: Files, *, seconds: float = SECONDS) -> dict[str, Any]:
    """The state of NVML and its cards; a host without NVIDIA's driver has none, which is no error.

    When the driver hangs the rest of the facts is what tells why: NVML is asked from a thread that is left behind.
    """
    own = Files(files.root)
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(_look(own)), daemon=True)
    asking.start()
    asking.join(seconds)
    if not answers:
        return _absent("error", f"NVML did not answer within {seconds:g} s; it hung while {own.doing}")
    files.opened += own.opened
    files.troubles += own.troubles
    return answers[0]


def _look(files: Files) -> dict[str, Any]:
    try:
        with session(files) as nvml:
            seen = _Seen(files, nvml)
            driver = text(nvml.ask("nvmlSystemGetDriverVersion"))
            devices = [seen.device(address, handle) for address, handle in nvml.devices()]
            return {"state": "ok", "driver": driver, "error": None, "devices": devices}
    except Absent as absent:
        return _absent(absent.state, absent.words)
    except Exception as error:  # one odd card must not cost the facts of the whole host
        return _absent("error", f"{type(error).__name__} while {files.doing}: {error}")


def _absent(state: str, words: str) -> dict[str, Any]:
    return {"state": state, "driver": None, "error": words, "devices": []}


def modes(seen: dict[str, Any]) -> dict[str, Modes]:
    """What spares reading files of VFs, by card."""
    return {
        each["address"]: Modes(
            mig=each["mig"]["current"] if each["mig"] else None, mixed=each["mixed"]["on"] if each["mixed"] else None
        )
        for each in seen["devices"]
    }


def mixed(nvml: Nvml, handle: Any) -> dict[str, Any] | None:
    """Whether a card can hold vGPUs of several sizes, and does; None where it holds none at all."""
    supported = nvml.ask("nvmlDeviceGetVgpuCapabilities", handle, _MIXED_SIZES)
    on = nvml.ask("nvmlDeviceGetVgpuHeterogeneousMode", handle)
    if supported is None and on is None:
        return None
    return {"supported": bool(supported), "on": bool(on)}


def known(number: Any) -> int | None:
    """An id, unless it is NVML's way to say none."""
    return None if number is None or number == _NONE else int(number)


class _Seen:
    def __init__(self, files: Files, nvml: Nvml) -> None:
        self._files = files
        self._nvml = nvml
        self._types: dict[int, dict[str, Any]] = {}  # what a type is does not depend on the card
        self._spots: dict[int, dict[str, Any]] = {}  # nor where it may lie: a type is one board's

    def device(self, address: str, handle: Any) -> dict[str, Any]:
        ask = self._nvml.ask
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        mode = ask("nvmlDeviceGetMigMode", handle)
        ecc = ask("nvmlDeviceGetEccMode", handle)
        sriov = ask("nvmlDeviceGetHostVgpuMode", handle)
        display = ask("nvmlDeviceGetDisplayActive", handle)
        profiles = mig.profiles(self._nvml, handle) if mode else []
        sizes = mixed(self._nvml, handle)
        types = [self._type(handle, each) for each in ask("nvmlDeviceGetSupportedVgpus", handle) or []]
        if sizes and (sizes["supported"] or sizes["on"]):
            types = [{**each, **self._places(handle, each)} for each in types]
        return {
            "address": address,
            "uuid": text(ask("nvmlDeviceGetUUID", handle)),
            "serial": text(ask("nvmlDeviceGetSerial", handle)),
            "name": text(ask("nvmlDeviceGetName", handle)),
            "memory_mib": None if memory is None else memory.total // 2**20,
            # once a card is on vfio-pci nobody on the host can ask: the service keeps this
            "module_id": ask("nvmlDeviceGetModuleId", handle),
            "mig": _pair(mode),
            "virtualization": _word(_VIRTUALIZATION, ask("nvmlDeviceGetVirtualizationMode", handle)),
            "sriov": None if sriov is None else sriov == 1,
            "mixed": sizes,
            "profiles": profiles,
            "instances": mig.instances(self._nvml, handle, profiles) if mode and mode[0] == 1 else [],
            "vgpu_types": types,
            "creatable": list(ask("nvmlDeviceGetCreatableVgpus", handle) or []),
            "vgpus": [self._vgpu(each) for each in ask("nvmlDeviceGetActiveVgpus", handle) or []],
            "processes": self._processes(handle),
            "ecc": _pair(ecc),
            "display_active": None if display is None else display == 1,
            "fabric": self._fabric(handle),
        }

    def _type(self, handle: Any, number: int) -> dict[str, Any]:
        ask = self._nvml.ask
        if number not in self._types:
            framebuffer = ask("nvmlVgpuTypeGetFramebufferSize", number)
            self._types[number] = {
                "id": number,
                "name": text(ask("nvmlVgpuTypeGetName", number)),
                "class": text(ask("nvmlVgpuTypeGetClass", number)),
                "framebuffer_mib": None if framebuffer is None else framebuffer // 2**20,
                "most_per_vm": ask("nvmlVgpuTypeGetMaxInstancesPerVm", number),
                "gi_profile": known(ask("nvmlVgpuTypeGetGpuInstanceProfileId", number)),
                "most_per_instance": ask("nvmlVgpuTypeGetMaxInstancesPerGpuInstance", number),
                "license": text(ask("nvmlVgpuTypeGetLicense", number)),
            }
        return {**self._types[number], "most": ask("nvmlVgpuTypeGetMaxInstances", handle, number)}

    def _places(self, handle: Any, each: dict[str, Any]) -> dict[str, Any]:
        """Where a time-sliced type may lie in mixed-size mode, and how much of the card it covers there."""
        if each["gi_profile"] is not None:
            return {}
        if each["id"] not in self._spots:
            self._spots[each["id"]] = self._asked_places(handle, each["id"])
        return self._spots[each["id"]]

    def _asked_places(self, handle: Any, number: int) -> dict[str, Any]:
        name, quiet = "nvmlDeviceGetVgpuTypeSupportedPlacements", (*QUIET, _OTHER_VERSION)
        # the second form says how long its list may be; drivers that lack it are asked by the first, which does not
        told = self._nvml.ask(name, handle, number, _MIXED, 2, quiet=quiet)
        if told is None:
            told = self._nvml.ask(name, handle, number, _MIXED, 1, quiet=quiet)
        if told is None:
            return {}
        return {"placements": sorted(told.placementIds[: told.count]), "placement_size": told.placementSize}

    def _vgpu(self, number: int) -> dict[str, Any]:
        ask = self._nvml.ask
        owner, kind = ask("nvmlVgpuInstanceGetVmID", number) or (None, None)
        vm = (text(owner) or "").lower()
        driver = text(ask("nvmlVgpuInstanceGetVmDriverVersion", number))
        if driver is not None and driver.lower() in ("not available", "n/a"):
            driver = None
        # before its guest's driver runs nobody has asked for a licence: unknown, not unlicensed
        licence = ask("nvmlVgpuInstanceGetLicenseInfo", number) if driver else None
        return {
            "id": number,
            "uuid": text(ask("nvmlVgpuInstanceGetUUID", number)),
            "vm": vm if kind == _VM_UUID and UUID.fullmatch(vm) else None,
            "type": ask("nvmlVgpuInstanceGetType", number),
            "gpu_instance": known(ask("nvmlVgpuInstanceGetGpuInstanceId", number)),
            "placement": known(ask("nvmlVgpuInstanceGetPlacementId", number)),
            "driver": driver,
            "licensed": None if licence is None else licence.isLicensed == 1,
        }

    def _processes(self, handle: Any) -> list[dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for each in self._nvml.ask(name, handle) or []:
                command = self._files.text(f"proc/{int(each.pid)}/comm", quiet=True)
                found[each.pid] = {"pid": each.pid, "command": command or ""}
        return [found[pid] for pid in sorted(found)]

    def _fabric(self, handle: Any) -> dict[str, Any] | None:
        """How far this card is with the NVSwitch fabric; None where there is none."""
        form = getattr(self._nvml.module, "c_nvmlGpuFabricInfoV_t", None)
        if form is None:
            return None
        info = form()
        if self._nvml.ask("nvmlDeviceGetGpuFabricInfoV", handle, byref(info)) is None:
            return None
        state = _word(_FABRIC, info.state)
        return {"state": state} if state else None


def _pair(modes: Any) -> dict[str, bool] | None:
    return {"current": modes[0] == 1, "pending": modes[1] == 1} if modes else None


def _word(words: tuple[Any, ...], number: Any) -> Any:
    return words[number] if isinstance(number, int) and 0 <= number < len(words) else None
