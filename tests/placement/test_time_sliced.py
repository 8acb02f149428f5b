"""Time-sliced vGPUs: all on one card are of one size, and not each of them runs CUDA."""

from dataclasses import replace
from fractions import Fraction

import pytest

from vmgpu import placement
from vmgpu.errors import ReasonCode
from vmgpu.placement import ByProfile, ByShare, CardModel, CardState, Fleet, Mode, Profile, Window, tables

from .made import host, wish


def vgpu(name: str, cells: int, most: int, *series: str, cuda: bool = True) -> Profile:
    """A vGPU type of this many cells of half a GB; `series` B and A are asked for by name only."""
    starts = tuple(range(0, most * cells, cells))
    return Profile(name, cells, cells, starts, cells * 512, most, frozenset(series), cuda)


def shape(name: str, gb: int, *profiles: Profile, equal: bool = True) -> CardModel:
    return tables.shape_told(
        name, memory_gb=gb, cells=2 * gb, compute=2 * gb, instances=2 * gb, profiles=profiles, equal=equal
    )


M60 = shape(
    "Tesla M60",
    8,
    vgpu("M60-1Q", 2, 8, cuda=False),
    vgpu("M60-2Q", 4, 4, cuda=False),
    vgpu("M60-2B", 4, 4, "B", cuda=False),
    vgpu("M60-4Q", 8, 2, cuda=False),
    vgpu("M60-8Q", 16, 1),
)
A6000 = shape(
    "RTX A6000", 48, vgpu("A6000-2Q", 4, 24), vgpu("A6000-2B", 4, 24, "B", cuda=False), vgpu("A6000-48Q", 96, 1)
)


def card(told: CardModel, *taken: Window, name: str = "g1") -> CardState:
    return CardState(name, "h1", told.name, Mode.vgpu, taken=taken, told=told, name=name)


def placed(fleet: Fleet, gpu: ByProfile | ByShare) -> str | None:
    found, _ = placement.plan([replace(wish(), gpu=gpu)], fleet)
    return found[0].slice.profile if found and found[0].slice else None


@pytest.mark.parametrize(
    ("share", "profile"), [("1", "M60-8Q"), ("1/2", "M60-4Q"), ("1/4", "M60-2Q"), ("1/8", "M60-1Q")]
)
def test_a_share_is_nominal_memory(share: str, profile: str) -> None:
    assert placed(Fleet([host()], [card(M60)]), ByShare(Fraction(share))) == profile


def test_cuda_is_never_given_where_it_does_not_run() -> None:
    fleet = Fleet([host()], [card(M60)])
    assert placed(fleet, ByShare(Fraction(1, 4), cuda=True)) == "M60-8Q"
    assert placed(fleet, ByProfile("M60-2Q", cuda=True)) is None
    assert placed(fleet, ByProfile("m60-2q")) == "M60-2Q"


def test_other_sizes_wait_while_one_is_cut() -> None:
    """One 2Q runs: 48Q waits and is told why; 2Q and 2B start, and share the 23 places that are left."""
    running = Window(0, 4, 4, "A6000-2Q")
    fleet = Fleet([host()], [card(A6000, running)])
    wishes = [wish("A6000-48Q"), *(wish(("A6000-2Q", "A6000-2B")[n % 2]) for n in range(24))]
    started, waiting = placement.plan(wishes, fleet)
    assert len(started) == 23
    assert [w.reason.code for w in waiting] == [ReasonCode.cut_otherwise, ReasonCode.no_slice_free]
    assert "pieces of 2 GiB until the last of 24 VMs" in waiting[0].reason.sentence()
    fleet.free(placement.Placed("x", "h1", 0, 0, 0, 0, gpu_id="g1", slice=running))
    assert placed(fleet, ByProfile("A6000-48Q")) == "A6000-48Q"


def test_a_mixed_card_takes_any_sizes_at_their_places() -> None:
    """In mixed-size mode what decides is the list of places alone."""
    l4 = shape(
        "L4",
        24,
        Profile("L4-8Q", 16, 16, (0, 32), 8192, 2),
        Profile("L4-6Q", 12, 12, (0, 12, 24, 36), 6144, 4),
        equal=False,
    )
    started, _ = placement.plan([wish("L4-6Q"), wish("L4-8Q"), wish("L4-6Q")], Fleet([host()], [card(l4)]))
    assert [one.slice.profile for one in started if one.slice] == ["L4-6Q", "L4-8Q", "L4-6Q"]
    assert tables.legal(l4, [one.slice for one in started if one.slice])
