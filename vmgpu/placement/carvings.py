"""How many VMs each way of cutting a set of cards would serve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from vmgpu.placement import tables
from vmgpu.placement.tables import CardModel, Mode, Profile


@dataclass(frozen=True, slots=True)
class Carving:
    """All cards of a model cut into one size in one mode: `seats` VMs on `cards` cards."""

    mode: Mode
    model: str
    profile: str
    memory_mib: int
    cuda: bool
    per_card: int
    cards: int

    @property
    def seats(self) -> int:
        """How many VMs that is."""
        return self.per_card * self.cards


def carvings(cards: Iterable[tuple[Mode, CardModel]], *, cuda: bool = False) -> tuple[Carving, ...]:
    """Each size in each mode that these empty cards can be cut into, the largest first; `cuda`: those that run it.

    Of equal sizes those come last that are given only to who asks for them by name.
    """
    count: dict[tuple[Mode, CardModel], int] = defaultdict(int)
    for kind in cards:
        count[kind] += 1
    found = [
        (bool(size.attributes), _carving(mode, shape, size, number))
        for (mode, shape), number in count.items()
        for size in tables.offered(shape, mode)
        if size.cuda or not cuda
    ]
    found.sort(key=lambda each: (-each[1].memory_mib, each[0], each[1].model, each[1].mode, each[1].profile))
    return tuple(one for _, one in found)


def _carving(mode: Mode, shape: CardModel, size: Profile, cards: int) -> Carving:
    return Carving(mode, shape.name, size.name, size.memory_mib, size.cuda, tables.places(shape, size), cards)
