"""A vGPU type on a virtual function: set once, refused when taken, always read back."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from vmgpu.hypervisor.hostctl import vgpu
from vmgpu.hypervisor.hostctl.files import Files
from vmgpu.hypervisor.hostctl.patterns import Arguments
from vmgpu.hypervisor.hostctl.refusal import Refusal

from .standin import Card, StandIn
from .tree import DEVICES, EIO, FULL, Driver, Tree, hour

PF, VF = "0000:41:00.0", "0000:41:00.4"
CURRENT = f"{DEVICES}/{VF}/nvidia/current_vgpu_type"
PARAMS = f"{DEVICES}/{VF}/nvidia/vgpu_params"


@pytest.fixture
def card(tree: Tree) -> Tree:
    tree.card(PF, vfs_most=16)
    tree.vf(PF, 0)
    return tree


def ask(files: Files, action: str, address: str = VF, **arguments: Any) -> dict[str, Any]:
    return vgpu.run(files, Arguments({"action": action, "address": address, **arguments}), hour())


def refused(files: Files, code: str, action: str, address: str = VF, **arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(files, action, address, **arguments)
    assert caught.value.code == code, caught.value.message
    assert caught.value.message and "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("wanted", ["NVIDIA L40S-4Q", "L40S-4Q", 1150, "1150"])
def test_a_type_by_name_and_number(card: Tree, wanted: str | int) -> None:
    card.write(f"{DEVICES}/{VF}/nvidia/gpu_instance_id", "5\n")
    card.write(f"{DEVICES}/{VF}/nvidia/placement_id", "8\n")
    made = ask(card.files, "set", type=wanted)
    assert made == {"type": 1150, "name": "NVIDIA L40S-4Q", "gpu_instance": 5, "placement": 8}
    assert card.read(CURRENT) == "1150"


def test_the_guides_form_of_the_list(card: Tree) -> None:
    card.write(f"{DEVICES}/{VF}/nvidia/creatable_vgpu_types", "NVIDIA A40-1Q  557\nNVIDIA A40-2Q 558\n")
    assert ask(card.files, "set", type="A40-2Q")["type"] == 558


def test_a_longer_name_is_another_type(card: Tree) -> None:
    card.write(f"{DEVICES}/{VF}/nvidia/creatable_vgpu_types", "50 : GRID P40-2B4\n")
    assert "GRID P40-2B4" in refused(card.files, "refused", "set", type="P40-2B").hint


def test_the_same_again_is_done_already(card: Tree, nvml: Callable[..., StandIn]) -> None:
    card.write(CURRENT, "1150\n")
    card.write(f"{DEVICES}/{VF}/nvidia/creatable_vgpu_types", FULL)
    files = Driver(card.root, lambda path, text: None)
    assert ask(files, "set", type=1150)["type"] == 1150
    nvml(Card(types={1150: ("NVIDIA L40S-4Q", 4096)}))
    assert ask(files, "set", type="L40S-4Q")["name"] == "NVIDIA L40S-4Q"
    assert files.written == []


@pytest.mark.parametrize("wanted", [1148, "L40S-2Q", "L40S-4Q"])
def test_another_type_is_there(card: Tree, wanted: str | int) -> None:
    card.write(CURRENT, "1150\n")  # without NVML its name is unknown, and so a wish by name is another
    no = refused(card.files, "busy", "set", type=wanted)
    assert "1150" in no.message and "Clear" in no.hint
    assert card.read(CURRENT) == "1150\n"


def test_a_full_card_and_an_unknown_type(card: Tree) -> None:
    assert "L40S-1Q" in refused(card.files, "refused", "set", type="L40S-48Q").hint
    card.write(f"{DEVICES}/{VF}/nvidia/creatable_vgpu_types", FULL)
    assert "full" in refused(card.files, "refused", "set", type=1150).hint
    card.link(f"{DEVICES}/{VF}/nvidia/creatable_vgpu_types", EIO)
    refused(card.files, "failed", "set", type=1150)
    assert card.read(CURRENT) == "0\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EIO, "refused"), (errno.EINVAL, "refused"), (errno.EBUSY, "in_use"), (errno.ENOSPC, "refused")],
)
def test_the_drivers_no(card: Tree, number: int, code: str) -> None:
    def no(path: str, text: str) -> None:
        raise OSError(number, "no")

    refusal = refused(Driver(card.root, no), code, "set", type=1150)
    assert refusal.number == number and refusal.hint


def test_a_write_that_changes_nothing(card: Tree) -> None:
    class Deaf(Files):
        def write(self, path: str, text: str) -> None:
            pass

    assert "reads 0" in refused(Deaf(card.root), "failed", "set", type=1150).message
    card.write(CURRENT, "1150\n")
    assert "still reads type 1150" in refused(Deaf(card.root), "failed", "clear").message


def test_a_placement_is_asked_after_the_type(card: Tree) -> None:
    files = Driver(card.root, lambda path, text: None)
    ask(files, "set", type=1150, placement=0)
    assert files.written == [(CURRENT, "1150"), (PARAMS, "vgpu-placement-id=0")]


def test_a_placement_that_an_earlier_call_left_out(card: Tree) -> None:
    card.write(CURRENT, "1150\n")
    files = Driver(card.root, lambda path, text: None)
    ask(files, "set", type=1150, placement=6)
    assert files.written == [(PARAMS, "vgpu-placement-id=6")]
    card.write(f"{DEVICES}/{VF}/nvidia/placement_id", "6\n")
    assert ask(files, "set", type=1150, placement=6)["placement"] == 6
    assert len(files.written) == 1


def test_a_refused_placement_leaves_no_type(card: Tree) -> None:
    def no_params(path: str, text: str) -> None:
        if path == PARAMS:
            raise OSError(errno.EINVAL, "no")

    assert refused(Driver(card.root, no_params), "refused", "set", type=1150, placement=7).number == errno.EINVAL
    assert card.read(CURRENT) == "0"


def test_clear(card: Tree) -> None:
    nothing = {"type": 0, "name": None, "gpu_instance": None, "placement": None}
    files = Driver(card.root, lambda path, text: None)
    assert ask(files, "clear") == nothing and files.written == []
    card.write(CURRENT, "1150\n")
    assert ask(files, "clear") == nothing and card.read(CURRENT) == "0"


def test_a_guests_vgpu_is_not_taken(card: Tree) -> None:
    card.write(CURRENT, "1150\n")
    group = (card.root / DEVICES / VF / "iommu_group").readlink().name
    card.process(77, "qemu-system-x86", f"/dev/vfio/{group}")
    assert "process 77" in refused(card.files, "in_use", "clear").message
    assert card.read(CURRENT) == "1150\n"


def test_what_is_no_virtual_function_of_this_kind(card: Tree) -> None:
    for action in ("set", "clear"):
        more = {"type": 1150} if action == "set" else {}
        refused(card.files, "not_found", action, "0000:99:00.4", **more)
        refused(card.files, "not_supported", action, PF, **more)
    card.link(CURRENT, EIO)
    refused(card.files, "failed", "clear")
    card.write(CURRENT, "")
    refused(card.files, "failed", "set", type=1150)


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "make"},
        {"action": "set"},
        {"action": "set", "type": "../x"},
        {"action": "set", "type": 1150, "placement": -1},
        {"action": "set", "type": 1150, "placement": "7\nvgpu-x=1"},
        {"action": "set", "type": 1150, "size": 4},
        {"action": "clear", "address": "0000:41:00.4/.."},
        {"action": "mixed"},
        {"action": "mixed", "on": 1},
    ],
)
def test_wrong_use(card: Tree, arguments: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        vgpu.run(card.files, Arguments({"address": VF, **arguments}), hour())
    assert caught.value.code == "bad_argument"
    assert card.read(CURRENT) == "0\n"


def test_mixed_sizes(card: Tree, nvml: Callable[..., StandIn]) -> None:
    made = nvml(Card(mixed=False))
    assert ask(card.files, "mixed", PF, on=True) == {"supported": True, "on": True}
    made.calls.clear()
    assert ask(card.files, "mixed", PF, on=True)["on"]
    assert "nvmlDeviceSetVgpuHeterogeneousMode" not in made.calls
    assert ask(card.files, "mixed", PF, on=False) == {"supported": True, "on": False}


def test_mixed_sizes_refused(card: Tree, nvml: Callable[..., StandIn]) -> None:
    refused(card.files, "no_nvml", "mixed", PF, on=True)
    nvml(Card())
    refused(card.files, "not_supported", "mixed", PF, on=True)
    refused(card.files, "not_found", "mixed", "0000:42:00.0", on=True)
    nvml(Card(mixed=False, vgpus={1: {}}))
    refused(card.files, "in_use", "mixed", PF, on=True)
    nvml(Card(mixed=False, stubborn=True))
    refused(card.files, "failed", "mixed", PF, on=True)
