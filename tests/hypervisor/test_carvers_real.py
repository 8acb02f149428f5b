"""vGPUs and MIG-backed vGPUs, cut by the carvers through hostctl on hosts that behave as hardware and driver do."""

from __future__ import annotations

import pytest

from tests.gpuhost.machine import Machine
from tests.gpuhost.machine import OpenMachine as Open
from tests.gpuhost.nodedev import NodeDevices
from vmgpu.errors import HostRefused, ReasonCode
from vmgpu.hypervisor import GpuRef, Pci, SliceRef
from vmgpu.hypervisor.carvers import carver_for, mig


def test_a_vgpu_is_written_once_and_given_back(machine: Open) -> None:
    """The functions are switched on, the type is written to the slice's own, and nothing is rebound."""
    host = machine("l40s")
    carver, piece = host.carver("vgpu"), host.piece("vgpu", "L40S-4Q", slot=2)
    (device,) = carver.carve(piece).devices
    assert isinstance(device, Pci) and not device.managed
    assert carver.carve(piece).devices == (device,)
    (live,) = host.card().live
    assert (live.name, live.slot) == ("L40S-4Q", 2)
    carver.release(piece)
    carver.release(piece)
    assert host.card().live == ()


def test_a_vgpu_in_use_is_not_taken_away(machine: Open) -> None:
    host = machine("l40s")
    carver, piece = host.carver("vgpu"), host.piece("vgpu", "L40S-4Q")
    (device,) = carver.carve(piece).devices
    assert isinstance(device, Pci)
    host.model.start_vm(piece.vm_id, [device.address])
    with pytest.raises(HostRefused, match="held open"):
        carver.release(piece)
    host.model.end_vm(piece.vm_id)
    carver.release(piece)
    assert host.card().live == ()


def test_another_size_is_refused_in_words(machine: Open) -> None:
    host = machine("l40s")
    host.carver("vgpu").carve(host.piece("vgpu", "L40S-4Q"))
    with pytest.raises(HostRefused, match="cannot be made"):
        host.carver("vgpu").carve(host.piece("vgpu", "L40S-8Q", slot=1))
    assert [live.name for live in host.card().live] == ["L40S-4Q"]  # the one that works is left alone


class TestMixedSizes:
    """A mode of the card that is lost whenever its functions come, and can be had only before the first vGPU."""

    def test_each_size_lies_where_the_driver_allows_it(self, machine: Open) -> None:
        host = machine("rtxpro6000")
        carver = host.carver("mixed")
        for slot, (name, start) in enumerate((("DC-3Q", 0), ("DC-6Q", 48), ("DC-24Q", 72))):
            piece = host.piece("mixed", f"RTX Pro 6000 Blackwell {name}", start=start, slot=slot)
            (device,) = carver.carve(piece).devices
            assert carver.carve(piece).devices == (device,)
            assert isinstance(device, Pci)
            host.model.start_vm(piece.vm_id, [device.address])  # which a wrong place would not let it
        seen = host.card()
        assert seen.now == "mixed"
        assert sorted((live.start, live.name.split("-")[-1]) for live in seen.live) == [
            (0, "3Q"),
            (48, "6Q"),
            (72, "24Q"),
        ]

    def test_places_are_the_drivers(self, machine: Open) -> None:
        """Eight GB on a board of 48 may not lie at 8: halves of halves, and what is left over between them."""
        cuts = machine("l40s").card().cuts["mixed"]
        sizes = {cut.name: cut for cut in cuts.pieces}
        assert (cuts.cells, cuts.equal) == (48, False)
        assert sorted(sizes["L40S-8Q"].starts) == [0, 16, 24, 40]
        assert (sizes["L40S-8Q"].cells, sizes["L40S-8Q"].memory_mib, sizes["L40S-8Q"].most) == (8, 8192, 4)
        assert not sizes["L40S-8A"].cuda and sizes["L40S-8A"].marks == ("A",)

    def test_the_mode_is_switched_on_after_a_reboot_took_it(self, machine: Open) -> None:
        host = machine("l40s")
        carver, piece = host.carver("mixed"), host.piece("mixed", "L40S-8Q", start=40)
        carver.carve(piece)
        host.model.reboot()
        carver.carve(piece)
        assert [(live.start, live.name) for live in host.card().live] == [(40, "L40S-8Q")]

    def test_an_error_of_the_second_leaves_the_first_alone(self, machine: Open) -> None:
        host = machine("rtxpro6000")
        carver = host.carver("mixed")
        first = host.piece("mixed", "RTX Pro 6000 Blackwell DC-3Q", start=0, slot=0)
        second = host.piece("mixed", "RTX Pro 6000 Blackwell DC-6Q", start=6, slot=1)
        (device,) = carver.carve(first).devices
        assert isinstance(device, Pci)
        host.model.start_vm(first.vm_id, [device.address])
        host.model.set_mood("refuse", path="current_vgpu_type")
        with pytest.raises(HostRefused):
            carver.carve(second)
        host.model.clear_moods()
        carver.release(second)
        assert [(live.start, live.slot) for live in host.card().live] == [(0, 0)]
        carver.carve(second)
        assert [(live.start, live.slot) for live in host.card().live] == [(0, 0), (6, 1)]

    def test_one_size_at_a_time_ends_the_mode_first(self, machine: Open) -> None:
        host = machine("l40s")
        mixed = host.piece("mixed", "L40S-8Q", start=40)
        host.carver("mixed").carve(mixed)
        equal = host.piece("mixed", "L40S-8Q", start=0, slot=1)
        with pytest.raises(HostRefused, match=r"(?i)in use"):
            host.carver("vgpu").carve(equal)
        host.carver("mixed").release(mixed)
        host.carver("vgpu").carve(equal)
        assert host.card().now == "vgpu"

    def test_is_no_way_while_there_are_vgpus_of_one_size(self, machine: Open) -> None:
        host = machine("l40s")
        host.carver("vgpu").carve(host.piece("vgpu", "L40S-4Q"))
        card = host.card()
        assert "mixed" not in card.modes and "only while there are none" in card.refusals["mixed"]
        assert "vgpu" in card.modes

    @pytest.mark.parametrize("name", ["m60", "t4"])
    def test_is_no_way_of_an_older_card(self, machine: Open, name: str) -> None:
        card = machine(name).card()
        assert "mixed" not in card.modes and "no mixed-size mode" in card.refusals.get("mixed", "no mixed-size mode")


@pytest.mark.parametrize(("name", "profile"), [("m60", "M60-4Q"), ("t4", "T4-4Q")])
def test_a_mediated_device_is_found_whether_it_runs_or_not(machine: Open, name: str, profile: str) -> None:
    """libvirt shows those that run or those that do not to who asks for the one kind alone."""
    host = machine(name)
    carver = carver_for("vgpu", "mdev", ask=host.ctl.call, use=NodeDevices(host.fake).use)
    piece = host.piece("vgpu", profile)
    carved = carver.carve(piece)
    assert carver.carve(piece) == carved
    host.model.reboot()
    assert carver.carve(piece) == carved
    assert [live.uuid for live in host.card().live] == [piece.id]
    carver.release(piece)
    carver.release(piece)
    assert host.card().live == ()


def test_after_a_reboot_the_same_slice_is_cut_again(machine: Open) -> None:
    host = machine("l40s")
    carver, piece = host.carver("vgpu"), host.piece("vgpu", "L40S-4Q", slot=1)
    first = carver.carve(piece).devices
    host.model.reboot()
    carver.release(host.piece("vgpu", "L40S-4Q", slot=5))  # what was cut is gone, which is fine
    assert carver.carve(piece).devices == first


@pytest.mark.parametrize("name", ["h100", "rtxpro6000"])
def test_mig_backed_slices_side_by_side(machine: Open, name: str) -> None:
    """Mode, functions, instances, types: each slice lies where the plan put it, whatever the order."""
    host = machine(name)
    profiles = ("3g.40gb", "1g.10gb", "2g.20gb") if name == "h100" else ("1g.24gb+gfx", "2g.48gb+gfx", "1g.24gb+gfx")
    starts = (4, 0, 2) if name == "h100" else (0, 6, 3)
    pieces = [
        host.piece("mig", profile, start=start, slot=slot)
        for slot, (profile, start) in enumerate(zip(profiles, starts, strict=True))
    ]
    carver = host.carver("mig")
    for piece in pieces:
        carved = carver.carve(piece)
        assert carved.start is None and carver.carve(piece) == carved
    seen = host.card()
    assert seen.now == "mig"
    assert {(live.name, live.start, live.slot) for live in seen.live} == {
        (piece.profile, piece.start, piece.slot) for piece in pieces
    }
    for piece in pieces:
        carver.release(piece)
        carver.release(piece)
    assert host.card().live == ()


class TestAModeThatWaits:
    """MIG mode is pending until a reset, or for as long as somebody has the card open."""

    def test_is_brought_by_a_reset_where_nothing_holds_the_card(self, machine: Open) -> None:
        host = machine("a100", mood="mig_waits")
        piece = host.piece("mig", "3g.20gb", start=4)
        mig.mode_on(host.ctl.call, piece.gpu)
        assert next(each["mig"] for each in host.model.state()["cards"].values()) == [True, True]

    def test_says_who_holds_the_card(self, machine: Open) -> None:
        host = machine("a100", mood="mig_waits")
        piece = host.piece("mig", "3g.20gb", start=4)
        assert piece.gpu.address
        pid = host.model.hold(piece.gpu.address, "dcgm-exporter")
        with pytest.raises(HostRefused, match=rf"pending: held by process {pid} \(dcgm-exporter\)"):
            mig.mode_on(host.ctl.call, piece.gpu)
        host.model.let_go(pid)
        mig.mode_on(host.ctl.call, piece.gpu)

    def test_is_not_brought_over_vgpus_that_are_there(self, machine: Open) -> None:
        """A reset would take them, and their VMs would start without."""
        host = machine("h100", mood="mig_waits")
        piece = host.piece("mig", "3g.40gb", start=4)
        name = host.card().cuts["vgpu"].pieces[0].name
        host.carver("vgpu").carve(host.piece("vgpu", name))
        with pytest.raises(HostRefused, match="holds vGPU type"):
            mig.mode_on(host.ctl.call, piece.gpu)
        assert [live.name for live in host.card().live] == [name]


def instance_of_others(host: Machine, name: str) -> None:
    """Somebody switches MIG on and makes an instance of this profile at the start of the card."""
    address = host.card().address
    host.ctl.call("mig", {"action": "mode", "address": address, "on": True})
    host.ctl.call("vfs", {"address": address, "on": True})
    known = host.ctl.call("mig", {"action": "list", "address": address})["profiles"]
    profile = next(each for each in known if each["name"] == name)
    wanted = {"profile": profile["id"], "start": 0, "size": profile["size"]}
    host.ctl.call("mig", {"action": "create", "address": address, **wanted})


@pytest.mark.parametrize(("mood", "lies"), [(None, 0), ("other_instance", 4)])
def test_the_ledger_follows_the_instance_that_the_driver_took(machine: Open, mood: str | None, lies: int) -> None:
    """A free instance of the same profile was left over: which of the two gets the vGPU is the driver's choice."""
    host = machine("h100", mood=mood)
    piece = host.piece("mig", "3g.40gb", start=4)
    instance_of_others(host, "3g.40gb")
    carved = host.carver("mig").carve(piece)
    assert carved.start == (None if lies == piece.start else lies)
    held = [live for live in host.card().live if live.slot is not None]
    assert [(live.start, live.slot) for live in held] == [(lies, 0)]


def test_a_foreign_instance_in_the_way_is_named_and_left(machine: Open) -> None:
    host = machine("h100")
    piece = host.piece("mig", "3g.40gb", start=0)
    instance_of_others(host, "1g.10gb")
    with pytest.raises(HostRefused, match="not ours"):
        host.carver("mig").carve(piece)
    assert [live.name for live in host.card().live] == ["1g.10gb"]


def test_a_write_that_the_kernel_refuses_leaves_nothing(machine: Open) -> None:
    host = machine("l40s", mood={"kind": "refuse", "path": "current_vgpu_type"})
    with pytest.raises(HostRefused) as refused:
        host.carver("vgpu").carve(host.piece("vgpu", "L40S-4Q"))
    assert refused.value.hint
    assert host.card().live == ()


def test_a_dead_card_is_refused(machine: Open) -> None:
    host = machine("l40s")
    address = host.card().address
    assert address
    host.model.kill_card(address)
    card = host.card()
    assert "passthrough" not in card.modes and "all ones" in card.refusals["passthrough"]
    piece = SliceRef("s", "v", GpuRef("g", "passthrough", "", address), "whole", 0, 1, 1, 0)
    with pytest.raises(HostRefused) as refused:
        host.carver("passthrough").carve(piece)
    assert refused.value.reason and refused.value.reason.code is ReasonCode.card_unhealthy
