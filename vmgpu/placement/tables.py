"""What fits on a card: models, profiles, legal starts, and which profile a share of a card is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

from vmgpu.errors import Invalid, NotFound

WHOLE = "whole"
# plain decimals or n/d, and short: Fraction("1e999999999") would eat the memory of the machine
_SHARE = re.compile(r"\d{1,4}(\.\d{1,6})?|\d{1,4}/\d{1,4}", re.ASCII)


class Mode(StrEnum):
    """How a card is used now, which decides what can be had of it."""

    emulated = "emulated"
    mig = "mig"
    passthrough = "passthrough"
    vgpu = "vgpu"  # time-sliced, all of one size, by whichever framework the host has
    mixed = "mixed"  # time-sliced, of several sizes


@dataclass(frozen=True, slots=True)
class Profile:
    """One named size: compute slices, cells of the memory grid, and where it may start (best start first).

    What has attributes (me, gfx, a vGPU's series B or A) is given only to those who ask for it by name.
    """

    name: str
    compute: int
    cells: int
    starts: tuple[int, ...]
    memory_mib: int
    most: int
    attributes: frozenset[str] = frozenset()
    cuda: bool = True


# Compared by identity: each model is made once (cached below), and hashing its tables on every look-up would be slow.
@dataclass(frozen=True, slots=True, eq=False)
class CardModel:
    """One kind of card: its memory grid, its compute slices and what can be cut from it.

    `equal`: all slices that lie on it at one time are of one size, as time-sliced vGPUs are.
    """

    name: str
    memory_gb: int
    compute: int
    cells: int
    instances: int
    profiles: tuple[Profile, ...]
    whole: Profile
    aliases: tuple[str, ...] = ()
    pci_ids: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    equal: bool = False


class Window(NamedTuple):
    """One slice where it lies: cells [start, start + cells)."""

    start: int
    cells: int
    compute: int
    profile: str


class Layout(NamedTuple):
    """All that decides what still fits on a card; cards with equal layouts are interchangeable."""

    mask: int  # bit n: cell n is taken
    compute: int
    instances: int
    spent: frozenset[str]  # profiles of which no more may be cut, however much is free


class Share(NamedTuple):
    """What part of a card a profile is."""

    memory: Fraction
    compute: Fraction

    @property
    def memory_percent(self) -> int:
        """The memory share in whole percent."""
        return round(self.memory * 100)

    @property
    def compute_percent(self) -> int:
        """The compute share in whole percent."""
        return round(self.compute * 100)


def models() -> tuple[CardModel, ...]:
    """Every model the tables know."""
    return _load()


def model(name: str) -> CardModel:
    """The model of this name, alias or PCI id, in any case of letters. Raises NotFound, naming the known ones."""
    found = _by_name().get(name.strip().lower())
    if found is None:
        known = ", ".join(m.name for m in models())
        raise NotFound(f"no card model is called {name!r}", hint=f"Known models: {known}.", where="model")
    return found


def shape_of(name: str, mode: Mode) -> CardModel:
    """What a card of this model is to the planner: one indivisible piece in passthrough, else its tables."""
    return _whole_card(name) if mode is Mode.passthrough else model(name)


@lru_cache(maxsize=1024)
def shape_told(
    name: str, *, memory_gb: int, cells: int, compute: int, instances: int, profiles: tuple[Profile, ...], equal: bool
) -> CardModel:
    """A card as its host says that it can be cut; cards that are told alike are one shape."""
    whole = Profile(WHOLE, compute, cells, (0,), memory_gb * 1024, 1)
    return CardModel(name, memory_gb, compute, cells, instances, profiles, whole, equal=equal)


def offered(shape: CardModel, mode: Mode) -> tuple[Profile, ...]:
    """What can be asked of a card by name: its profiles, and `whole` unless MIG mode stands in the way."""
    return (*shape.profiles, shape.whole) if mode is Mode.emulated else shape.profiles


def profile(shape: CardModel, name: str) -> Profile:
    """The profile of this name. Raises NotFound, naming the model's profiles."""
    found = _profiles(shape).get(name.strip().lower())
    if found is None:
        known = ", ".join(p.name for p in shape.profiles)
        raise NotFound(f"{shape.name} has no profile {name!r}", hint=f"Its profiles: {known}.", where="profile")
    return found


def profile_for(shape: CardModel, share: Fraction, *, cuda: bool = False) -> Profile | None:
    """The least profile that is at least this share of the card; None where one card holds less.

    `cuda`: of those that can run CUDA.
    """
    if share <= 0:
        raise Invalid(f"{say_fgpu(share)} is not a share of a card", hint="A share is more than 0.", where="fgpu")
    # the floor lets k shares of 1/k fit one card: half of 7 compute slices is 3, so that two halves fit
    compute = max(1, int(share * shape.compute))
    usable = [p for p in shape.profiles if not p.attributes and (p.cuda or not cuda)]
    enough = [p for p in usable if p.cells >= share * shape.cells and p.compute >= compute]
    return min(enough, key=lambda p: (p.cells, p.compute), default=None)


def share_of(profile: Profile, shape: CardModel) -> Share:
    """What part of the card's memory and compute this profile is."""
    return Share(Fraction(profile.cells, shape.cells), Fraction(profile.compute, shape.compute))


def parse_fgpu(text: str) -> Fraction:
    """An amount of fGPU, exactly: 0.5, 2, 1/3. Raises Invalid."""
    text = text.strip()
    number, _, below = text.partition("/")
    if not _SHARE.fullmatch(text) or (below and not int(below)):
        raise Invalid(f"{text!r} is not an amount of fGPU", hint="Write it like 1, 0.5 or 1/3.", where="fgpu")
    amount = Fraction(number) / int(below or 1)
    if not amount:
        raise Invalid("0 fGPU is nothing", hint="Ask for more than 0, or for no GPU.", where="fgpu")
    return amount


def parse_unit(text: str) -> Fraction:
    """The share of a card that 1 fGPU is: more than 0, at most 1. Raises Invalid."""
    unit = parse_fgpu(text)
    if unit > 1:
        raise Invalid(f"1 fGPU cannot be {text.strip()} cards", hint="The share is at most 1.", where="share")
    return unit


def say_fgpu(amount: Fraction) -> str:
    """An amount of fGPU as people write it: a decimal where that is exact and short, else n/d."""
    millionths = amount * 10**6
    if millionths.denominator != 1:
        return str(amount)
    return f"{int(millionths) / 10**6:.6f}".rstrip("0").rstrip(".")


@lru_cache(maxsize=1 << 16)
def layout(shape: CardModel, taken: tuple[Window, ...]) -> Layout:
    """The state of a card that holds these slices."""
    mask = 0
    for window in taken:
        mask |= _bits(window.start, window.cells)
    return Layout(mask, sum(w.compute for w in taken), len(taken), _spent(shape, taken))


@lru_cache(maxsize=1 << 16)
def starts(shape: CardModel, state: Layout, profile: Profile) -> tuple[int, ...]:
    """Where the profile may still be cut, best start first."""
    if (
        state.compute + profile.compute > shape.compute
        or state.instances >= shape.instances
        or profile.name in state.spent
    ):
        return ()
    return tuple(s for s in profile.starts if not state.mask & _bits(s, profile.cells))


def legal(shape: CardModel, taken: Iterable[Window]) -> bool:
    """Say whether these slices may lie on one card together."""
    laid: tuple[Window, ...] = ()
    for window in sorted(taken):
        own = _profiles(shape).get(window.profile.lower())
        if own is None or (window.cells, window.compute) != (own.cells, own.compute):
            return False
        if window.start not in starts(shape, layout(shape, laid), own):
            return False
        laid = (*laid, window)
    return True


@lru_cache(maxsize=1 << 14)
def places(shape: CardModel, profile: Profile, taken: tuple[Window, ...] = ()) -> int:
    """How many of this profile a card holds, beside what is taken already."""
    laid = taken
    while free := starts(shape, layout(shape, laid), profile):
        laid = (*laid, Window(free[0], profile.cells, profile.compute, profile.name))
    return len(laid) - len(taken)


def _bits(start: int, cells: int) -> int:
    return ((1 << cells) - 1) << start


def _spent(shape: CardModel, taken: tuple[Window, ...]) -> frozenset[str]:
    held = [p for w in taken if (p := _profiles(shape).get(w.profile.lower()))]
    count = Counter(p.name for p in held)
    # a card has one set of media engines: one +me and one +me.all at most, of whatever size
    engines = {a for p in held for a in p.attributes if a.startswith("me")}
    sizes = {p.cells for p in held} if shape.equal else set[int]()
    return frozenset(
        p.name
        for p in shape.profiles
        if count[p.name] >= p.most or engines & p.attributes or (sizes and p.cells not in sizes)
    )


@cache
def _profiles(shape: CardModel) -> dict[str, Profile]:
    return {p.name.lower(): p for p in (*shape.profiles, shape.whole)}


@cache
def _whole_card(name: str) -> CardModel:
    # a PCI id is all that is known of some cards: no memory size is made up for them
    known = _by_name().get(name.strip().lower())
    memory_gb = known.memory_gb if known else 0
    whole = Profile(WHOLE, compute=1, cells=1, starts=(0,), memory_mib=memory_gb * 1024, most=1)
    return CardModel(name, memory_gb, compute=1, cells=1, instances=1, profiles=(whole,), whole=whole)


@cache
def _by_name() -> dict[str, CardModel]:
    return {name.lower(): m for m in models() for name in (m.name, *m.aliases, *m.pci_ids)}


@cache
def _load() -> tuple[CardModel, ...]:
    text = (files("vmgpu.placement") / "cards.json").read_text(encoding="utf-8")
    return tuple(
        CardModel(
            name=card["name"],
            memory_gb=card["memory_gb"],
            compute=card["compute"],
            cells=card["cells"],
            instances=card["instances"],
            profiles=tuple(
                Profile(
                    p["name"],
                    p["compute"],
                    p["cells"],
                    tuple(p["starts"]),
                    p["memory_mib"],
                    p["max"],
                    frozenset(p["attributes"]),
                )
                for p in card["profiles"]
            ),
            whole=Profile(WHOLE, card["compute"], card["cells"], (0,), card["memory_gb"] * 1024, 1),
            aliases=tuple(card["aliases"]),
            pci_ids=tuple(card["pci"]),
            source=tuple(card["source"]),
        )
        for card in json.loads(text)["cards"]
    )
