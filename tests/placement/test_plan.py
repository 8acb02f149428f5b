"""The planner as its users meet it: the demo's story, the crowd, the retry, the whole card."""

from dataclasses import replace
from fractions import Fraction

from vmgpu import placement
from vmgpu.errors import ReasonCode, reason
from vmgpu.placement import Fleet, Mode, Window

from .made import card, host, is_legal, still, wish


def test_three_halves_of_one_card_then_one_is_released() -> None:
    fleet = Fleet([host("local")], [card(on="local")], units={"A100-40GB": Fraction(1, 2)})
    students = [wish("1") for _ in range(3)]
    before = still(fleet)
    placed, waiting = placement.plan(students, fleet)
    assert still(fleet) == before
    assert [(p.vm_id, p.slice) for p in placed] == [
        (students[0].vm_id, Window(4, 4, 3, "3g.20gb")),
        (students[1].vm_id, Window(0, 4, 3, "3g.20gb")),
    ]
    assert [(w.vm_id, w.position) for w in waiting] == [(students[2].vm_id, 1)]
    assert waiting[0].reason == reason(ReasonCode.no_slice_free, profile="3g.20gb", places=2, cards=1)

    for one in placed:
        fleet.place(one)
    fleet.free(placed[0])
    again, nobody = placement.plan(students[2:], fleet)
    assert [p.slice for p in again] == [Window(4, 4, 3, "3g.20gb")] and not nobody


def test_forty_at_once_for_two_slices_wait_in_order() -> None:
    crowd = [wish("3g.20gb") for _ in range(40)]
    placed, waiting = placement.plan(reversed(crowd), Fleet([host()], [card()]))
    assert [p.vm_id for p in placed] == [w.vm_id for w in crowd[:2]]
    assert [(w.vm_id, w.position) for w in waiting] == [(w.vm_id, n) for n, w in enumerate(crowd[2:], start=1)]


def test_versions_count_up_as_the_writes_will() -> None:
    fleet = Fleet([host(version=7)], [card(version=3)])
    placed, _ = placement.plan([wish("3g.20gb"), wish("1g.5gb"), wish()], fleet)
    assert [(p.host_version, p.gpu_version) for p in placed] == [(7, 3), (8, 4), (9, None)]


def test_priority_goes_first() -> None:
    late = wish("7g.40gb")
    early = replace(wish("7g.40gb"), order=(-1, 10.0**9, "z"))
    placed, _ = placement.plan([late, early], Fleet([host()], [card()]))
    assert [p.vm_id for p in placed] == [early.vm_id]


def test_what_fits_passes_what_does_not() -> None:
    big, small = wish("7g.40gb"), wish("1g.5gb")
    held = Window(4, 4, 3, "3g.20gb")
    placed, waiting = placement.plan([big, small], Fleet([host()], [card(taken=(held,))]))
    assert [p.vm_id for p in placed] == [small.vm_id] and [w.vm_id for w in waiting] == [big.vm_id]


def test_the_fuller_card_is_used_and_the_empty_one_kept() -> None:
    fleet = Fleet([host()], [card("g1"), card("g2", taken=(Window(4, 4, 3, "3g.20gb"),))])
    (one,), _ = placement.plan([wish("1g.5gb")], fleet)
    assert (one.gpu_id, one.slice and one.slice.start) == ("g2", 0)


def test_a_name_of_two_sizes_takes_the_lesser_share() -> None:
    fleet = Fleet([host()], [card("g1", "A100-40GB"), card("g2", "A100-80GB")])
    (one,), _ = placement.plan([wish("1g.10gb")], fleet)
    assert one.gpu_id == "g2" and one.slice_mib == 9856


def test_equal_choices_go_by_id() -> None:
    hosts, cards = [host("h2"), host("h1")], [card("g9", on="h1"), card("g1", on="h2"), card("g3", on="h1")]
    (one,), _ = placement.plan([wish("1g.5gb")], Fleet(hosts, cards))
    assert (one.host_id, one.gpu_id) == ("h1", "g3")
    # equal cards of two models, and no room beside the first
    hosts = [host("h1", memory_used_mib=249036), host("h2"), host("h3")]
    cards = [card("g1", "A100-80GB"), card("g2", "H100-80GB", on="h2"), card("g3", "A100-80GB", on="h3")]
    (one,), _ = placement.plan([wish("1g.10gb")], Fleet(hosts, cards))
    assert one.gpu_id == "g2"


def test_media_engines_only_when_asked() -> None:
    fleet = Fleet([host()], [card()])
    placed, waiting = placement.plan([wish("1g.5gb+ME"), wish("1g.5gb+me"), wish("1/8")], fleet)
    assert [p.slice and p.slice.profile for p in placed] == ["1g.5gb+me", "1g.5gb"]
    assert [w.reason.code for w in waiting] == [ReasonCode.no_slice_free]


def test_whole_excludes_all_and_is_excluded_by_any() -> None:
    fleet = Fleet([host()], [card()])
    placed, waiting = placement.plan([wish("whole"), wish("1g.5gb")], fleet)
    assert [p.slice for p in placed] == [Window(0, 8, 7, "whole")] and len(waiting) == 1
    placed, waiting = placement.plan([wish("1g.5gb"), wish("whole")], fleet)
    assert [p.slice and p.slice.profile for p in placed] == ["1g.5gb"] and len(waiting) == 1


def test_a_physical_card_is_had_whole_and_meets_one_fgpu() -> None:
    physical = card(model="10de:13f2", mode=Mode.passthrough)
    for gpu in ("whole", "1"):
        placed, waiting = placement.plan([wish(gpu), wish(gpu)], Fleet([host()], [physical]))
        assert [p.slice for p in placed] == [Window(0, 1, 1, "whole")] and len(waiting) == 1
    placed, _ = placement.plan([wish("1")], Fleet([host()], [card()]))
    assert [p.slice and p.slice.profile for p in placed] == ["7g.40gb"]


def test_half_a_card_is_cut_before_a_whole_one_is_given() -> None:
    fleet = Fleet([host()], [card("g1", "10de:13f2", mode=Mode.passthrough), card("g2")])
    placed, _ = placement.plan([wish("0.5") for _ in range(3)], fleet)
    assert [p.gpu_id for p in placed] == ["g2", "g2", "g1"]


def test_pinned_vcpus_take_whole_threads() -> None:
    numa = host(threads=8, pins=True)
    cards = [card(f"g{n}", "10de:13f2", mode=Mode.passthrough) for n in range(3)]
    placed, waiting = placement.plan([wish("whole", vcpus=3) for _ in range(3)] + [wish(vcpus=8)], Fleet([numa], cards))
    assert [p.pinned for p in placed] == [True, True, False]  # 3 + 3 threads pinned, 8 vCPUs on the other 2
    assert waiting[0].reason == reason(ReasonCode.no_host_cpu, needed=3, free=0)
    placed, _ = placement.plan([wish("whole", vcpus=3) for _ in range(3)], Fleet([replace(numa, pins=False)], cards))
    assert [p.pinned for p in placed] == [False] * 3


def test_memory_keeps_its_reserve_and_is_never_promised_twice() -> None:
    assert host(memory_mib=8192).reserve_mib == 1024
    assert host(memory_mib=262144).reserve_mib == 13108
    small = host(memory_mib=4096)
    placed, waiting = placement.plan([wish(memory_mib=2048), wish(memory_mib=1024), wish()], Fleet([small]))
    assert len(placed) == 2
    assert waiting[0].reason == reason(ReasonCode.no_host_memory, needed_mib=1024, free_mib=0)


def test_a_disk_decides_the_host_and_needs_no_new_space() -> None:
    full = host("h1", disk_free_gib=0)
    fleet = Fleet([full, host("h2")], [card("g1", on="h1"), card("g2", on="h2")])
    (one,), _ = placement.plan([wish("3g.20gb", disk_on="h1", disk_gib=50)], fleet)
    assert (one.host_id, one.disk_gib) == ("h1", 0)
    (other,), _ = placement.plan([wish("3g.20gb", disk_gib=50)], fleet)
    assert (other.host_id, other.disk_gib) == ("h2", 50)


def test_an_image_takes_room_once_where_it_is_new() -> None:
    """Of 30 GiB an image takes 12 with the first VM that stands on it; the next two share that copy."""
    fleet = Fleet([host(disk_free_gib=30)])
    asked = [wish(disk_gib=6, image="i1", image_gib=12) for _ in range(4)]
    placed, (waiting,) = placement.plan(asked, fleet)
    assert [(one.disk_gib, one.image_gib) for one in placed] == [(6, 12), (6, 0), (6, 0)]
    assert waiting.reason == reason(ReasonCode.no_disk_space, needed_gib=6, free_gib=0)
    for one in placed:
        fleet.place(one)
    fleet.free(placed[0])
    assert (fleet.hosts["h1"].disk_free_gib, fleet.hosts["h1"].images) == (6, {"i1"})


def test_a_host_that_has_the_image_is_large_enough_where_another_is_not() -> None:
    fleet = Fleet([host("h1", disk_free_gib=15), host("h2", disk_free_gib=10, images=frozenset({"i1"}))])
    (one,), _ = placement.plan([wish(disk_gib=10, image="i1", image_gib=8)], fleet)
    assert one.host_id == "h2"
    _, (waiting,) = placement.plan([wish(disk_gib=11, image="i1", image_gib=8)], fleet)
    assert waiting.reason == reason(ReasonCode.no_disk_space, needed_gib=11, free_gib=10)
    never = placement.never(wish(disk_gib=3999, image="i1", image_gib=8), fleet)
    assert never and "4007 GiB of disk (with 8 GiB of its image)" in never.sentence()


def test_the_retry_goes_elsewhere() -> None:
    fleet = Fleet([host("h1"), host("h2")], [card("g1"), card("g2"), card("g3", on="h2")])
    (one,), _ = placement.plan([wish("1g.5gb", disk_on="h1", not_gpus=frozenset({"g1"}))], fleet)
    assert one.gpu_id == "g2"
    (one,), _ = placement.plan([wish("1g.5gb", not_hosts=frozenset({"h1"}))], fleet)
    assert one.gpu_id == "g3"


def test_closed_hosts_and_cards_get_nothing() -> None:
    drain = reason(ReasonCode.host_draining, host="h1")
    fleet = Fleet([host("h1", closed=drain), host("h2")], [card("g1"), card("g2", on="h2", closed=drain)])
    placed, waiting = placement.plan([wish("1g.5gb"), wish()], fleet)
    assert [p.host_id for p in placed] == ["h2"] and placed[0].gpu_id is None
    assert [w.reason for w in waiting] == [drain]
    fleet.put_host(host("h1"))
    placed, _ = placement.plan([wish("1g.5gb")], fleet)
    assert [p.gpu_id for p in placed] == ["g1"]
    before = still(fleet)
    fleet.put_host(host("h1"))
    fleet.put_card(card("g1"))
    assert still(fleet) == before
    fleet.put_host(host("h1", closed=drain))
    assert not placement.plan([wish("1g.5gb")], fleet)[0]


def test_a_vm_without_a_card_stays_off_the_hosts_that_have_one() -> None:
    fleet = Fleet([host("h1"), host("h2", memory_mib=524288)], [card(on="h1")])
    (one,), _ = placement.plan([wish()], fleet)
    assert one.host_id == "h2"


def test_a_simulated_fleet_fills_to_the_last_slice() -> None:
    fleet = Fleet([host(threads=128, memory_mib=1 << 20)], [card(f"g{n}", "A100-80GB") for n in range(8)])
    placed, waiting = placement.plan([wish("1g.10gb") for _ in range(60)], fleet)
    assert len(placed) == 56 and len(waiting) == 4
    for one in placed:
        fleet.place(one)
    assert all(is_legal(placement.model(c.model), c.taken) for c in fleet.cards.values())


def test_a_fleet_forgets_what_is_dropped() -> None:
    fleet = Fleet([host("h1"), host("h2")], [card("g1"), card("g2", on="h2")])
    fleet.drop_host("h1")
    fleet.drop_card("g2")
    fleet.drop_card("g2")
    assert still(fleet) == still(Fleet([host("h2")]))
