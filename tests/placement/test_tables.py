"""What fits on a card, checked against a second, plain reading of the rules."""

from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmgpu import placement
from vmgpu.errors import Invalid, NotFound
from vmgpu.placement import Mode, Profile, Window, tables

from .made import MODELS, is_legal, quick


def windows(shape: placement.CardModel) -> list[Window]:
    return [Window(s, p.cells, p.compute, p.name) for p in (*shape.profiles, shape.whole) for s in p.starts]


@pytest.mark.parametrize("name", MODELS)
def test_the_data_file_is_whole(name: str) -> None:
    shape = placement.model(name)
    assert shape.source and shape.pci_ids
    for own in shape.profiles:
        assert len(set(own.starts)) == len(own.starts) == len([s for s in own.starts if s + own.cells <= shape.cells])
        assert own.memory_mib <= shape.memory_gb * 1024 * own.cells // shape.cells
    largest = shape.profiles[-1]
    assert (largest.cells, largest.compute, largest.most) == (shape.cells, shape.compute, 1)


@pytest.mark.parametrize(
    ("name", "profile", "compute", "cells", "starts", "most"),
    [
        ("A100-40GB", "1g.5gb", 1, 1, {0, 1, 2, 3, 4, 5, 6}, 7),
        ("A100-40GB", "1g.10gb", 1, 2, {0, 2, 4, 6}, 4),
        ("A100-80GB", "2g.20gb", 2, 2, {0, 2, 4}, 3),
        ("H100-80GB", "3g.40gb", 3, 4, {0, 4}, 2),
        ("H100-80GB", "4g.40gb", 4, 4, {0}, 1),
        ("A30", "2g.12gb+me", 2, 2, {0, 2}, 1),
    ],
)
def test_known_profiles(name: str, profile: str, compute: int, cells: int, starts: set[int], most: int) -> None:
    own = placement.profile(placement.model(name), profile)
    assert (own.compute, own.cells, set(own.starts), own.most) == (compute, cells, starts, most)


@pytest.mark.parametrize("name", ["A30", "a30-24gb", " A30-24GB ", "10DE:20B7"])
def test_a_model_is_found_by_name_alias_and_pci_id(name: str) -> None:
    assert placement.model(name).name == "A30-24GB"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(NotFound) as model:
        placement.model("A1000")
    assert all(name in model.value.hint for name in MODELS)
    with pytest.raises(NotFound) as profile:
        placement.profile(placement.model("A30"), "3g.20gb")
    assert "4g.24gb" in profile.value.hint


@pytest.mark.parametrize("name", MODELS)
def test_pairs_agree_with_the_plain_rules(name: str) -> None:
    shape = placement.model(name)
    for pair in combinations(windows(shape), 2):
        assert placement.legal(shape, pair) == is_legal(shape, pair), pair


@pytest.mark.parametrize("name", MODELS)
@quick
@given(st.data())
def test_layouts_agree_with_the_plain_rules(name: str, data: st.DataObject) -> None:
    shape = placement.model(name)
    laid: tuple[Window, ...] = ()
    for window in data.draw(st.lists(st.sampled_from(windows(shape)), max_size=9)):
        free = tables.starts(shape, tables.layout(shape, laid), placement.profile(shape, window.profile))
        assert (window.start in free) == is_legal(shape, (*laid, window))
        if window.start in free:
            laid = (*laid, window)
    assert placement.legal(shape, laid)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_starts_hold_as_many_as_can_be_held(name: str) -> None:
    shape = placement.model(name)
    for own in shape.profiles:
        at = [Window(s, own.cells, own.compute, own.name) for s in own.starts]
        most = max(n for n in range(len(at) + 1) if any(is_legal(shape, some) for some in combinations(at, n)))
        assert tables.places(shape, own) == most == own.most


@pytest.mark.parametrize("small", [("1g.5gb",) * 3, ("3g.20gb",), ("2g.10gb", "1g.5gb"), ("1g.10gb",) * 2])
def test_small_slices_leave_the_only_place_of_a_4g(small: tuple[str, ...]) -> None:
    shape = placement.model("A100-40GB")
    laid: tuple[Window, ...] = ()
    for name in (*small, "4g.20gb"):
        own = placement.profile(shape, name)
        start = tables.starts(shape, tables.layout(shape, laid), own)[0]
        laid = (*laid, Window(start, own.cells, own.compute, own.name))
    assert is_legal(shape, laid)


def test_every_sum_binds_where_the_grid_alone_would_not() -> None:
    # no known card has such a grid, but a driver may show one
    small, wide = Profile("small", 2, 1, (0, 1, 2, 3), 1, 3), Profile("wide", 1, 2, (0, 2), 1, 1)
    whole = Profile("whole", 5, 4, (0,), 1, 1)
    shape = placement.CardModel("made-up", 1, 5, 4, 2, (small, wide), whole)

    def laid(*names: str) -> tuple[Window, ...]:
        own = [placement.profile(shape, name) for name in names]
        return tuple(Window(n, p.cells, p.compute, p.name) for n, p in enumerate(own))

    assert tables.starts(shape, tables.layout(shape, laid("small")), small) == (1, 2, 3)
    assert tables.starts(shape, tables.layout(shape, laid("small", "small")), wide) == ()  # two instances at most
    assert tables.starts(shape, tables.layout(shape, laid("wide")), wide) == ()  # one of this profile at most
    roomy = placement.CardModel("made-up", 1, 5, 4, 9, (small, wide), whole)
    assert tables.starts(roomy, tables.layout(roomy, laid("small", "small")), small) == ()  # 6 compute slices of 5
    assert tables.starts(roomy, tables.layout(roomy, laid("small", "small")), wide) == (2,)


def test_worked_layouts() -> None:
    shape = placement.model("A100-40GB")
    three, two, one = Window(4, 4, 3, "3g.20gb"), Window(2, 2, 2, "2g.10gb"), Window(0, 1, 1, "1g.5gb")
    assert placement.legal(shape, [three, two, one, Window(1, 1, 1, "1g.5gb")])
    assert not placement.legal(shape, [Window(0, 4, 3, "3g.20gb"), Window(6, 2, 2, "2g.10gb")])  # 2g has no start 6
    assert not placement.legal(shape, [Window(0, 1, 1, "1g.5gb+me"), Window(1, 1, 1, "1g.5gb+me")])
    a30 = placement.model("A30")  # one set of media engines, whatever the sizes
    assert not placement.legal(a30, [Window(0, 1, 1, "1g.6gb+me"), Window(2, 2, 2, "2g.12gb+me")])


@pytest.mark.parametrize(
    ("name", "share", "profile"),
    [
        ("A100-40GB", "0.5", "3g.20gb"),
        ("A100-40GB", "0.25", "1g.10gb"),
        ("A100-40GB", "1", "7g.40gb"),
        ("A100-40GB", "0.125", "1g.5gb"),
        ("A100-40GB", "0.6", "7g.40gb"),
        ("A100-80GB", "1/7", "1g.20gb"),
        ("A30", "0.5", "2g.12gb"),
        ("A30", "0.0001", "1g.6gb"),
    ],
)
def test_a_share_is_the_least_profile_that_is_as_much(name: str, share: str, profile: str) -> None:
    found = placement.profile_for(placement.model(name), placement.parse_fgpu(share))
    assert found and found.name == profile


def test_half_a_card_is_stated_as_both_shares() -> None:
    shape = placement.model("A100-40GB")
    share = placement.share_of(placement.profile(shape, "3g.20gb"), shape)
    assert (share.memory, share.compute) == (Fraction(1, 2), Fraction(3, 7))
    assert (share.memory_percent, share.compute_percent) == (50, 43)


@pytest.mark.parametrize("name", MODELS)
def test_more_of_a_share_is_never_less_of_a_card(name: str) -> None:
    shape = placement.model(name)
    found = [placement.profile_for(shape, Fraction(n, 200)) for n in range(1, 201)]
    assert all(p and not p.attributes for p in found)
    assert all(a and b and (a.cells, a.compute) <= (b.cells, b.compute) for a, b in pairwise(found))
    assert placement.profile_for(shape, Fraction(201, 200)) is None


@pytest.mark.parametrize(
    "text", ["0", "0.0", "-1", "", "one", "1e9", "1e999999999", "nan", "inf", "1/0", "0/3", "٣", "1.1234567"]
)
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        placement.parse_fgpu(text)


def test_shares_are_exact_and_read_back() -> None:
    assert placement.parse_fgpu("0.1") * 10 == 1
    assert [placement.say_fgpu(placement.parse_fgpu(t)) for t in ("0.50", "1/3", "20", "0.125")] == [
        "0.5",
        "1/3",
        "20",
        "0.125",
    ]
    with pytest.raises(Invalid):
        placement.parse_unit("1.5")
    with pytest.raises(Invalid):
        placement.profile_for(placement.model("A30"), Fraction(0))


def test_a_whole_physical_card_is_one_piece_of_any_model() -> None:
    shape = placement.shape_of("10de:13f2", Mode.passthrough)
    assert [p.name for p in placement.offered(shape, Mode.passthrough)] == ["whole"]
    assert shape.memory_gb == 0  # not known, so not made up
    assert placement.shape_of("A100-40GB", Mode.passthrough).memory_gb == 40
    assert "whole" not in [p.name for p in placement.offered(placement.model("A30"), Mode.mig)]
