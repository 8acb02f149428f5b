"""Where VMs go: which wishes of the queue fit now, where, and why the others wait. Pure: no I/O, clock or session."""

from __future__ import annotations

from collections.abc import Iterable

from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.placement.explain import Filter, Step, explain, never, why_waiting
from vmgpu.placement.fleet import Fleet
from vmgpu.placement.policy import choose, profile_on
from vmgpu.placement.tables import (
    WHOLE,
    CardModel,
    Mode,
    Profile,
    Share,
    Window,
    legal,
    model,
    models,
    offered,
    parse_fgpu,
    parse_unit,
    places,
    profile,
    profile_for,
    say_fgpu,
    shape_of,
    shape_told,
    share_of,
)
from vmgpu.placement.values import (
    ByProfile,
    ByShare,
    CardState,
    GpuWish,
    HostState,
    Order,
    Placed,
    Waiting,
    Wish,
)

__all__ = [
    "WHOLE",
    "ByProfile",
    "ByShare",
    "CardModel",
    "CardState",
    "Filter",
    "Fleet",
    "GpuWish",
    "HostState",
    "Mode",
    "Order",
    "Placed",
    "Profile",
    "Share",
    "Step",
    "Waiting",
    "Window",
    "Wish",
    "choose",
    "explain",
    "legal",
    "model",
    "models",
    "never",
    "offered",
    "parse_fgpu",
    "parse_unit",
    "places",
    "plan",
    "profile",
    "profile_for",
    "profile_on",
    "say_fgpu",
    "shape_of",
    "shape_told",
    "share_of",
    "why_waiting",
]


def plan(wishes: Iterable[Wish], fleet: Fleet) -> tuple[tuple[Placed, ...], tuple[Waiting, ...]]:
    """Place, in queue order, each wish that fits; number the others and say what each lacks. The fleet is not changed.

    A wish that does not fit holds nothing back from those behind it; of two equal wishes the first always goes first.
    """
    draft = fleet.copy()
    placed: list[Placed] = []
    left: list[Wish] = []
    # nothing is freed during a plan: what did not fit once fits for no equal wish behind it
    full: set[tuple[object, ...]] = set()
    for wish in sorted(wishes, key=lambda w: w.order):
        spot = None if wish.kind in full else choose(wish, draft)
        if spot:
            draft.place(spot)
            placed.append(spot)
        else:
            full.add(wish.kind)
            left.append(wish)
    reasons: dict[tuple[object, ...], Reason] = {}
    waiting: list[Waiting] = []
    for position, wish in enumerate(left, start=1):
        if wish.kind not in reasons:
            reasons[wish.kind] = why_waiting(wish, draft) or reason(ReasonCode.no_slice_free)
        waiting.append(Waiting(wish.vm_id, position, reasons[wish.kind]))
    return tuple(placed), tuple(waiting)
