"""The sentences: why a wish waits, what could never be, and what each filter left."""

from fractions import Fraction

import pytest

from vmgpu import placement
from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.placement import Filter, Fleet, Mode, Window

from .made import card, host, wish

FULL = (Window(0, 4, 4, "4g.20gb"), Window(4, 4, 3, "3g.20gb"))


def why(fleet: Fleet, **wanted: object) -> Reason:
    (waiting,) = placement.plan([wish(**wanted)], fleet)[1]  # type: ignore[arg-type]
    assert "?" not in waiting.reason.sentence()
    return waiting.reason


def no(fleet: Fleet, **wanted: object) -> Reason:
    found = placement.never(wish(**wanted), fleet)  # type: ignore[arg-type]
    assert found and "?" not in found.sentence() + found.cure()
    return found


def test_each_filter_says_what_it_left() -> None:
    drain = reason(ReasonCode.host_draining, host="h3")
    hosts = [host("h1"), host("h2", threads=1, vcpus_used=4), host("h3", closed=drain), host("h4")]
    cards = [card("g1", on="h1", taken=FULL), card("g2", on="h2"), card("g3", on="h3"), card("g4", "A30", on="h4")]
    steps = placement.explain(wish("3g.20gb"), Fleet(hosts, cards))
    assert [(s.filter, s.left) for s in steps] == [
        (Filter.disk_place, 4),
        (Filter.kind, 4),
        (Filter.retry, 4),
        (Filter.offer, 3),
        (Filter.host_open, 2),
        (Filter.card_open, 2),
        (Filter.slice_free, 1),
        (Filter.group_free, 1),
        (Filter.cpu, 0),
    ]
    assert steps[-1].reason == reason(ReasonCode.no_host_cpu, needed=1, free=0)


def test_an_image_of_the_other_kind_is_no_failure_of_the_host() -> None:
    fleet = Fleet([host("h1")], [card("g1")])
    for gpu in ("1g.5gb", None):
        found = no(fleet, gpu=gpu, other_kind=frozenset({"h1"}))
        assert found == reason(ReasonCode.other_kind, hosts="h1")
    assert why(fleet, gpu="1g.5gb", other_kind=frozenset({"h1"})).code == ReasonCode.other_kind


def test_a_wish_that_fits_passes_all_filters() -> None:
    fleet = Fleet([host()], [card()])
    assert [s.filter for s in placement.explain(wish("3g.20gb"), fleet)] == list(Filter)
    assert all(s.reason is None for s in placement.explain(wish(), fleet))
    assert placement.why_waiting(wish("3g.20gb"), fleet) is None


def test_why_it_waits() -> None:
    full = Fleet([host()], [card(taken=FULL)])
    assert why(full, gpu="3g.20gb").sentence().startswith("Both places for 3g.20gb on the one card are taken")
    assert why(full, gpu="0.25").args["profile"] == "1g.10gb"
    assert why(Fleet(), gpu="1").code == ReasonCode.no_host
    assert why(Fleet([host()]), gpu="1").code == ReasonCode.no_gpu_of_kind
    assert why(Fleet([host()], [card()]), gpu="9g.90gb").code == ReasonCode.no_gpu_of_kind
    assert why(Fleet([host(disk_free_gib=3)]), disk_gib=5) == reason(ReasonCode.no_disk_space, needed_gib=5, free_gib=3)
    assert why(Fleet([host(disk_free_gib=-3)]), disk_gib=5).args["free_gib"] == 0


def test_why_it_waits_for_the_host_of_its_disk() -> None:
    gone = reason(ReasonCode.host_unreachable, host="h2", detail="no route")
    fleet = Fleet([host("h1"), host("h2", closed=gone)], [card("g1", taken=FULL), card("g2", on="h2")])
    here = why(fleet, gpu="3g.20gb", disk_on="h1")
    assert here.code == ReasonCode.disk_elsewhere and here.args["host"] == "h1"
    assert "3g.20gb" in here.args["detail"]
    assert why(fleet, gpu="3g.20gb", disk_on="h2") == gone
    assert why(fleet, gpu="3g.20gb", disk_on="h9").code == ReasonCode.disk_elsewhere


def test_why_the_one_retry_waits() -> None:
    fleet = Fleet([host()], [card()])
    assert why(fleet, gpu="1g.5gb", not_gpus=frozenset({"g1"})) == reason(ReasonCode.card_excluded, gpu="g1")
    assert why(fleet, gpu="1g.5gb", not_hosts=frozenset({"h1"})) == reason(ReasonCode.host_excluded, host="h1")
    assert why(fleet, not_gpus=frozenset({"h1"}), not_hosts=frozenset({"h1", "g1"})).args["host"] == "h1"
    named = Fleet([host()], [card(name="left")])
    assert why(named, gpu="1g.5gb", not_gpus=frozenset({"g1", "g8"})).args["gpu"] == "left"
    assert no(fleet, gpu="1g.5gb", not_gpus=frozenset({"g1"})).code == ReasonCode.card_excluded
    assert no(fleet, gpu="1g.5gb", not_hosts=frozenset({"h1"})).code == ReasonCode.host_excluded


def test_a_quarantined_card_is_named() -> None:
    ill = reason(ReasonCode.card_quarantined, gpu="g1", detail="does not answer")
    assert why(Fleet([host()], [card(closed=ill)]), gpu="1g.5gb") == ill
    several = Fleet(
        [host()], [card("g1", closed=ill), card("g2", closed=reason(ReasonCode.card_quarantined, gpu="g2"))]
    )
    assert why(several, gpu="1g.5gb").code == ReasonCode.no_gpu_of_kind


@pytest.mark.parametrize(
    ("wanted", "what", "nearest"),
    [
        ({"gpu": "7g.80gb"}, "gpu", "7g.40gb on A100-40GB"),
        ({"gpu": "2g.12gb"}, "gpu", "3g.20gb on A100-40GB"),
        ({"gpu": "9g.90gb"}, "gpu", "one of 1g.10gb, 1g.5gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb"),
        ({"gpu": "2.5"}, "gpu", "2 fGPU, all of one A100-40GB"),
        ({"vcpus": 257}, "cpu", "256 vCPUs on host h1"),
        (
            {"memory_mib": 32768, "gpu": "1g.5gb"},
            "memory",
            "30.4 GiB on host h1 (32 GiB less 1.6 GiB that the host keeps)",
        ),
        ({"disk_gib": 4001}, "disk", "4000 GiB on host h1"),
    ],
)
def test_never_says_the_nearest_that_fits(wanted: dict[str, object], what: str, nearest: str) -> None:
    fleet = Fleet([host(memory_mib=32768)], [card(taken=FULL)], units={"a100-40gb": Fraction(1, 2)})
    found = no(fleet, **wanted)
    assert (found.code, found.args["what"], found.args["nearest"]) == (ReasonCode.never_fits, what, nearest)


def test_never_without_any_card() -> None:
    assert no(Fleet([host()]), gpu="1").args["nearest"] == "a flavor without a GPU"
    assert no(Fleet([host()]), gpu="1g.5gb", not_gpus=frozenset({"g1"})).args["nearest"] == "a flavor without a GPU"
    assert no(Fleet([host(), host("h2")], [card(on="h2")]), gpu="1", disk_on="h1").code == ReasonCode.never_fits


def test_never_looks_only_at_hosts_that_have_the_card() -> None:
    fleet = Fleet([host("h1", memory_mib=8192), host("h2")], [card()])
    assert no(fleet, gpu="1g.5gb", memory_mib=16384).args["nearest"].startswith("7 GiB on host h1")
    assert placement.never(wish(memory_mib=16384), fleet) is None


def test_nothing_is_impossible_while_a_host_is_not_known() -> None:
    closed = reason(ReasonCode.host_unsurveyed, host="h2")
    unknown = host("h2", known=False, closed=closed, threads=0, memory_mib=0, disk_gib=0, disk_free_gib=0)
    assert placement.never(wish("7g.80gb", vcpus=9999), Fleet([host("h1"), unknown], [card()])) is None
    assert placement.never(wish("7g.80gb", vcpus=9999), Fleet()) is None


def test_what_is_full_or_drained_is_not_impossible() -> None:
    drain = reason(ReasonCode.host_draining, host="h1")
    busy = host(closed=drain, vcpus_used=256, memory_used_mib=249036, disk_free_gib=0)
    fleet = Fleet([busy], [card(taken=FULL, closed=drain)])
    assert placement.never(wish("7g.40gb", vcpus=256, memory_mib=249036, disk_gib=4000), fleet) is None


def test_a_whole_card_is_not_to_be_had_of_one_in_mig_mode() -> None:
    fleet = Fleet([host()], [card(mode=Mode.mig)])
    assert no(fleet, gpu="whole").args["nearest"].startswith("one of 1g.10gb")


@pytest.mark.parametrize(
    ("places", "cards", "said"),
    [
        (1, 1, "The one place for whole on the one card is taken;"),
        (2, 1, "Both places for whole on the one card are taken;"),
        (4, 2, "All 4 places for whole on 2 cards are taken;"),
    ],
)
def test_numbers_are_said_as_people_say_them(places: int, cards: int, said: str) -> None:
    full = reason(ReasonCode.no_slice_free, profile="whole", places=places, cards=cards)
    assert full.sentence().startswith(said)
    assert reason(ReasonCode.no_slice_free).sentence().startswith("All ? places for ? on ? cards are taken;")
