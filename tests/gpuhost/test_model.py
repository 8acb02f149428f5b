"""The fake host held to what is known of the hardware: each test is one statement. No FUSE, no library."""

from __future__ import annotations

import pytest

from tests.gpuhost.card import Card
from tests.gpuhost.catalogue import Profile, VgpuType, split
from tests.gpuhost.describe import build, enable_vfs, many, named, take
from tests.gpuhost.host import Host
from tests.gpuhost.moods import Mood
from tests.gpuhost.pci import resource
from tests.gpuhost.refusal import Nvml, Refused, WouldHang

VM = "22222222-bbbb-4bbb-8bbb-00000000000a"
UUID = "11111111-aaaa-4aaa-8aaa-00000000000a"
EVERY = ("m60", "t4", "a100", "a2", "l40s", "h100", "h200", "rtxpro6000")


def profile(card: Card, name: str) -> Profile:
    return next(each for each in card.model.profiles if each.name == name)


def kind(card: Card, short: str) -> VgpuType:
    return next(each for each in card.model.types if each.name.endswith(f"-{short}"))


def cut(card: Card, *names: str) -> list[tuple[str, int]]:
    """Cut in this order, the driver choosing places."""
    made = [card.create_instance(profile(card, name)) for name in names]
    return [(each.profile.name, each.start) for each in made]


def host_with_mig(name: str) -> tuple[Host, Card]:
    host = build(named(name))
    card = host.cards[0]
    enable_vfs(host, card.address)
    host.set_mig(card, True)
    return host, card


@pytest.mark.parametrize("name", EVERY)
def test_each_description_boots(name: str) -> None:
    host = build(named(name))
    assert host.cards and all(card.model.types for card in host.cards)
    for card in host.cards:
        if card.model.total_vfs and not host.bus.get(card.address).vfs:
            enable_vfs(host, card.address)
    assert all(each.driver == each.natural for each in host.bus.functions.values() if each.natural)


def test_a_bench_has_eight_cards_with_sixteen_functions_each() -> None:
    host = build(many("h100", 8))
    for card in host.cards:
        enable_vfs(host, card.address)
    assert sum(each.physfn is not None for each in host.bus.functions.values()) == 128


# MIG


def test_the_driver_places_wide_instances_right_and_narrow_ones_left() -> None:
    _, card = host_with_mig("a100")
    assert cut(card, "3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb") == [
        ("3g.20gb", 4),
        ("2g.10gb", 2),
        ("1g.5gb", 0),
        ("1g.5gb", 1),
    ]


def test_the_same_wishes_in_another_order_do_not_fit() -> None:
    _, card = host_with_mig("a100")
    cut(card, "1g.5gb", "1g.5gb", "2g.10gb")
    with pytest.raises(Refused) as refused:
        cut(card, "3g.20gb")
    assert refused.value.code == Nvml.INSUFFICIENT_RESOURCES


def test_one_wide_instance_scatters_five_narrow_ones() -> None:
    _, card = host_with_mig("a100")
    placed = cut(card, "2g.10gb", *["1g.5gb"] * 5)
    assert [start for _, start in placed] == [4, 0, 1, 2, 3, 6]


def test_two_wide_instances_use_all_cells_but_not_all_slices() -> None:
    _, card = host_with_mig("h100")
    cut(card, "3g.40gb", "3g.40gb")
    assert not card.starts(profile(card, "1g.10gb"))


def test_starts_come_only_from_the_profile() -> None:
    _, card = host_with_mig("h100")
    with pytest.raises(Refused) as refused:
        card.create_instance(profile(card, "2g.20gb"), 6)
    assert refused.value.code == Nvml.INVALID_ARGUMENT


def test_free_instances_of_profiles_are_alternatives() -> None:
    _, card = host_with_mig("a100")
    assert card.remaining(profile(card, "1g.5gb")) == 7
    cut(card, "3g.20gb")
    assert {each.name: card.remaining(each) for each in card.model.profiles} == {
        "1g.5gb": 4,
        "1g.5gb+me": 1,
        "1g.10gb": 2,
        "2g.10gb": 2,
        "3g.20gb": 1,
        "4g.20gb": 1,
        "7g.40gb": 0,
    }


def test_media_engines_are_given_away_once() -> None:
    _, card = host_with_mig("rtxpro6000")
    cut(card, "1g.24gb+me")
    assert not card.starts(profile(card, "1g.24gb+me.all"))


def test_instance_ids_follow_the_grid() -> None:
    _, card = host_with_mig("h100")
    cut(card, "3g.40gb", "3g.40gb")
    assert sorted(card.instances) == [1, 2]


def test_the_mode_waits_for_a_reset_while_somebody_has_the_card_open() -> None:
    host = build(named("a100"))
    card = host.cards[0]
    pid = host.hold(card.address, "nv-hostengine")
    assert host.set_mig(card, True) == Nvml.IN_USE
    assert (card.mig, card.mig_pending) == (False, True)
    host.let_go(pid)
    host.bus.reset(card.address)
    assert (card.mig, card.mig_pending) == (True, True)


@pytest.mark.parametrize(("name", "kept"), [("a100", True), ("h100", False)])
def test_a_reboot_takes_instances_and_functions_and_on_hopper_the_mode(name: str, kept: bool) -> None:
    host, card = host_with_mig(name)
    card.create_instance(card.model.profiles[0])
    host.reboot()
    assert card.mig is kept
    assert not card.instances
    assert not host.bus.get(card.address).vfs


def test_the_rebind_of_sriov_manage_takes_instances_and_mixed_mode_but_not_mig() -> None:
    host = build(named("h100"))
    card = host.cards[0]
    host.set_mig(card, True)
    card.create_instance(card.model.profiles[0])
    card.set_mixed(True)
    enable_vfs(host, card.address)
    assert card.mig and not card.instances and not card.mixed


# vGPU sizes and rooms


def test_the_first_vgpu_fixes_the_size_and_series_mix() -> None:
    card = build(named("l40s")).cards[0]
    card.create_vgpu(kind(card, "2Q"), "a", "a")
    assert {each.gb for each in card.creatable()} == {2}
    assert {each.series for each in card.creatable()} == {"Q", "B", "A"}
    assert card.room(kind(card, "2B")) == card.room(kind(card, "2Q")) == 23
    card.remove_vgpu("a")
    assert len(card.creatable()) == len(card.model.types)


def test_before_release_17_the_first_vgpu_fixes_the_type() -> None:
    card = build(named("m60")).cards[0]
    card.create_vgpu(kind(card, "2Q"), "a", "a")
    assert card.creatable() == [kind(card, "2Q")]


def test_gpus_of_one_board_are_independent() -> None:
    first, second = build(named("m60")).cards
    first.create_vgpu(kind(first, "2Q"), "a", "a")
    assert second.room(kind(second, "8Q")) == 1


def test_functions_share_one_framebuffer() -> None:
    host = build(named("a2"))
    card = host.cards[0]
    free = [each for each in host.bus.functions.values() if host.creatable(each)]
    assert len(free) == 13
    assert card.room(kind(card, "4Q")) == card.room(kind(card, "4A")) == 1
    assert card.room(kind(card, "2Q")) == card.room(kind(card, "8Q")) == 0
    host.create_mdev(free[0].address, kind(card, "4Q").id, UUID)
    assert not any(host.creatable(each) for each in host.bus.functions.values())


def test_mixed_sizes_keep_to_the_places_of_the_board() -> None:
    assert split(48, 8) == (0, 16, 24, 40)
    assert split(48, 4) == (0, 8, 12, 20, 24, 32, 36, 44)
    assert split(48, 16) == (0, 32)
    assert split(24, 1) == (0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23)
    assert split(80, 8) == (0, 12, 20, 32, 40, 52, 60, 72)
    assert split(80, 16) == (0, 24, 40, 64)
    assert split(40, 4) == (0, 6, 10, 16, 20, 26, 30, 36)
    assert split(20, 2) == (0, 3, 5, 8, 10, 13, 15, 18)


def test_mixed_sizes_need_the_mode_before_the_first_vgpu() -> None:
    card = build(named("l40s")).cards[0]
    card.create_vgpu(kind(card, "8Q"), "a", "a")
    with pytest.raises(Refused) as refused:
        card.set_mixed(True)
    assert refused.value.code == Nvml.IN_USE
    card.remove_vgpu("a")
    card.set_mixed(True)
    card.create_vgpu(kind(card, "8Q"), "a", "a")
    card.create_vgpu(kind(card, "24Q"), "b", "b")
    assert [each.placement for each in card.vgpus] == [0, 24]
    assert card.room(kind(card, "16Q")) == 0
    assert card.room(kind(card, "12Q")) == 1


def test_mixed_mode_holds_fewer_of_some_sizes() -> None:
    card = build(named("l40s")).cards[0]
    assert card.room(kind(card, "8Q")) == 6
    card.set_mixed(True)
    assert card.room(kind(card, "8Q")) == 4


def test_a_wrong_placement_fails_only_when_the_vm_starts() -> None:
    host = build(named("l40s"))
    card = host.cards[0]
    enable_vfs(host, card.address)
    card.set_mixed(True)
    vf = host.bus.get(card.address).vfs[0]
    host.set_type(vf, str(kind(card, "8Q").id))
    host.set_params(vf, "vgpu-placement-id=8")
    with pytest.raises(Refused, match="placement id 8"):
        host.start_vm(VM, [vf])
    host.set_params(vf, "vgpu-placement-id=16")
    host.start_vm(VM, [vf])
    assert card.vgpus[0].placement == 16
    with pytest.raises(Refused):
        host.set_params(vf, "frame_rate_limiter=0")  # refused once the VM runs


def test_mig_decides_which_kind_of_type_can_be_made() -> None:
    host, card = host_with_mig("h100")
    cut(card, "1g.10gb")
    assert card.creatable() == [kind(card, "1-10C")]
    host.set_mig(card, False)
    assert all(each.profile is None for each in card.creatable())


def test_one_vgpu_per_instance_and_the_driver_chooses_which() -> None:
    host, card = host_with_mig("h100")
    cut(card, "1g.10gb", "1g.10gb")
    first, second, third = host.bus.get(card.address).vfs[:3]
    host.set_mood(Mood("other_instance"))
    host.set_type(first, str(kind(card, "1-10C").id))
    assert card.vgpus[0].instance == 8
    host.set_type(second, str(kind(card, "1-10C").id))
    with pytest.raises(Refused):
        host.set_type(third, str(kind(card, "1-10C").id))


def test_blackwell_shares_a_graphics_instance_among_equal_sizes() -> None:
    _, card = host_with_mig("rtxpro6000")
    cut(card, "1g.24gb+gfx", "1g.24gb")
    assert card.room(kind(card, "1-3Q")) == 8  # the plain instance carries no graphics type
    card.create_vgpu(kind(card, "1-3Q"), "a", "a")
    assert card.room(kind(card, "1-3Q")) == 7
    assert card.room(kind(card, "1-24Q")) == 0


def test_an_instance_under_a_vgpu_cannot_be_destroyed() -> None:
    _, card = host_with_mig("h100")
    (made,) = [card.create_instance(profile(card, "1g.10gb"))]
    card.create_vgpu(kind(card, "1-10C"), "a", "a")
    with pytest.raises(Refused) as refused:
        card.destroy_instance(made.id)
    assert refused.value.code == Nvml.IN_USE


# reboot, users, misfortune


def test_only_an_mdev_on_the_card_itself_survives_a_reboot_and_only_with_autostart() -> None:
    host = build(named("t4"))
    card = host.cards[0]
    take(host, {"mdev": UUID, "type": "GRID T4-4Q", "on": card.address})
    take(host, {"mdev": UUID.replace("1111", "3333"), "type": "GRID T4-4Q", "on": card.address})
    host.keep_mdev(UUID)
    host.reboot()
    assert list(host.mdevs()) == [UUID]
    sriov = build(named("a2"))
    sriov.keep_mdev(next(iter(sriov.mdevs())))
    sriov.reboot()
    assert not sriov.mdevs()


def test_a_vendor_type_and_a_driver_override_do_not_survive_a_reboot() -> None:
    host = build(named("l40s"))
    card = host.cards[0]
    enable_vfs(host, card.address)
    host.set_type(host.bus.get(card.address).vfs[0], "1147")
    before = host.boot_id
    host.bus.get(card.address).override = "vfio-pci"
    host.reboot()
    assert not card.vgpus and host.boot_id != before
    assert host.bus.get(card.address).driver == "nvidia"


def test_the_driver_does_not_let_go_of_a_card_in_use() -> None:
    host = build(named("h100"))
    card = host.cards[0]
    pid = host.hold(card.address, "dcgm-exporter")
    with pytest.raises(WouldHang):
        host.unbind("nvidia", card.address)
    host.let_go(pid)
    host.unbind("nvidia", card.address)
    assert card not in host.visible


def test_vfio_does_not_let_go_of_a_device_that_a_vm_has_open() -> None:
    host = build({**named("h100"), "boot_binding": {"0000:41:00.0": "vfio-pci"}})
    host.start_vm(VM, ["0000:41:00.0"])
    with pytest.raises(WouldHang):
        host.unbind("vfio-pci", "0000:41:00.0")
    host.end_vm(VM)
    host.unbind("vfio-pci", "0000:41:00.0")


def test_a_group_is_viable_only_with_all_its_endpoints_on_vfio() -> None:
    told = {**named("l40s")}
    model = {**told["models"]["l40s"], "companions": ["10de:22ba 040300 snd_hda_intel"]}
    host = build({**told, "models": {"l40s": model}})
    card = host.cards[0]
    for address in (card.address, card.address[:-1] + "1"):
        function = host.bus.get(address)
        host.bus.unbind(function.driver or "", address)
        function.override = "vfio-pci"
        if function.card:
            host.bus.probe(address)
            with_audio = function.group
            host.bus.probe(card.address[:-1] + "1")
            with pytest.raises(Refused, match=f"group {with_audio} is not viable"):
                host.start_vm(VM, [card.address])
    host.bus.probe(card.address[:-1] + "1")
    host.start_vm(VM, [card.address])


def test_a_dead_card_stays_dead_until_the_power_is_cut() -> None:
    host = build(named("h100"))
    card = host.cards[0]
    host.kill_card(card.address)
    with pytest.raises(Refused):
        host.bus.reset(card.address)
    host.reboot()
    assert card.dead
    host.reboot(power_cycle=True)
    assert not card.dead


def test_a_vgpu_left_by_a_crash_is_listed_but_only_a_new_one_opens() -> None:
    host = build(named("l40s"))
    enable_vfs(host, host.cards[0].address)
    vf = host.bus.get(host.cards[0].address).vfs[0]
    host.set_type(vf, "1147")
    host.start_vm(VM, [vf])
    host.end_vm(VM, crashed=True)
    with pytest.raises(Refused, match="No such device"):
        host.start_vm(VM, [vf])
    host.set_type(vf, "0")
    host.set_type(vf, "1147")
    host.start_vm(VM, [vf])


def test_an_unassigned_bar_is_a_line_of_zeros() -> None:
    told = named("l40s")
    (cards,) = told["cards"]
    card = build({**told, "cards": [{**cards, "unassigned_bar": True}]}).bus.get("0000:26:00.0")
    lines = resource(card).splitlines()
    assert len(lines) == 13
    assert set(lines[1]) <= set("0x ") and not set(lines[0]) <= set("0x ")


def test_a_function_of_another_vendor_comes_by_hand_and_bears_no_vgpu() -> None:
    told = named("l40s")
    model = {**told["models"]["l40s"], "ids": "1002:74a1", "vgpu": "", "vfs": 8, "types": {}, "class": "038000"}
    (cards,) = told["cards"]
    host = build({**told, "models": {"l40s": model}, "cards": [{**cards, "driver": "gim"}]})
    host.bus.set_vfs("0000:26:00.0", 8)
    with pytest.raises(Refused):
        host.bus.set_vfs("0000:26:00.0", 4)  # first none, then another number
    (vf, *_) = host.bus.get("0000:26:00.0").vfs
    assert host.bus.get(vf).driver is None and not host.sits(host.bus.get(vf))


def test_an_hgx_board_has_fifteen_partitions_that_may_not_overlap() -> None:
    fabric = build(named("h200")).fabric
    assert fabric is not None
    assert [len(fabric.partitions[n]) for n in range(15)] == [8, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    fabric.activate(1)
    with pytest.raises(Refused):
        fabric.activate(3)
    fabric.activate(2)
    fabric.deactivate(1)
    fabric.activate(3)
