"""NVML's view of the cards; its absence in every form is a state of the host."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable

import pytest

from vmgpu.hypervisor.hostctl import nvml_facts
from vmgpu.hypervisor.hostctl.nvml import sysfs_address
from vmgpu.hypervisor.hostctl.vgpu_files import Modes

from .standin import A100, Card, StandIn
from .tree import Tree

VM = "083bc63f-1111-4222-8333-944455556666"


@pytest.mark.parametrize(
    ("number", "state"), [(12, "no_library"), (9, "no_driver"), (18, "error"), (4, "error"), (999, "error")]
)
def test_without_nvml(tree: Tree, nvml: Callable[..., StandIn], number: int, state: str) -> None:
    nvml(start=number)
    seen = nvml_facts.look(tree.files)
    assert seen["state"] == state and seen["error"] and seen["devices"] == [] and seen["driver"] is None


def test_without_the_module(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_facts.look(tree.files)["state"] == "no_module"


def test_without_the_library_its_module_is_not_read(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading pynvml takes a slow host half a minute of the twenty seconds that the facts have."""
    asked = []

    def no_library(name: str) -> None:
        asked.append(name)
        raise OSError("cannot open shared object file")

    class NoReading:
        def find_spec(self, name: str, *_: object) -> None:
            assert name != "pynvml", "read all the same"

    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.setattr(sys, "meta_path", [NoReading(), *sys.meta_path])
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    assert nvml_facts.look(tree.files)["state"] == "no_library"
    assert asked == ["libnvidia-ml.so.1"]


def test_a_card_with_vgpus(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    tree.process(55, "nvidia-vgpu-mgr")
    nvml(
        Card(
            types={1150: ("NVIDIA L40S-4Q", 4096), 1156: ("NVIDIA L40S-48Q", 49152)},
            vgpus={
                9: {"vm": VM.upper(), "type": 1150, "driver": "580.105.08", "licensed": 1},
                10: {"vm": "not a uuid", "type": 1150, "licensed": 1},
            },
            mixed=True,
            processes=[55],
        )
    )
    seen = nvml_facts.look(tree.files)
    (card,) = seen["devices"]
    assert (seen["state"], seen["driver"], seen["error"]) == ("ok", "570.133.20", None)
    assert (card["address"], card["uuid"], card["name"], card["memory_mib"]) == (
        "0000:41:00.0",
        "GPU-0",
        "NVIDIA Made-up",
        46068,
    )
    assert card["mig"] is None and card["profiles"] == [] and card["instances"] == []
    assert (card["virtualization"], card["sriov"]) == ("host_vgpu", True)
    assert card["mixed"] == {"supported": True, "on": True}
    assert card["vgpu_types"][1] == {
        "id": 1156,
        "name": "NVIDIA L40S-48Q",
        "class": None,
        "framebuffer_mib": 49152,
        "most": 12,
        "most_per_vm": None,
        "gi_profile": None,
        "most_per_instance": None,
        "license": None,
    }
    assert card["creatable"] == [1150]
    first, second = card["vgpus"]
    assert (first["vm"], first["type"], first["placement"], first["gpu_instance"]) == (VM, 1150, 6, None)
    assert (first["driver"], first["licensed"]) == ("580.105.08", True)
    # its guest's driver is not loaded: whether it is licensed is unknown, not false
    assert (second["vm"], second["driver"], second["licensed"]) == (None, None, None)
    assert card["processes"] == [{"pid": 55, "command": "nvidia-vgpu-mgr"}]
    assert card["fabric"] == {"state": "completed"}
    assert card["serial"] is None and card["ecc"] is None and card["module_id"] is None
    assert nvml_facts.modes(seen) == {"0000:41:00.0": Modes(mig=None, mixed=True)}


def test_a_card_in_pieces(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    nvml(Card(mig=[1, 0], profiles=A100, instances={1: (9, 0, 4)}), Card("00000000:42:00.0", mig=[0, 0], profiles=A100))
    first, second = nvml_facts.look(tree.files)["devices"]
    assert first["mig"] == {"current": True, "pending": False}
    assert [each["name"] for each in first["instances"]] == ["3g.20gb"]
    assert second["instances"] == [] and len(second["profiles"]) == 4


def test_a_lost_card_does_not_hide_the_others(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    nvml(Card(lost=True), Card("00000000:42:00.0"))
    files = tree.files
    assert [each["address"] for each in nvml_facts.look(files)["devices"]] == ["0000:42:00.0"]
    assert len(files.troubles) == 1 and "nvmlDeviceGetHandleByIndex" in files.troubles[0]


def test_a_library_older_than_its_bindings(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    made = nvml(Card())

    def too_old(handle: object) -> None:
        raise made.NVMLLibraryMismatchError("use a versioned function")

    made.nvmlDeviceGetComputeRunningProcesses = too_old
    files = tree.files
    assert nvml_facts.look(files)["devices"][0]["processes"] == []
    assert files.troubles == []


def test_a_driver_that_hangs_leaves_the_other_facts(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    made, over = nvml(Card()), threading.Event()
    made.nvmlDeviceGetUUID = lambda handle: over.wait(30)
    seen = nvml_facts.look(tree.files, seconds=0.2)
    over.set()
    assert seen["state"] == "error" and "hung while asking NVML: nvmlDeviceGetUUID" in seen["error"]


def test_an_answer_that_nobody_expected(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    nvml(Card()).nvmlDeviceGetMemoryInfo = lambda handle: "much"
    seen = nvml_facts.look(tree.files)
    assert seen["state"] == "error" and "AttributeError" in seen["error"]


def test_what_each_type_is_called_is_asked_once(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    types = {1150: ("NVIDIA L40S-4Q", 4096)}
    made = nvml(Card(types=types), Card("00000000:42:00.0", types=types))
    nvml_facts.look(tree.files)
    assert made.calls.count("nvmlVgpuTypeGetName") == 1 and made.calls.count("nvmlVgpuTypeGetMaxInstances") == 2
    assert made.calls[-1] == "nvmlShutdown"


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("00000001:C8:00.0", "0001:c8:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000:41:00.0", "0000:41:00.0"),
        ("", ""),
        ("N/A", ""),
        ("x:41:00.0", ""),
    ],
)
def test_addresses(written: str, address: str) -> None:
    assert sysfs_address(written) == address
