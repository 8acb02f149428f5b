"""The real pynvml, through the C library, against the same host as the files."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.gpuhost import FakeHost
from tests.gpuhost.conftest import Start
from tests.gpuhost.describe import named

PF = "0000:41:00.0"
VM = "22222222-bbbb-4bbb-8bbb-00000000000a"
_FRAME = """
import json, sys
from ctypes import byref, c_uint
from pynvml import *

def refused(call, *arguments):
    try:
        call(*arguments)
    except NVMLError as error:
        return type(error).__name__

def cut(device, profile, start=None, size=0):
    if start is None:
        return nvmlDeviceCreateGpuInstance(device, profile)
    return nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, byref(c_nvmlGpuInstancePlacement_t(start, size)))

def where(instance):
    info = nvmlGpuInstanceGetInfo(instance)
    return [info.id, info.profileId, info.placement.start, info.placement.size]

def instances(device, profile, most):
    found, count = (c_nvmlGpuInstance_t * most)(), c_uint(most)
    nvmlDeviceGetGpuInstances(device, profile, found, byref(count))
    return [found[n] for n in range(count.value)]

def places(device, profile):
    count = c_uint(0)
    nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, None, byref(count))
    found = (c_nvmlGpuInstancePlacement_t * count.value)()
    nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, found, byref(count))
    return [[each.start, each.size] for each in found]

nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0) if nvmlDeviceGetCount() else None
"""


def ask(host: FakeHost, text: str) -> Any:
    """What the expression `told` is after these statements."""
    program = f"{_FRAME}\n{text}\nprint(json.dumps(told))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=host.environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_card_is_who_it_is(start: Start) -> None:
    host = start("h100")
    told = ask(
        host,
        """
pci = nvmlDeviceGetPciInfo(gpu)
memory = nvmlDeviceGetMemoryInfo(gpu)
told = [nvmlSystemGetDriverVersion(), nvmlDeviceGetName(gpu), pci.busId, hex(pci.pciDeviceId), memory.total >> 20,
  nvmlDeviceGetUUID(gpu), nvmlDeviceGetSerial(gpu), nvmlDeviceGetIndex(gpu), nvmlDeviceGetVirtualizationMode(gpu),
  nvmlDeviceGetHostVgpuMode(gpu), nvmlDeviceGetMigMode(gpu), nvmlDeviceGetEccMode(gpu), nvmlDeviceGetDisplayActive(gpu),
  nvmlDeviceGetUUID(nvmlDeviceGetHandleByPciBusId("00000000:41:00.0")) == nvmlDeviceGetUUID(gpu),
  refused(nvmlDeviceGetHandleByPciBusId, "00000000:42:00.0"), refused(nvmlDeviceGetFanSpeed, gpu),
  refused(nvmlDeviceGetHandleByIndex, 1)]""",
    )
    card = host.model.state()["cards"][PF]
    assert told[:5] == ["570.133.20", "NVIDIA H100 80GB HBM3", "00000000:41:00.0", "0x233010de", 81559]
    assert told[5] == card["uuid"]
    assert told[7:14] == [0, 3, 1, [0, 0], [1, 1], 0, True]
    assert told[14:] == ["NVMLError_NotFound", "NVMLError_FunctionNotFound", "NVMLError_InvalidArgument"]


def test_profiles_are_walked_by_number_until_the_driver_knows_no_more(start: Start) -> None:
    host = start("a100")
    told = ask(
        host,
        """
told = []
for number in range(NVML_GPU_INSTANCE_PROFILE_COUNT + 1):
    error = refused(nvmlDeviceGetGpuInstanceProfileInfo, gpu, number)
    if error:
        told.append(error)
        continue
    info = nvmlDeviceGetGpuInstanceProfileInfo(gpu, number)
    told.append([info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount, info.memorySizeMB, info.name,
      places(gpu, info.id)[-1]])""",
    )
    assert told[0] == [19, 1, 7, 14, 4864, "MIG 1g.5gb", [6, 1]]
    assert told[9] == [15, 1, 4, 14, 9856, "MIG 1g.10gb", [6, 2]]
    assert told[4] == [0, 7, 1, 98, 40192, "MIG 7g.40gb", [0, 8]]
    assert told[5] == told[0x11] == "NVMLError_NotSupported"
    assert told[-1] == "NVMLError_InvalidArgument"


def test_instances_are_cut_listed_and_destroyed(start: Start) -> None:
    host = start("h100")
    told = ask(
        host,
        """
off = [refused(nvmlDeviceCreateGpuInstance, gpu, 19), refused(nvmlDeviceGetGpuInstanceRemainingCapacity, gpu, 19)]
status = nvmlDeviceSetMigMode(gpu, 1)
wide = cut(gpu, 9)
narrow = cut(gpu, 19, 2, 1)
told = [off, status, nvmlDeviceGetMigMode(gpu), where(wide), where(narrow),
  refused(cut, gpu, 19, 2, 1), refused(cut, gpu, 14, 6, 2), refused(cut, gpu, 77),
  nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19), [where(each) for each in instances(gpu, 19, 7)],
  where(nvmlDeviceGetGpuInstanceById(gpu, 9)), refused(nvmlDeviceGetGpuInstanceById, gpu, 5)]
compute = nvmlGpuInstanceCreateComputeInstance(narrow, 0)
told.append(refused(nvmlGpuInstanceDestroy, narrow))
nvmlComputeInstanceDestroy(compute)
nvmlGpuInstanceDestroy(narrow)
told.append(refused(nvmlGpuInstanceGetInfo, narrow))""",
    )
    no_room, bad = "NVMLError_InsufficientResources", "NVMLError_InvalidArgument"
    assert told[:5] == [["NVMLError_NotSupported"] * 2, 0, [1, 1], [2, 9, 4, 4], [9, 19, 2, 1]]
    assert told[5:8] == [no_room, bad, bad]
    assert told[8:] == [3, [[9, 19, 2, 1]], [9, 19, 2, 1], "NVMLError_NotFound", "NVMLError_InUse", bad]
    assert host.model.state()["cards"][PF]["instances"] == [[2, "3g.40gb", 4]]


def test_the_mode_stays_pending_while_the_card_is_in_use(start: Start) -> None:
    host = start("a100")
    pid = host.model.hold(PF, "nv-hostengine")
    told = ask(
        host,
        """
told = [nvmlDeviceSetMigMode(gpu, 1), nvmlDeviceGetMigMode(gpu),
  [each.pid for each in nvmlDeviceGetComputeRunningProcesses(gpu)]]""",
    )
    assert told == [19, [0, 1], [pid]]


def test_types_tell_size_class_and_instance(start: Start) -> None:
    host = start("rtxpro6000")
    told = ask(
        host,
        """
def about(number):
    return [nvmlVgpuTypeGetName(number), nvmlVgpuTypeGetClass(number), nvmlVgpuTypeGetFramebufferSize(number) >> 20,
      nvmlVgpuTypeGetMaxInstances(gpu, number), nvmlVgpuTypeGetMaxInstancesPerVm(number),
      nvmlVgpuTypeGetMaxInstancesPerGpuInstance(number), nvmlVgpuTypeGetGpuInstanceProfileId(number),
      nvmlVgpuTypeGetResolution(number), nvmlVgpuTypeGetNumDisplayHeads(number), nvmlVgpuTypeGetFrameRateLimit(number)]
told = [len(nvmlDeviceGetSupportedVgpus(gpu)), about(1502), about(1524), nvmlVgpuTypeGetLicense(1502),
  [nvmlDeviceGetVgpuCapabilities(gpu, each) for each in (2, 9, 10)]]""",
    )
    name = "NVIDIA RTX Pro 6000 Blackwell DC-"
    assert told[0] == 27
    assert told[1] == [f"{name}3Q", "Quadro", 3072, 32, 16, 1, 0xFFFFFFFF, [7680, 4320], 4, 60]
    assert told[2] == [f"{name}1-8Q", "Quadro", 8192, 12, 16, 3, 47, [7680, 4320], 4, 60]
    assert told[3].startswith("GRID-Virtual-WS") and told[4] == [1, 0, 1]


def test_a_vgpu_is_active_while_its_vm_runs(start: Start) -> None:
    host = start("a2")
    look = """
def vm(v):
    uuid, kind = nvmlVgpuInstanceGetVmID(v)
    return [uuid.decode(), kind]  # bytes: pynvml decodes only what is not in a tuple
told = [[vm(v), nvmlVgpuInstanceGetMdevUUID(v), nvmlVgpuTypeGetName(nvmlVgpuInstanceGetType(v)),
  nvmlVgpuInstanceGetGpuInstanceId(v), nvmlVgpuInstanceGetVmDriverVersion(v),
  nvmlVgpuInstanceGetLicenseInfo(v).isLicensed, nvmlVgpuInstanceGetLicenseInfo(v).currentState]
  for v in nvmlDeviceGetActiveVgpus(gpu)]"""
    vm, mdev = "22222222-bbbb-4bbb-8bbb-000000000001", "11111111-aaaa-4aaa-8aaa-000000000001"
    assert ask(host, look)[0] == [[vm, 1], mdev, "NVIDIA A2-4Q", 0xFFFFFFFF, "Not Available", 0, 1]
    host.model.guest_ready(vm, "535.161.07")
    assert ask(host, look)[0][4:] == ["535.161.07", 1, 5]
    host.model.end_vm(vm)
    assert len(ask(host, look)) == 2
    assert ask(host, "told = nvmlDeviceGetCreatableVgpus(gpu)") == [746, 751, 754]  # the mdev is still there


def test_mixed_sizes_are_a_capability_and_a_mode(start: Start) -> None:
    host = start("l40s")
    told = ask(
        host,
        """
before = [nvmlDeviceGetVgpuCapabilities(gpu, 2), nvmlDeviceGetVgpuHeterogeneousMode(gpu)]
nvmlDeviceSetVgpuHeterogeneousMode(gpu, 1)
places = nvmlDeviceGetVgpuTypeSupportedPlacements(gpu, 1152)
told = [before, nvmlDeviceGetVgpuHeterogeneousMode(gpu), places.placementSize,
  [places.placementIds[n] for n in range(places.count)],
  nvmlVgpuTypeGetMaxInstances(gpu, 1152)]""",
    )
    assert told == [[1, 0], 1, 8, [0, 16, 24, 40], 4]


def test_a_card_on_vfio_is_invisible_and_indexes_shift(start: Start) -> None:
    host = start("t4")
    first = host.root / "sys/bus/pci/devices/0000:41:00.0"
    (first / "driver_override").write_text("vfio-pci")
    (first / "driver/unbind").write_text("0000:41:00.0")
    (host.root / "sys/bus/pci/drivers_probe").write_text("0000:41:00.0")
    told = ask(
        host,
        """
told = [nvmlDeviceGetCount(), nvmlDeviceGetPciInfo(gpu).busId,
  refused(nvmlDeviceGetHandleByPciBusId, "00000000:41:00.0")]""",
    )
    assert told == [1, "00000000:42:00.0", "NVMLError_NotFound"]


def test_the_files_and_the_library_never_disagree(start: Start) -> None:
    host = start("h100")
    subprocess.run([host.root / "usr/lib/nvidia/sriov-manage", "-e", PF], check=True, capture_output=True, timeout=30)
    ask(host, "nvmlDeviceSetMigMode(gpu, 1); cut(gpu, 19); told = 0")
    vf = host.root / f"sys/bus/pci/devices/{PF}/virtfn0/nvidia"
    listed = [int(line.split()[0]) for line in (vf / "creatable_vgpu_types").read_text().splitlines()[1:]]
    assert listed == ask(host, "told = nvmlDeviceGetCreatableVgpus(gpu)") == [1310]
    (vf / "current_vgpu_type").write_text("1310")
    host.model.start_vm(VM, ["0000:41:00.4"])
    told = ask(
        host,
        """
v, = nvmlDeviceGetActiveVgpus(gpu)
told = [nvmlVgpuInstanceGetGpuInstanceId(v), refused(nvmlVgpuInstanceGetMdevUUID, v),
  nvmlDeviceGetCreatableVgpus(gpu)]""",
    )
    assert told == [int((vf / "gpu_instance_id").read_text()), "NVMLError_NotSupported", []]


def test_an_hgx_board_tells_module_and_fabric(start: Start) -> None:
    host = start("h200")
    told = ask(
        host,
        """
fabric = c_nvmlGpuFabricInfo_v2_t()
nvmlDeviceGetGpuFabricInfoV(gpu, byref(fabric))
told = [[nvmlDeviceGetModuleId(nvmlDeviceGetHandleByIndex(n)) for n in range(nvmlDeviceGetCount())], fabric.state,
  [where(each) for each in instances(gpu, 9, 2)]]""",
    )
    assert told == [[5, 7, 6, 8, 1, 3, 2, 4], 3, [[2, 9, 4, 4]]]


def test_a_lost_card_and_bad_days(start: Start) -> None:
    host = start("t4")
    host.model.kill_card("0000:41:00.0")
    assert ask(host, "told = refused(nvmlDeviceGetName, gpu)") == "NVMLError_GpuIsLost"
    host.model.set_mood("nvml_error", path="type_class", code=13)
    assert ask(host, "told = refused(nvmlVgpuTypeGetClass, 232)") == "NVMLError_FunctionNotFound"
    host.model.set_mood("nvml_error", code=10, times=1)
    with pytest.raises(AssertionError, match="NVMLError_Timeout"):
        ask(host, "told = 0")


@pytest.mark.parametrize(("library", "error"), [(True, "DriverNotLoaded"), (False, "LibraryNotFound")])
def test_without_driver_there_is_no_view(start: Start, library: bool, error: str) -> None:
    told = named("t4")
    host = start({**told, "machine": {**told["machine"], "driver": ""}})
    program = "from pynvml import *\ntry:\n    nvmlInit()\nexcept NVMLError as error:\n    print(type(error).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=host.environment(library=library),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == f"NVMLError_{error}\n"


def test_a_library_that_hangs_goes_on_when_its_mood_is_lifted(start: Start) -> None:
    host = start("t4", mood={"kind": "nvml_hang", "path": "name"})
    program = "from pynvml import *; nvmlInit(); print(nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(0)))"
    asking = subprocess.Popen(
        [sys.executable, "-c", program], env=host.environment(), stdout=subprocess.PIPE, text=True
    )
    with pytest.raises(subprocess.TimeoutExpired):
        asking.wait(0.5)
    host.model.clear_moods()
    assert asking.communicate(timeout=10)[0] == "Tesla T4\n"
