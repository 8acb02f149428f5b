"""Boards whose GPUs hang on NVSwitches: which of their partitions a set of whole cards is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Seat:
    """A card as the fabric may know it; an empty or missing part is unknown."""

    address: str
    uuid: str = ""
    module_id: int | None = None


def partition_of(fabric: Facts | None, cards: Sequence[Seat]) -> int | str | None:
    """The number of the partition that is exactly these cards; None where they hang on no fabric.

    A text says why they cannot be given to one guest: without an active partition of its own CUDA does not start there.
    """
    if not fabric or not fabric.get("switches"):
        return None
    partitions = fabric.get("partitions")
    if partitions is None:
        return (
            "It sits beside NVSwitches whose fabric shows no partitions: the fabric manager must run on the "
            f"host in shared mode (FABRIC_MODE=1; manager: {fabric.get('manager')}, mode: {fabric.get('mode')})"
        )
    wanted = {each.address for each in cards}
    sets = {each["id"]: [_address(gpu, cards) for gpu in each["gpus"]] for each in partitions}
    if not any(wanted & set(one) for one in sets.values()):
        return None  # a board in a slot of its own beside them
    for number, one in sets.items():
        if set(one) == wanted:
            return int(number)
    known = "; ".join(f"{number}: {_named(one)}" for number, one in sets.items())
    return f"The NVSwitch fabric has no partition of exactly {_named(sorted(wanted))}; its partitions are {known}"


def _address(gpu: Facts, cards: Sequence[Seat]) -> str:
    """Where a card of the fabric is, by whichever of its names is known: bound to vfio-pci it has lost some."""
    for card in cards:
        same_uuid = card.uuid and gpu.get("uuid") == card.uuid
        same_module = card.module_id is not None and gpu.get("physical_id") == card.module_id
        if same_uuid or (same_module and gpu.get("address") in (None, card.address)):
            return card.address
    return str(gpu.get("address") or f"module {gpu.get('physical_id')}")


def _named(cards: Sequence[str]) -> str:
    return ", ".join(cards) if len(cards) < 5 else f"{len(cards)} cards"
