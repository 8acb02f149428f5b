"""The fleet in memory: hosts, cards, and an index of what is free, kept by place() and free()."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from vmgpu.placement import tables
from vmgpu.placement.tables import CardModel, Layout, Mode
from vmgpu.placement.values import CardState, HostState, Placed

Spot = tuple[str, str]  # host id, gpu id: the order of equal choices


class Bucket(NamedTuple):
    """Open cards that nothing but their place tells apart."""

    shape: CardModel
    mode: Mode
    layout: Layout
    shared: bool  # its IOMMU group holds other cards, which nobody can have beside it


class Fleet:
    """What there is and what is free. Fed by committed changes; a plan works on a copy."""

    def __init__(
        self,
        hosts: Iterable[HostState] = (),
        cards: Iterable[CardState] = (),
        *,
        units: Mapping[str, Fraction] | None = None,
    ) -> None:
        self.hosts: dict[str, HostState] = {}
        self.cards: dict[str, CardState] = {}
        self._units = {name.lower(): unit for name, unit in (units or {}).items()}
        self._on: dict[str, list[str]] = {}
        self._buckets: dict[Bucket, list[Spot]] = {}
        for host in hosts:
            self.put_host(host)
        for card in cards:
            self.put_card(card)

    def copy(self) -> Fleet:
        """A fleet of its own that starts out equal."""
        twin = Fleet()
        twin.hosts, twin.cards, twin._units = self.hosts.copy(), self.cards.copy(), self._units
        twin._on = {host: gpus.copy() for host, gpus in self._on.items()}
        twin._buckets = {bucket: spots.copy() for bucket, spots in self._buckets.items()}
        return twin

    def put_host(self, host: HostState) -> None:
        """Take in a host, new or changed."""
        cards = [self.cards[gpu] for gpu in self._on.setdefault(host.id, [])]
        for card in cards:
            self._unindex(card)
        self.hosts[host.id] = host
        for card in cards:
            self._index(card)

    def put_card(self, card: CardState) -> None:
        """Take in a card, new or changed; its host comes first."""
        self.drop_card(card.id)
        card = replace(card, taken=tuple(sorted(card.taken)))
        mates = self._mates(card)
        for mate in mates:
            self._unindex(mate)
        self.cards[card.id] = card
        insort(self._on[card.host_id], card.id)
        for each in (card, *mates):
            self._index(each)

    def drop_host(self, host_id: str) -> None:
        """Forget a host and its cards; unknown is fine."""
        gone = [self.cards[gpu] for gpu in self._on.pop(host_id, [])]
        for card in gone:
            self._unindex(card)
        for card in gone:
            del self.cards[card.id]
        self.hosts.pop(host_id, None)

    def drop_card(self, gpu_id: str) -> None:
        """Forget a card; unknown is fine."""
        if card := self.cards.get(gpu_id):
            mates = self._mates(card)
            for each in (card, *mates):
                self._unindex(each)
            del self.cards[gpu_id]
            self._on[card.host_id].remove(gpu_id)
            for mate in mates:
                self._index(mate)

    def set_unit(self, model: str, unit: Fraction) -> None:
        """Set the share of a card of this model that 1 fGPU is."""
        self._units[model.lower()] = unit

    def unit(self, shape: CardModel) -> Fraction:
        """The share of such a card that 1 fGPU is: a whole one unless an admin said otherwise."""
        return self._units.get(shape.name.lower(), Fraction(1))

    def place(self, placed: Placed) -> None:
        """Take what a placement takes. Versions count up by one, as the rows do. Raises ValueError if it is illegal."""
        if placed.gpu_id is not None and placed.slice is not None:
            card = self.cards[placed.gpu_id]
            taken = tuple(sorted((*card.taken, placed.slice)))
            if not tables.legal(card.shape, taken):
                raise ValueError(f"{placed.slice} does not fit on card {card.id}, which holds {card.taken}")
            self._change(card, replace(card, taken=taken, version=card.version + 1))
        self._hold(placed, 1)

    def free(self, placed: Placed) -> None:
        """Give back what a placement took. Raises ValueError if it does not hold it."""
        if placed.gpu_id is not None and placed.slice is not None:
            card = self.cards[placed.gpu_id]
            if placed.slice not in card.taken:
                raise ValueError(f"card {card.id} does not hold {placed.slice}")
            taken = tuple(w for w in card.taken if w != placed.slice)
            self._change(card, replace(card, taken=taken, version=card.version + 1))
        self._hold(placed, -1)

    def held_mate(self, card: CardState) -> CardState | None:
        """The card of the same IOMMU group that is given away, where one is."""
        return next((mate for each in card.mates if (mate := self.cards.get(each)) and mate.taken), None)

    def cards_on(self, host_id: str) -> Iterator[CardState]:
        """The cards of a host, by id."""
        return (self.cards[gpu] for gpu in self._on[host_id])

    def buckets(self) -> Iterable[tuple[Bucket, list[Spot]]]:
        """The open cards of open hosts, alike ones together, each bucket in the order of ids."""
        return self._buckets.items()

    def _hold(self, placed: Placed, sign: int) -> None:
        # no re-index: none of these fields opens or closes a host
        host = self.hosts[placed.host_id]
        vcpus = sign * placed.vcpus
        brought = placed.image_gib if sign > 0 else 0  # a copy stays when its VM goes
        self.hosts[host.id] = replace(
            host,
            vcpus_used=host.vcpus_used + (0 if placed.pinned else vcpus),
            vcpus_pinned=host.vcpus_pinned + (vcpus if placed.pinned else 0),
            memory_used_mib=host.memory_used_mib + sign * placed.memory_mib,
            disk_free_gib=host.disk_free_gib - sign * placed.disk_gib - brought,
            images=host.images | {placed.image} if brought else host.images,
            version=host.version + 1,
        )

    def _change(self, old: CardState, new: CardState) -> None:
        mates = self._mates(old)
        for each in (old, *mates):
            self._unindex(each)
        self.cards[new.id] = new
        for each in (new, *mates):
            self._index(each)

    def _mates(self, card: CardState) -> list[CardState]:
        return [self.cards[mate] for mate in card.mates if mate in self.cards]

    def _index(self, card: CardState) -> None:
        if self._open(card):
            insort(self._buckets.setdefault(_bucket(card), []), (card.host_id, card.id))

    def _unindex(self, card: CardState) -> None:
        if not self._open(card):
            return
        bucket = _bucket(card)
        spots = self._buckets[bucket]
        del spots[bisect_left(spots, (card.host_id, card.id))]
        if not spots:
            del self._buckets[bucket]

    def _open(self, card: CardState) -> bool:
        closed = card.closed is not None or self.hosts[card.host_id].closed is not None
        return not closed and (not card.mates or self.held_mate(card) is None)


def _bucket(card: CardState) -> Bucket:
    return Bucket(card.shape, card.mode, tables.layout(card.shape, card.taken), bool(card.mates))
