"""What the page draws: rows as one person may see them, with words, widths and buttons ready."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlmodel import Session, col, func, select

from vmgpu.errors import Conflict
from vmgpu.models import VM, Event, Host, HostState, User, VMState, Wanted
from vmgpu.service import reach, show
from vmgpu.service.access import Actor, visible_vms
from vmgpu.service.shapes import GpuOut, HostOut, OtherOut, SliceOut, VMOut
from vmgpu.units import say_mib, say_span, say_time

PHASES = ("pending", "carving", "building", "booting", "checking", "running")
TINTS = 6
MOST = 100  # VMs drawn at once; the command line lists all

_PROVED = {
    "seen": "seen in the guest by PCI id and address ranges",
    "works": "works in the guest: nvidia-smi answers",
    "emulated": "seen in the guest",
}


@dataclass(frozen=True)
class Piece:
    """A run of cells of a card: free, a VM of this person, or somebody's."""

    cells: int
    profile: str = ""
    vm: str = ""
    vm_id: str = ""
    tint: int = 0
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
class Phase:
    """One step on the way to running. `since`: it is going on now."""

    name: str
    stand: str
    took: str = ""
    since: datetime | None = None


@dataclass(frozen=True)
class VMPicture:
    """A VM with its way so far, what may be done with it, and how to get in."""

    vm: VMOut
    label: str
    tint: int  # joins it to its place on the card, for the eye
    phases: tuple[Phase, ...]
    ready_in: str
    verbs: tuple[str, ...]
    ssh: str
    lease: str
    lease_at: str
    size: str
    proved: str


@dataclass(frozen=True)
class Picture:
    """All that the page shows of one moment."""

    at: datetime
    hosts: tuple[HostPicture, ...]
    vms: tuple[VMPicture, ...]
    queue: tuple[VMPicture, ...]
    running: int
    cells: int
    cells_free: int
    others_waiting: int
    left_out: int


def picture(session: Session, actor: Actor, at: datetime) -> Picture:
    """The fleet, the VMs and the queue as this person may see them now."""
    seen = (VM.state != VMState.gone, visible_vms(actor))
    in_all = session.exec(select(func.count()).select_from(VM).where(*seen)).one()
    drawn = session.exec(select(VM).where(*seen).order_by(col(VM.ticket).desc()).limit(MOST)).all()[::-1]
    rows = session.exec(select(Host).order_by(col(Host.name))).all()
    # held here, so that the way into each VM finds them in the session and asks for none again
    owners = session.exec(select(User).where(col(User.id).in_({row.owner_id for row in drawn}))).all()
    took = _seconds(session, drawn)
    tints = {row.id: row.ticket % TINTS for row in drawn}  # of one request, no two neighbours are alike
    drawings = [
        _vm(vm, actor, at, ssh=_ssh(session, actor, vm), took=took.get(vm.id, {}), tint=tints[vm.id])
        for vm in show.vms(session, drawn, to=actor)
    ]
    mine = {(cut.gpu, cut.start): one for one in drawings for cut in one.vm.slices}
    del owners
    fleet = tuple(
        _host(host, mine, _doctor(row) if actor.admin else None)
        for host, row in zip(show.hosts(session, rows, to=actor), rows, strict=True)
    )
    open_cards = [card for host in fleet for card in host.cards if _open(host.host, card.gpu)]
    queue = sorted((one for one in drawings if one.vm.position), key=lambda one: one.vm.position or 0)
    running = select(func.count()).select_from(VM).where(VM.state == VMState.running, visible_vms(actor))
    waiting = select(func.count()).select_from(VM).where(VM.state == VMState.pending, VM.wanted == Wanted.running)
    unseen = session.exec(waiting).one() - session.exec(waiting.where(visible_vms(actor))).one()
    return Picture(
        at=at,
        hosts=fleet,
        vms=tuple(one for one in drawings if not one.vm.position),
        queue=tuple(queue),
        running=session.exec(running).one(),
        cells=sum(card.gpu.cells for card in open_cards),
        cells_free=sum(card.free for card in open_cards),
        others_waiting=unseen,
        left_out=in_all - len(drawn),
    )


def one_vm(session: Session, actor: Actor, row: VM, at: datetime) -> VMPicture:
    """One VM, for a dialog about it."""
    return _vm(show.vm(session, row, to=actor), actor, at, ssh="", took={}, tint=row.ticket % TINTS)


def verbs(vm: VMOut, actor: Actor) -> tuple[str, ...]:
    """What this person can usefully ask of this VM now."""
    if vm.wanted == "gone" or vm.state in ("releasing", "gone"):
        return ()
    owns = actor.admin or vm.owner == actor.name
    may: list[str] = []
    if vm.wanted == "stopped" and vm.state in ("stopped", "failed", "lost"):
        may.append("start")
    if vm.state == "running" and vm.wanted == "running":
        may.append("stop")
    if owns and vm.state in ("running", "stopped") and not vm.capturing:
        may.append("snapshot")
    if vm.state != "pending":
        may.append("extend")
    return (*may, "release") if owns else tuple(may)


def _vm(vm: VMOut, actor: Actor, at: datetime, *, ssh: str, took: dict[str, float], tint: int) -> VMPicture:
    lease, lease_at = _lease(vm, at)
    return VMPicture(
        vm=vm,
        label=vm.name if vm.owner == actor.name else f"{vm.owner}/{vm.name}",
        tint=tint,
        phases=_phases(vm, took, at),
        ready_in=say_span(timedelta(seconds=sum(took.values()))) if vm.state == "running" and took else "",
        verbs=verbs(vm, actor),
        ssh=ssh,
        lease=lease,
        lease_at=lease_at,
        size=_size(vm),
        proved=_proved(vm),
    )


def _phases(vm: VMOut, took: dict[str, float], at: datetime) -> tuple[Phase, ...]:
    if vm.state not in PHASES:
        return ()
    here = PHASES.index(vm.state)
    drawn: list[Phase] = []
    for number, name in enumerate(PHASES):
        if number < here:
            drawn.append(Phase(name, "done", _brief(took[name]) if name in took else ""))
        elif number > here:
            drawn.append(Phase(name, "todo"))
        elif name == "running":
            drawn.append(Phase(name, "done"))
        else:
            drawn.append(Phase(name, "now", _brief((at - vm.since).total_seconds()), vm.since))
    return tuple(drawn)


def _brief(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else say_span(timedelta(seconds=seconds))


def _lease(vm: VMOut, at: datetime) -> tuple[str, str]:
    if vm.delete_at:
        return f"lease ended; disk is deleted in {say_span(vm.delete_at - at)}", say_time(vm.delete_at)
    if vm.lease_ends and vm.lease_ends > at:
        return f"lease ends in {say_span(vm.lease_ends - at)}", say_time(vm.lease_ends)
    if vm.lease_ends:
        return "lease has ended", say_time(vm.lease_ends)
    return f"lease of {say_span(timedelta(seconds=vm.lease_seconds))}, from its start", ""


def _size(vm: VMOut) -> str:
    parts = [f"{vm.vcpus} vCPU", f"{say_mib(vm.memory_mib)} memory", f"{vm.disk_gib} GiB disk"]
    if vm.slices:
        parts += [f"{cut.profile} of {_model(vm, cut)}" for cut in vm.slices]
    elif vm.profile or vm.fgpu:
        parts.append(vm.profile or f"{vm.fgpu} fGPU")
    return " · ".join(parts)


def _model(vm: VMOut, cut: SliceOut) -> str:
    if vm.simulated:
        return f"a simulated {cut.model}"
    return f"an emulated {cut.model}" if cut.emulated else f"one {cut.model}"


def _proved(vm: VMOut) -> str:
    if not vm.slices or vm.card not in _PROVED:
        return ""
    if vm.simulated:
        return "Simulated card: no guest was asked"
    kind = "Emulated card" if any(cut.emulated for cut in vm.slices) else "Card"
    return f"{kind} {_PROVED[vm.card]}"


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


def _host(host: HostOut, mine: dict[tuple[str, int], VMPicture], doctor: DoctorPicture | None = None) -> HostPicture:
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
        cards=tuple(_card(gpu, mine) for gpu in host.gpus if gpu.mode),
        alone=tuple(gpu for gpu in host.gpus if not gpu.mode),
        room=room,
        doctor=doctor,
    )


def _card(gpu: GpuOut, mine: dict[tuple[str, int], VMPicture]) -> CardPicture:
    pieces: list[Piece] = []
    lying: list[SliceOut | OtherOut] = [*gpu.slices, *gpu.others]
    at = 0
    for cut in sorted(lying, key=lambda cut: cut.start):
        pieces += [Piece(1)] * (cut.start - at)
        pieces.append(_piece(cut, mine.get((gpu.id, cut.start))))
        at = cut.start + cut.cells
    free = gpu.cells - sum(cut.cells for cut in lying)
    pieces += [Piece(1)] * (gpu.cells - at)
    return CardPicture(gpu, tuple(pieces), free, say_mib(gpu.memory_mib) if gpu.memory_mib else "memory unknown")


def _piece(cut: SliceOut | OtherOut, holder: VMPicture | None) -> Piece:
    if isinstance(cut, OtherOut):
        return Piece(cut.cells, cut.profile, title=f"{cut.profile}; not held by a VM of vmgpu's")
    # another person's VM has no name here: only that the place is taken
    share = f"{cut.memory_share:.0%} of memory, {cut.compute_share:.0%} of compute".replace("%", " %")
    name = holder.label if holder else cut.vm or ""
    title = f"{cut.profile}: {share}; held by {name or 'another person'}"
    if holder is None:
        return Piece(cut.cells, cut.profile, name, title=title)
    return Piece(cut.cells, cut.profile, name, holder.vm.id, holder.tint, title)


def _open(host: HostOut, gpu: GpuOut) -> bool:
    return host.state == HostState.ready and not host.draining and gpu.state == "ready"


def _ssh(session: Session, actor: Actor, vm: VMOut) -> str:
    if vm.state != "running" or not vm.address or vm.simulated:
        return ""
    try:
        return reach.ssh(session, actor, vm.id).command
    except Conflict:
        return ""


def _seconds(session: Session, rows: Sequence[VM]) -> dict[str, dict[str, float]]:
    # the last way only: what was before it ran, or before a step back (a reset, a new place), is no part of it
    steps = select(Event.vm_id, Event.was, Event.state, Event.seconds).where(
        col(Event.vm_id).in_([row.id for row in rows]), Event.kind == "state"
    )
    return _walk(session.exec(steps.order_by(col(Event.id))).all())


def _walk(steps: Iterable[tuple[str | None, str | None, str | None, float | None]]) -> dict[str, dict[str, float]]:
    took: dict[str, dict[str, float]] = defaultdict(dict)
    for vm_id, was, state, seconds in steps:
        way = took[vm_id or ""]
        if was not in PHASES or was == "running":
            way.clear()
        elif seconds is not None:
            way[was] = seconds
        if state in PHASES:
            for later in PHASES[PHASES.index(state) :]:
                way.pop(later, None)
    return took
