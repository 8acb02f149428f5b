"""Carvers answer with data, may be asked twice, and refuse a card that the host has begun to need."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from vmgpu.errors import HostRefused, Invalid, ReasonCode
from vmgpu.hypervisor import Carver, Emulated, GpuRef, Pci, SliceRef
from vmgpu.hypervisor.carvers import carver_for
from vmgpu.hypervisor.carvers.emulated import scale
from vmgpu.hypervisor.hostctl_client import LocalHostCtl
from vmgpu.hypervisor.pci import window_mib

from .host_tree import Tree

CARD = "0000:65:00.0"
VM = "0f8b5a0e-1111-4222-8333-944455556666"


def piece(mode: str, *, address: str | None = CARD, model: str = "A100-40GB", memory_mib: int = 19968) -> SliceRef:
    gpu = GpuRef(id="g1", mode=mode, model=model, address=address, companions=("0000:65:00.1",))
    return SliceRef("s1", VM, gpu, "3g.20gb", start=0, cells=4, compute=3, memory_mib=memory_mib)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.function(CARD, group=38, driver="nvidia")
    tree.function("0000:65:00.1", ids="10de:1aef", class_code="040300", group=38, driver="snd_hda_intel")
    tree.function("0000:64:00.0", ids="8086:2030", class_code="060400", group=38, driver="pcieport")
    return tree


def no_libvirt() -> AbstractContextManager[object]:
    raise AssertionError("nothing is asked of libvirt")


def whole(root: Path | None) -> Carver:
    """The carver of whole cards on a host of these files; None: on a host without hostctl."""
    return carver_for("passthrough", None, ask=LocalHostCtl(root).call if root else None, use=no_libvirt)


def refusal(carver: Carver) -> HostRefused:
    with pytest.raises(HostRefused) as refused:
        carver.carve(piece("passthrough"))
    return refused.value


def test_an_emulated_slice_is_a_scale_model_and_says_so() -> None:
    carver = carver_for("emulated", None, ask=None, use=no_libvirt)
    ref = piece("emulated", address=None)
    expected = (Emulated(video_mib=64, label="vmgpu emulated A100-40GB 3g.20gb 19968 MiB"),)
    assert carver.carve(ref).devices == carver.carve(ref).devices == expected
    carver.release(ref)
    carver.release(ref)


@pytest.mark.parametrize(
    ("memory_mib", "video_mib"),
    [(1, 16), (4864, 16), (5120, 16), (5121, 32), (9856, 32), (19968, 64), (40192, 128), (81559, 256), (10**6, 256)],
)
def test_the_scale(memory_mib: int, video_mib: int) -> None:
    assert scale(memory_mib) == video_mib


def test_a_whole_card_goes_with_its_sound_but_without_its_bridge(tree: Tree) -> None:
    carver = whole(tree.root)
    ref = piece("passthrough")
    assert carver.carve(ref).devices == carver.carve(ref).devices == (Pci(CARD), Pci("0000:65:00.1"))
    carver.release(ref)


def test_another_machines_card_is_carved_as_it_was_surveyed() -> None:
    carver = whole(None)
    assert carver.carve(piece("passthrough")).devices == (Pci(CARD), Pci("0000:65:00.1"))


def test_a_console_is_refused_with_its_reason(tree: Tree) -> None:
    tree.write(f"sys/bus/pci/devices/{CARD}/boot_vga", "1\n")
    refused = refusal(whole(tree.root))
    assert refused.reason is not None and refused.reason.code is ReasonCode.card_is_console
    assert refused.reason.args == {"gpu": CARD} and refused.hint


def test_a_group_with_a_stranger_is_refused(tree: Tree) -> None:
    tree.function("0000:66:00.0", ids="8086:10fb", class_code="020000", group=38, driver="ixgbe")
    carver = whole(tree.root)
    refused = refusal(carver)
    assert refused.reason is not None and refused.reason.code is ReasonCode.group_not_viable
    assert "0000:66:00.0 (class 0200, driver ixgbe)" in refused.message


def test_a_held_card_is_refused_unless_the_holder_is_the_vm_itself(tree: Tree) -> None:
    tree.write(f"proc/driver/nvidia/gpus/{CARD}/information", "Device Minor: \t 0\n")
    tree.process(812, "nvidia-persistenced", "/dev/nvidia0")
    refused = refusal(whole(tree.root))
    assert refused.reason is not None and refused.reason.code is ReasonCode.card_held_open
    assert refused.reason.args["pid"] == 812 and "nvidia-persistenced" in refused.message


def test_a_card_of_its_group_is_not_taken_from_a_process_that_has_it(tree: Tree) -> None:
    mate = "0000:66:00.0"
    tree.function(mate, group=38, driver="nvidia")
    tree.write(f"proc/driver/nvidia/gpus/{mate}/information", "Device Minor: \t 1\n")
    tree.process(812, "nvidia-persistenced", "/dev/nvidia1")
    ref = piece("passthrough")
    with pytest.raises(HostRefused, match=f"{mate}.*812") as refused:
        whole(tree.root).carve(replace(ref, gpu=replace(ref.gpu, mates=(mate,))))
    assert refused.value.reason and refused.value.reason.code is ReasonCode.card_held_open


@pytest.mark.parametrize(("uuid", "held"), [(VM, False), ("11111111-1111-4222-8333-944455556666", True)])
def test_carving_again_under_the_running_vm_finds_it_cut(tree: Tree, uuid: str, held: bool) -> None:
    tree.process(900, "qemu-system-x86", "/dev/vfio/38", words=("qemu-system-x86_64", "-uuid", uuid))
    carver = whole(tree.root)
    if held:
        assert "process 900" in refusal(carver).message
    else:
        assert carver.carve(piece("passthrough")).devices[0] == Pci(CARD)


def test_a_dead_or_vanished_card_is_unhealthy(tree: Tree, tmp_path: Path) -> None:
    carver = whole(tree.root)
    (tree.root / f"sys/bus/pci/devices/{CARD}/config").write_bytes(b"\xff" * 64)
    assert "all ones" in refusal(carver).message
    vanished = refusal(whole(tmp_path / "elsewhere"))
    assert vanished.reason is not None and vanished.reason.code is ReasonCode.card_unhealthy


def test_another_device_at_its_address_is_refused(tree: Tree) -> None:
    carver = whole(tree.root)
    assert carver.carve(piece("passthrough", model="10de:20b5")).devices
    tree.write(f"sys/bus/pci/devices/{CARD}/device", "0x1eb8\n")
    with pytest.raises(HostRefused, match=r"another device \(10de:1eb8\)") as refused:
        carver.carve(piece("passthrough", model="10de:20b5"))
    assert refused.value.reason and refused.value.reason.code is ReasonCode.card_unhealthy


def test_no_iommu_is_refused_in_words(tree: Tree) -> None:
    (tree.root / f"sys/bus/pci/devices/{CARD}/iommu_group").unlink()
    assert "IOMMU is off" in refusal(whole(tree.root)).message


@pytest.mark.parametrize(("mode", "framework"), [("mig", "other"), ("vgpu", "x"), ("", None), ("Passthrough", None)])
def test_an_unknown_mode_is_said_clearly(mode: str, framework: str | None, tree: Tree) -> None:
    with pytest.raises(Invalid, match="No way is known"):
        carver_for(mode, framework, ask=LocalHostCtl(tree.root).call, use=no_libvirt)


def test_a_host_without_hostctl_is_told_from_one_that_cannot() -> None:
    with pytest.raises(Invalid, match="hostctl, which this host lacks"):
        carver_for("vgpu", "vfio", ask=None, use=no_libvirt)


@pytest.mark.parametrize(
    ("bars", "window"),
    [
        ((), 0),
        ((16, 128, 32), 0),
        ((16, 256, 32), 32 << 10),
        ((16, 16 << 10, 32), 32 << 10),
        ((16, 64 << 10, 32), 128 << 10),
        ((64 << 10,), 64 << 10),
        ((256 << 10, 32) * 4, 2 << 20),
    ],
)
def test_the_window_holds_all_bars(bars: tuple[int, ...], window: int) -> None:
    assert window_mib(bars) == window
