"""What must hold for any fleet, any wishes and any order of coming and going."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmgpu import placement
from vmgpu.placement import Fleet, HostState, Mode, Placed, Window, Wish, policy, tables

from .made import MODELS, card, host, is_legal, quick, still, wish

GPUS = st.sampled_from(
    ["1g.5gb", "1g.5gb+me", "1g.10gb", "1g.10gb+me", "1g.6gb+me", "2g.12gb+me", "2g.20gb", "3g.20gb", "3g.40gb",
     "4g.40gb", "4g.20gb", "7g.40gb", "7g.80gb", "whole", "0.1", "0.25", "1/3", "0.5", "1", "2", "no.such", None]
)  # fmt: skip


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    hosts = [
        host(
            f"h{n}",
            threads=draw(st.integers(1, 8)),
            memory_mib=draw(st.sampled_from([2048, 8192, 65536])),
            disk_gib=100,
            disk_free_gib=draw(st.sampled_from([0, 20, 100])),
            overcommit=draw(st.sampled_from([1, 3, 4, 1.5])),
            pins=draw(st.booleans()),
        )
        for n in range(draw(st.integers(1, 3)))
    ]
    cards = [
        card(
            f"g{n}",
            model,
            on=draw(st.sampled_from(hosts)).id,
            mode=Mode.emulated if model in MODELS else Mode.passthrough,
        )
        for n, model in enumerate(draw(st.lists(st.sampled_from([*MODELS, "10de:13f2"]), max_size=4)))
    ]
    return Fleet(hosts, cards, units={"A100-40GB": draw(st.sampled_from([Fraction(1), Fraction(1, 2)]))})


@st.composite
def queues(draw: st.DrawFn) -> list[Wish]:
    few = st.sampled_from(draw(st.lists(GPUS, min_size=1, max_size=4)))  # so that many compete for the same
    return [
        wish(
            draw(few),
            vcpus=draw(st.sampled_from([1, 2, 5])),
            memory_mib=draw(st.sampled_from([512, 1024, 6000])),
            disk_gib=draw(st.sampled_from([1, 15])),
            disk_on=draw(st.sampled_from([None, None, None, "h0", "h2"])),
            not_gpus=draw(st.sampled_from([frozenset[str](), frozenset({"g0"})])),
            not_hosts=draw(st.sampled_from([frozenset[str](), frozenset({"h1"})])),
        )
        for _ in range(draw(st.integers(0, 14)))
    ]


def check(fleet: Fleet) -> None:
    """No card holds an illegal layout and no host has given more than it has."""
    for one in fleet.cards.values():
        assert is_legal(tables.shape_of(one.model, one.mode), one.taken)
    for h in fleet.hosts.values():
        assert h.vcpus_used + h.vcpus_pinned * h.overcommit <= h.threads * h.overcommit + 1e-3
        assert h.memory_used_mib <= max(0, h.memory_mib - max(1024, h.memory_mib * 0.05))
        assert 0 <= h.disk_free_gib <= h.disk_gib


def fits_somewhere(one: Wish, fleet: Fleet) -> bool:
    """Try every host, card, profile and start there is."""
    for h in fleet.hosts.values():
        if one.disk_on not in (None, h.id) or h.id in one.not_hosts:
            continue
        if one.memory_mib > h.memory_free_mib or (not one.disk_on and one.disk_gib > h.disk_free_gib):
            continue
        cards = [None] if one.gpu is None else [c for c in fleet.cards_on(h.id) if c.id not in one.not_gpus]
        for c in cards:
            per_thread = 1 if c and h.pins and c.mode is Mode.passthrough else h.overcommit
            if one.vcpus > round(h.threads_free * per_thread, 3):
                continue
            if c is None or one.gpu is None:
                return True
            shape = tables.shape_of(c.model, c.mode)
            own = policy.profile_on(one.gpu, shape, c.mode, fleet)
            at = [Window(s, own.cells, own.compute, own.name) for s in own.starts] if own else []
            if any(is_legal(shape, (*c.taken, w)) for w in at):
                return True
    return False


@quick
@given(fleets(), queues())
def test_a_plan_is_legal_complete_and_in_order(fleet: Fleet, queue: list[Wish]) -> None:
    before = still(fleet)
    placed, waiting = placement.plan(queue, fleet)
    assert still(fleet) == before
    assert len(placed) + len(waiting) == len(queue)
    assert {p.vm_id for p in placed} | {w.vm_id for w in waiting} == {w.vm_id for w in queue}
    assert [w.position for w in waiting] == list(range(1, len(waiting) + 1))
    for one in placed:
        assert one.host_version == fleet.hosts[one.host_id].version
        fleet.place(one)
        check(fleet)

    by_id = {w.vm_id: w for w in queue}
    late = [by_id[w.vm_id] for w in waiting]
    assert late == sorted(late, key=lambda w: w.order)
    for w in late:
        assert not fits_somewhere(w, fleet)
        assert not any(by_id[p.vm_id].kind == w.kind and by_id[p.vm_id].order > w.order for p in placed)
    for w in waiting:
        assert w.reason.sentence()

    for one in reversed(placed):
        fleet.free(one)
    assert still(fleet) == before


@quick
@given(fleets(), queues(), st.randoms(use_true_random=False))
def test_freed_in_any_order_the_fleet_is_as_it_was(fleet: Fleet, queue: list[Wish], random: object) -> None:
    before = still(fleet)
    held: list[Placed] = []
    for n, w in enumerate(queue):
        one = placement.choose(w, fleet)
        assert (one is not None) == fits_somewhere(w, fleet) == (placement.why_waiting(w, fleet) is None)
        if one:
            fleet.place(one)
            held.append(one)
        if n % 3 == 2 and held:
            fleet.free(held.pop(random.randrange(len(held))))  # type: ignore[attr-defined]
        check(fleet)
    random.shuffle(held)  # type: ignore[attr-defined]
    for one in held:
        fleet.free(one)
    assert still(fleet) == before


@quick
@given(fleets(), queues())
def test_never_is_what_an_empty_fleet_cannot_hold(fleet: Fleet, queue: list[Wish]) -> None:
    def emptied(h: HostState) -> HostState:
        return replace(h, disk_free_gib=h.disk_gib)

    empty = Fleet(map(emptied, fleet.hosts.values()), fleet.cards.values(), units=fleet._units)
    for w in queue:
        assert (placement.never(w, fleet) is None) == (placement.choose(w, empty) is not None)


@pytest.mark.parametrize("name", MODELS)
def test_k_shares_of_one_kth_fit_one_card_wherever_the_grid_allows(name: str) -> None:
    shape = placement.model(name)
    allowed = []
    for k in range(1, shape.cells + 2):
        share = Fraction(1, k)
        enough = [
            Window(start, p.cells, p.compute, p.name)
            for p in shape.profiles
            for start in p.starts
            if p.cells >= share * shape.cells and p.compute >= max(1, share * shape.compute // 1) and not p.attributes
        ]
        grid_allows = _some_fit(shape, enough, k)
        placed, _ = placement.plan([wish(f"1/{k}") for _ in range(k)], Fleet([host()], [card(model=name)]))
        assert (len(placed) == k) == grid_allows, k
        allowed += [k] if grid_allows else []
    assert allowed == {8: [1, 2, 4], 4: [1, 2, 4]}[shape.cells]


def _some_fit(shape: placement.CardModel, windows: Sequence[Window], k: int) -> bool:
    if k * min(w.cells for w in windows) > shape.cells or k * min(w.compute for w in windows) > shape.compute:
        return False
    return any(is_legal(shape, some) for some in combinations(windows, k))
