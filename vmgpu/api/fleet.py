"""The fleet as the page draws it: hosts, their cards cell by cell, and whose the pieces are."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from sqlmodel import Session, col, select

from vmgpu.models import VM, Host, HostState, Slice, User
from vmgpu.service import show
from vmgpu.service.access import Actor, visible_vms
from vmgpu.service.shapes import GpuOut, HostOut, OtherOut, SliceOut
from vmgpu.units import say_mib, say_time

TINTS = 6


@dataclass(frozen=True)
class Piece:
    """A run of cells of a card: free, of a VM that this person sees (it has a tint), or somebody's.

    `vm_id` only where that VM is drawn on the page, too.
    """

    cells: int
    profile: str = ""
    vm: str = ""
    vm_id: str = ""
    tint: int | None = None
    title: str = "free"


@dataclass(frozen=True)
class CardPicture:
    """A card and its cells from left to right."""

    gpu: GpuOut
    pieces: tuple[Piece, ...]
    free: int
    memory: str


@dataclass(frozen=True)
class DoctorPicture:
    """What the doctor found at a host when he was asked last: how that reads in short, and what is not well."""

    says: str
    level: str
    at: str
    items: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class HostPicture:
    """A host: cards that are given out, and those that are left alone. `doctor`: for admins, once one was asked."""

    host: HostOut
    cards: tuple[CardPicture, ...]
    alone: tuple[GpuOut, ...]
    room: str  # what is free, in words
    doctor: DoctorPicture | None = None


@dataclass(frozen=True)
class _Holder:
    vm_id: str
    label: str
    tint: int


_Places = Mapping[tuple[str, int], _Holder]  # by card and first cell


def fleet(session: Session, actor: Actor, drawn: Container[str]) -> tuple[HostPicture, ...]:
    """All hosts as this person may see them; `drawn`: the ids of the VMs that the page shows."""
    rows = session.exec(select(Host).order_by(col(Host.name))).all()
    places = _places(session, actor)
    return tuple(
        _host(host, places, drawn, _doctor(row) if actor.admin else None)
        for host, row in zip(show.hosts(session, rows, to=actor), rows, strict=True)
    )


def cells(hosts: tuple[HostPicture, ...]) -> tuple[int, int]:
    """How many cells the cards have that are given out now, and how many of them are free."""
    cards = [card for one in hosts for card in one.cards if _open(one.host, card.gpu)]
    return sum(card.gpu.cells for card in cards), sum(card.free for card in cards)


def label(owner: str, name: str, actor: Actor) -> str:
    """What this person calls a VM."""
    return name if owner == actor.name else f"{owner}/{name}"


def tint(ticket: int) -> int:
    """A VM's colour, by number, joins it to its place on the card; no two neighbours of a request share it."""
    return ticket % TINTS


def _places(session: Session, actor: Actor) -> _Places:
    """Who holds what, of all that this person sees: the page may draw fewer VMs than that."""
    held = (
        select(Slice.gpu_id, Slice.start, VM.id, VM.name, VM.ticket, User.name)  # type: ignore[call-overload]
        .join(VM, col(VM.id) == Slice.vm_id)
        .join(User, col(User.id) == VM.owner_id)
        .where(visible_vms(actor))
    )
    return {
        (gpu, start): _Holder(vm_id, label(owner, name, actor), tint(ticket))
        for gpu, start, vm_id, name, ticket, owner in session.exec(held).all()
    }


def _doctor(row: Host) -> DoctorPicture | None:
    """None while nobody has asked him about this host."""
    if row.doctor_at is None:
        return None
    ill = [each for level in ("broken", "warning") for each in row.doctor if each["level"] == level]
    broken = sum(each["level"] == "broken" for each in ill)
    counts = [(broken, "broken"), (len(ill) - broken, "warning" if len(ill) - broken == 1 else "warnings")]
    says = ", ".join(f"{count} {word}" for count, word in counts if count) or "all well"
    return DoctorPicture(
        says=says,
        level="broken" if broken else "warning" if ill else "ok",
        at=say_time(row.doctor_at),
        items=tuple(ill),
    )


def _host(host: HostOut, places: _Places, drawn: Container[str], doctor: DoctorPicture | None) -> HostPicture:
    room = ""
    if host.threads:
        most = int(host.threads * host.overcommit + 1e-6)  # as the placement counts
        usable = max(0, host.memory_mib - host.memory_reserve_mib) / 1024
        vcpus, memory = max(0, most - host.vcpus_held), max(0, usable - host.memory_held_mib / 1024)
        parts = [f"{vcpus} of {most} vCPU", f"{memory:.0f} of {usable:.0f} GiB memory"]
        if host.disk_free_gib is not None:
            parts.append(f"{host.disk_free_gib} GiB disk")
        room = ", ".join(parts) + " free"
    return HostPicture(
        host=host,
        cards=tuple(_card(gpu, places, drawn) for gpu in host.gpus if gpu.mode),
        alone=tuple(gpu for gpu in host.gpus if not gpu.mode),
        room=room,
        doctor=doctor,
    )


def _card(gpu: GpuOut, places: _Places, drawn: Container[str]) -> CardPicture:
    pieces: list[Piece] = []
    lying: list[SliceOut | OtherOut] = [*gpu.slices, *gpu.others]
    at = 0
    for cut in sorted(lying, key=lambda cut: cut.start):
        pieces += [Piece(1)] * (cut.start - at)
        pieces.append(_piece(cut, places.get((gpu.id, cut.start)), drawn))
        at = cut.start + cut.cells
    free = gpu.cells - sum(cut.cells for cut in lying)
    pieces += [Piece(1)] * (gpu.cells - at)
    return CardPicture(gpu, tuple(pieces), free, say_mib(gpu.memory_mib) if gpu.memory_mib else "memory unknown")


def _piece(cut: SliceOut | OtherOut, holder: _Holder | None, drawn: Container[str]) -> Piece:
    if isinstance(cut, OtherOut):
        return Piece(cut.cells, cut.profile, title=f"{cut.profile}; not held by a VM of vmgpu's")
    # another person's VM has no name here: only that the place is taken
    share = f"{cut.memory_share:.0%} of memory, {cut.compute_share:.0%} of compute".replace("%", " %")
    title = f"{cut.profile}: {share}; held by {holder.label if holder else 'another person'}"
    if holder is None:
        return Piece(cut.cells, cut.profile, title=title)
    linked = holder.vm_id if holder.vm_id in drawn else ""
    return Piece(cut.cells, cut.profile, holder.label, linked, holder.tint, title)


def _open(host: HostOut, gpu: GpuOut) -> bool:
    return host.state == HostState.ready and not host.draining and gpu.state == "ready"
