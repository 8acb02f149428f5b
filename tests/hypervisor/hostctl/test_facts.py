"""One look at a host: everything that is there, nothing that is not, and few files opened for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vmgpu.hypervisor.hostctl import facts, pci, vgpu_files
from vmgpu.hypervisor.hostctl.files import Files
from vmgpu.hypervisor.hostctl.patterns import Arguments

from .standin import A100, Card, StandIn
from .tree import DEVICES, EIO, FULL, LISTED, NO_BAR, Tree, hour

PF, VM = "0000:41:00.0", "083bc63f-1111-4222-8333-944455556666"


def look(tree: Tree, files: Files | None = None) -> dict[str, Any]:
    return facts.run(files or tree.files, Arguments({}), hour())


def by_address(seen: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["address"]: each for each in seen["pci"]}


def test_a_folder_with_nothing_in_it(tree: Tree) -> None:
    seen = look(tree)
    assert seen["hostctl"] == "1" and seen["pci"] == [] and seen["errors"] == []
    assert seen["host"]["hostname"] is None and seen["host"]["kernel_log"] == []
    assert seen["nvml"]["state"] == "no_library" and seen["fabric"]["manager"] == "absent"


def test_a_card_in_full(tree: Tree) -> None:
    tree.function("0000:00:01.0", ids="8086:2f02", code="0604", driver="pcieport", current_link_width="16")
    tree.function("0000:00:1f.0", ids="8086:a1c1", code="0601")
    tree.card(PF)
    seen = by_address(look(tree))
    card = seen[PF]
    assert {name: card[name] for name in ("vendor", "device", "class", "subvendor", "subdevice", "driver")} == {
        "vendor": "10de",
        "device": "26b9",
        "class": "0302",
        "subvendor": "10de",
        "subdevice": "1851",
        "driver": "nvidia",
    }
    assert (card["numa"], card["group"], card["boot_vga"], card["bridge"], card["dead"]) == (1, 40, False, False, False)
    assert card["reset_methods"] == ["flr", "bus"] and card["power"] == "D0" and card["driver_override"] is None
    assert card["path"] == ["0000:00:01.0"] and card["physfn"] is None and card["holders"] == []
    assert card["link"] == {"width": 16, "max_width": 16, "speed": "16.0 GT/s PCIe", "max_speed": "16.0 GT/s PCIe"}
    assert card["bars"] == [
        {"index": 0, "size": 2**24, "start": 0xB0000000, "assigned": True},
        {"index": 1, "size": 2**36, "start": 0x380000000000, "assigned": True},
    ]
    assert seen["0000:00:01.0"]["bridge"] and seen["0000:00:01.0"]["link"]["width"] == 16
    assert set(seen["0000:00:1f.0"]) == {"address", "vendor", "device", "class", "driver", "group", "bridge"}
    assert not seen["0000:00:1f.0"]["bridge"]  # an ISA bridge is an endpoint to VFIO


@pytest.mark.parametrize(
    "missing", ["modalias", "resource", "config", "reset_method", "power_state", "driver", "numa_node"]
)
def test_any_file_may_be_missing(tree: Tree, missing: str) -> None:
    folder = tree.card(PF)
    (tree.root / folder / missing).unlink()
    seen = look(tree)
    assert by_address(seen)[PF]["address"] == PF if missing != "modalias" else PF in by_address(seen)
    assert seen["errors"] == []


def test_without_modalias_the_single_files_tell(tree: Tree) -> None:
    folder = tree.card(PF)
    (tree.root / folder / "modalias").unlink()
    for name, text in {"device": "0x26B9", "class": "0x030200", "subsystem_vendor": "0x10de"}.items():
        tree.write(f"{folder}/{name}", text)
    card = by_address(look(tree))[PF]
    assert (card["vendor"], card["device"], card["class"], card["subvendor"], card["subdevice"]) == (
        "10de",
        "26b9",
        "0302",
        "10de",
        "",
    )


def test_files_that_fail_are_told_and_spoil_nothing(tree: Tree) -> None:
    folder = tree.card(PF)
    for name in ("numa_node", "resource", "config"):
        tree.link(f"{folder}/{name}", EIO)
    seen = look(tree)
    card = by_address(seen)[PF]
    assert (card["numa"], card["bars"], card["dead"]) == (None, None, None)
    assert len(seen["errors"]) == 3 and all("Input/output error" in each for each in seen["errors"])


@pytest.mark.parametrize("address", ["0001:c8:00.0", "10000:e1:00.0", "00010000:01:00.0"])
def test_other_domains(tree: Tree, address: str) -> None:
    tree.card(address)
    assert by_address(look(tree))[address]["class"] == "0302"


def test_a_dead_card_and_a_sleeping_one(tree: Tree) -> None:
    folder = tree.card(PF)
    tree.write(f"{folder}/config", b"\xff" * 64)
    assert by_address(look(tree))[PF]["dead"] is True
    tree.write(f"{folder}/power_state", "unknown\n")
    assert (by_address(look(tree))[PF]["dead"], by_address(look(tree))[PF]["power"]) == (True, None)
    tree.write(f"{folder}/power_state", "D3hot\n")
    files = tree.files
    sleeping = by_address(look(tree, files))[PF]
    assert (sleeping["dead"], sleeping["power"]) == (None, "D3hot")
    assert f"{folder}/config" not in files.opened  # reading it would wake the card


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (NO_BAR, []),
        ("0x0 0xffffff 0x20040200", [{"index": 0, "size": 2**24, "start": 0, "assigned": False}]),
        ("0x1000 0x1fff 0x40101", []),  # ports, no memory
        ("0x0 0x0 0x14220c", [{"index": 0, "size": 0, "start": 0, "assigned": False}]),
        ("0xb0000000 0xb0ff", []),  # half a line
        ("a b c", []),
    ],
)
def test_bars(line: str, read: list[dict[str, Any]]) -> None:
    assert pci.bars(line) == read


def test_group_members_come_in_full_and_strangers_by_name(tree: Tree) -> None:
    tree.card(PF, group=1)
    tree.function("0000:41:00.1", ids="10de:22ba", code="0403", driver="snd_hda_intel", group=1, reset_method="pm")
    tree.function("0000:02:00.0", ids="8086:1521", code="0200", driver="igb", group=2, reset_method="flr")
    seen = by_address(look(tree))
    assert seen["0000:41:00.1"]["reset_methods"] == ["pm"]
    assert "reset_methods" not in seen["0000:02:00.0"]


def test_who_holds_a_card(tree: Tree) -> None:
    tree.card(PF, driver="vfio-pci")
    tree.card("0000:42:00.0", group=41)
    tree.card("0000:43:00.0", group=42, driver="amdgpu")
    tree.card("0000:44:00.0", group=43, driver="vfio-pci")
    tree.write("proc/driver/nvidia/gpus/0000:42:00.0/information", "Model: \t\t L40S\nDevice Minor: \t 3\n")
    tree.link("sys/class/drm/card1", "../../devices/pci0000:00/0000:00:01.0/0000:43:00.0/drm/card1")
    tree.link("sys/class/vfio-dev/vfio0/device", "../../../0000:44:00.0")
    tree.process(7, "qemu-system-x86", "/dev/vfio/40", words=("qemu", "-uuid", VM.upper(), "-name", "x"))
    tree.process(8, "persistenced", "/dev/nvidia3", "/dev/nvidiactl")
    tree.process(9, "Xorg", "/dev/dri/card1")
    tree.process(10, "qemu", "/dev/vfio/devices/vfio0", words=("qemu", "-uuid"))
    tree.process(11, "other", "/dev/nvidia9", "/dev/vfio/999", "/dev/dri/card7")
    seen = by_address(look(tree))
    assert seen[PF]["holders"] == [{"pid": 7, "command": "qemu-system-x86", "vm": VM, "file": "/dev/vfio/40"}]
    assert [each["command"] for each in seen["0000:42:00.0"]["holders"]] == ["persistenced"]
    assert [each["command"] for each in seen["0000:43:00.0"]["holders"]] == ["Xorg"]
    assert [(each["pid"], each["vm"]) for each in seen["0000:44:00.0"]["holders"]] == [(10, None)]


def test_virtual_functions_of_the_vendors_kind(tree: Tree) -> None:
    tree.card(PF, vfs_most=16)
    for number in range(12):
        tree.vf(PF, number, current="1148" if number == 0 else "0")
    tree.write(f"{DEVICES}/0000:41:00.4/nvidia/gpu_instance_id", "4294967295\n")
    tree.write(f"{DEVICES}/0000:41:00.4/nvidia/placement_id", "12\n")
    seen = by_address(look(tree))
    assert (seen[PF]["vfs_on"], seen[PF]["vfs_most"]) == (12, 16)
    assert seen[PF]["vfs"][:5] == ["0000:41:00.4", "0000:41:00.5", "0000:41:00.6", "0000:41:00.7", "0000:41:01.0"]
    assert seen["0000:41:00.4"]["nvidia"] == {"creatable": None, "current": 1148, "gpu_instance": None, "placement": 12}
    free = seen["0000:41:00.5"]
    assert free["nvidia"]["current"] == 0 and [each["id"] for each in free["nvidia"]["creatable"]] == [1147, 1148, 1150]
    assert (free["physfn"], free["numa"], free["device"], free["dead"]) == (PF, 1, "26b9", None)
    assert seen["0000:41:00.6"]["nvidia"]["creatable"] is None  # not read, not empty


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (LISTED, [(1147, "NVIDIA L40S-1Q"), (1148, "NVIDIA L40S-2Q"), (1150, "NVIDIA L40S-4Q")]),
        ("NVIDIA A40-1Q  557\nNVIDIA A40-2Q 558\n", [(557, "NVIDIA A40-1Q"), (558, "NVIDIA A40-2Q")]),
        ("941   : NVIDIA RTX6000-Ada-1Q", [(941, "NVIDIA RTX6000-Ada-1Q")]),
        ("941: NVIDIA RTX6000-Ada-1Q", [(941, "NVIDIA RTX6000-Ada-1Q")]),
        (FULL, []),
        ("", []),
        ("ID    : vGPU Name\n1147  : NVIDIA L40S-1Q\n11", [(1147, "NVIDIA L40S-1Q"), (11, None)]),  # cut short
        ("ID    : vGPU Na", []),
        ("٣ : NVIDIA X", []),
    ],
)
def test_both_forms_of_creatable_types(text: str, read: list[tuple[int, str | None]]) -> None:
    assert [(each["id"], each["name"]) for each in vgpu_files.types_of(text)] == read


def test_a_full_card_and_an_unreadable_list(tree: Tree) -> None:
    tree.card(PF, vfs_most=2)
    first, second = tree.vf(PF, 0, creatable=FULL), tree.vf(PF, 1)
    assert by_address(look(tree))[first]["nvidia"]["creatable"] == []
    tree.link(f"{DEVICES}/{first}/nvidia/creatable_vgpu_types", EIO)
    seen = look(tree)
    assert by_address(seen)[first]["nvidia"]["creatable"] is None and len(seen["errors"]) == 1
    assert by_address(seen)[second]["nvidia"]["creatable"]  # the next free one was asked instead
    tree.write(f"{DEVICES}/{second}/nvidia/current_vgpu_type", "")
    assert by_address(look(tree))[second]["nvidia"]["current"] is None


@pytest.mark.parametrize(("cards", "vfs"), [(8, 16), (4, 32)])
def test_a_look_is_cheap_with_128_virtual_functions(
    tree: Tree, nvml: Callable[..., StandIn], cards: int, vfs: int
) -> None:
    addresses = [f"0000:{0x41 + number:02x}:00.0" for number in range(cards)]
    nvml(*(Card(f"0000{each}", mig=[0, 0], mixed=False) for each in addresses))
    for group, address in enumerate(addresses):
        tree.card(address, vfs_most=vfs, group=group)
        for number in range(vfs):
            tree.vf(address, number, current="1148" if number % 4 == 0 else "0")
    files = tree.files
    seen = look(tree, files)
    assert sum(each["physfn"] is not None for each in seen["pci"] if "physfn" in each) == 128
    for address in addresses:
        opened = [each for each in files.opened if each.startswith(f"{DEVICES}/{address[:8]}")]
        assert len(opened) <= 50, opened
    assert len(files.opened) <= 50 * cards + 60  # and the host itself


def test_mediated_devices_on_the_card(tree: Tree) -> None:
    folder = tree.card(PF)
    other = tree.card("0000:42:00.0", group=41)
    for place in (folder, other):
        tree.mdev_type(place, "nvidia-18", "GRID M60-2Q", 4)
        tree.mdev_type(place, "nvidia-11", "GRID M60-0B", 0)
    tree.link(f"sys/class/mdev_bus/{PF}", f"../../devices/{PF}")
    tree.mdev_type("sys/class/mdev_bus/css_0_0_0023", "vfio_ccw-io", "I/O subchannel", 1)
    tree.link(f"sys/bus/mdev/devices/{VM}", f"../../../devices/pci0000:00/0000:00:01.0/{PF}/{VM}")
    (tree.root / f"sys/devices/pci0000:00/0000:00:01.0/{PF}/{VM}").mkdir()
    tree.link(f"sys/bus/mdev/devices/{VM}/mdev_type", "../mdev_supported_types/nvidia-18")
    tree.link(f"sys/bus/mdev/devices/{VM}/iommu_group", "../../kernel/iommu_groups/12")
    files = tree.files
    seen = look(tree, files)
    types = by_address(seen)[PF]["mdev_types"]
    assert [(each["id"], each["available"], each["device_api"]) for each in types] == [
        ("nvidia-11", 0, "vfio-pci"),
        ("nvidia-18", 4, "vfio-pci"),
    ]
    assert seen["mdevs"] == [{"uuid": VM, "parent": PF, "type": "nvidia-18", "group": 12}]
    parents = {each["name"]: each for each in seen["mdev_parents"]}
    assert parents[PF]["types"] == types and parents[PF]["address"] == PF
    assert parents["css_0_0_0023"]["address"] is None and parents["css_0_0_0023"]["types"][0]["available"] == 1
    assert sum(each.endswith("nvidia-18/name") for each in files.opened) == 1  # a type is named once per host


def test_mediated_devices_on_virtual_functions_are_asked_of_one(tree: Tree) -> None:
    tree.card(PF, vfs_most=16)
    for number in range(4):
        address = tree.vf(PF, number, current=None)
        tree.mdev_type(f"{DEVICES}/{address}", "nvidia-742", "NVIDIA A2-1B", 0 if number == 0 else 1)
        (tree.root / f"sys/class/mdev_bus/{address}").mkdir(parents=True)
    tree.link(f"sys/bus/mdev/devices/{VM}", f"../../../devices/pci0000:00/{PF}/0000:41:00.4/{VM}")
    seen = look(tree)
    functions = by_address(seen)
    assert functions["0000:41:00.4"]["mdev_types"] is None  # it holds one: it offers nothing
    assert functions["0000:41:00.5"]["mdev_types"][0]["available"] == 1
    assert functions["0000:41:00.6"]["mdev_types"] is None and functions["0000:41:00.6"]["nvidia"] is None
    offered = {each["name"]: each["types"] for each in seen["mdev_parents"]}
    assert offered["0000:41:00.5"] and offered["0000:41:00.6"] is None


def test_the_card_that_nvml_has_is_the_one_that_sysfs_has(tree: Tree, nvml: Callable[..., StandIn]) -> None:
    tree.card("0001:c8:00.0")
    nvml(Card("00000001:C8:00.0", mig=[1, 1], profiles=A100, instances={3: (14, 2, 2)}))
    (device,) = look(tree)["nvml"]["devices"]
    assert device["address"] == "0001:c8:00.0"
    assert device["instances"] == [{"instance": 3, "profile": 14, "name": "2g.10gb", "start": 2, "size": 2}]


def test_nvswitches_and_their_manager(tree: Tree) -> None:
    tree.function("0000:05:00.0", ids="10de:22a3", code="0680", driver="nvidia-nvswitch")
    tree.write("usr/bin/nv-fabricmanager", "")
    tree.write("usr/share/nvidia/nvswitch/fabricmanager.cfg", "# c\nFABRIC_MODE=1\nFABRIC_MODE_RESTART=0\n")
    seen = look(tree)
    assert seen["fabric"] == {"switches": ["0000:05:00.0"], "manager": "stopped", "mode": 1, "partitions": None}
    assert by_address(seen)["0000:05:00.0"]["reset_methods"] == [] and not by_address(seen)["0000:05:00.0"]["bridge"]
    tree.write("run/nvidia-fabricmanager/nv-fabricmanager.pid", "77\n")
    tree.process(77, "nv-fabricmanage")
    tree.program("usr/bin/fmpm", "echo 'no daemon' >&2; exit 1")
    seen = look(tree)
    assert seen["fabric"]["manager"] == "running" and seen["fabric"]["partitions"] is None
    assert "no daemon" in seen["errors"][0]
