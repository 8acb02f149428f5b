"""What the page draws: rows as one person may see them, with words, widths and buttons ready."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, not_
from sqlmodel import Session, col, func, select

from vmgpu.api.fleet import HostPicture, cells, fleet, label, tint
from vmgpu.errors import Conflict
from vmgpu.models import VM, Event, User, VMState, Wanted
from vmgpu.service import reach, show
from vmgpu.service.access import Actor, visible_vms
from vmgpu.service.shapes import Said, SliceOut, VMOut
from vmgpu.units import say_mib, say_span, say_time

PHASES = ("pending", "carving", "building", "booting", "checking", "running")
MOST = 100  # VMs drawn at once, beside
LINES = 50  # of the queue; more are found by name, and the command line lists all

_PROVED = {
    "seen": "seen in the guest by PCI id and address ranges",
    "works": "works in the guest: nvidia-smi answers",
    "emulated": "seen in the guest",
}


@dataclass(frozen=True)
class Phase:
    """One step on the way to running. `since`: it is going on now."""

    name: str
    stand: str
    took: str = ""
    since: datetime | None = None


@dataclass(frozen=True)
class VMPicture:
    """A VM with its way so far, what may be done with it, and how to get in.

    `command`: for its members alone, whose keys it has; others see in `lets_in` whom it has keys of.
    """

    vm: VMOut
    label: str
    tint: int
    phases: tuple[Phase, ...]
    ready_in: str
    verbs: tuple[str, ...]
    ssh: str
    command: str
    lets_in: str
    lease: str
    lease_at: str
    size: str
    proved: str
    waits: str


@dataclass(frozen=True)
class Waiting:
    """Those of the queue that wait for one and the same reason, first to be served first."""

    reason: Said | None
    vms: tuple[VMPicture, ...]


@dataclass(frozen=True)
class Picture:
    """All that the page shows of one moment. Counts are of all that this person sees, drawn or not.

    `find`: what was asked for; `found_vms`, `found_queue`: how many are of it, all where nothing was asked for.
    """

    at: datetime
    hosts: tuple[HostPicture, ...]
    vms: tuple[VMPicture, ...]
    queue: tuple[Waiting, ...]
    running: int
    placed: int
    waiting: int
    find: str
    found_vms: int
    found_queue: int
    left_out_vms: int
    left_out_queue: int
    cells: int
    cells_free: int
    others_waiting: int


def picture(session: Session, actor: Actor, at: datetime, find: str = "") -> Picture:
    """The fleet, the VMs and the queue as this person may see them now; `find`: VMs alone with this in OWNER/NAME."""
    find = find.strip().lower()
    waits = and_(col(VM.state) == VMState.pending, col(VM.wanted) == Wanted.running)
    seen = (VM.state != VMState.gone, visible_vms(actor))
    of_it = (*seen, _called(find)) if find else seen
    rows = [
        *session.exec(select(VM).where(*of_it, not_(waits)).order_by(col(VM.ticket)).limit(MOST)).all(),
        *session.exec(select(VM).where(*of_it, waits).order_by(col(VM.ticket)).limit(LINES)).all(),
    ]
    # held here, so that the way into each VM finds them in the session and asks for none again
    owners = session.exec(select(User).where(col(User.id).in_({row.owner_id for row in rows}))).all()
    took = _seconds(session, rows)
    tints = {row.id: tint(row.ticket) for row in rows}
    drawings = [
        _vm(vm, actor, at, ssh=_ssh(session, actor, vm), took=took.get(vm.id, {}), tint=tints[vm.id])
        for vm in show.vms(session, rows, to=actor)
    ]
    del owners
    hosts = fleet(session, actor, tints)
    placed, queue = [one for one in drawings if not one.vm.position], [one for one in drawings if one.vm.position]
    waiting, found_queue = _count(session, *seen, waits), _count(session, *of_it, waits)
    found_vms = _count(session, *of_it) - found_queue
    in_all, free = cells(hosts)
    return Picture(
        at=at,
        hosts=hosts,
        vms=tuple(placed),
        queue=_grouped(queue),
        running=_count(session, VM.state == VMState.running, visible_vms(actor)),
        placed=_count(session, *seen) - waiting,
        waiting=waiting,
        find=find,
        found_vms=found_vms,
        found_queue=found_queue,
        left_out_vms=max(0, found_vms - len(placed)),
        left_out_queue=max(0, found_queue - len(queue)),
        cells=in_all,
        cells_free=free,
        others_waiting=_count(session, waits) - waiting,
    )


def one_vm(session: Session, actor: Actor, row: VM, at: datetime) -> VMPicture:
    """One VM, for a dialog about it."""
    return _vm(show.vm(session, row, to=actor), actor, at, ssh="", took={}, tint=tint(row.ticket))


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


def _called(find: str) -> ColumnElement[bool]:
    named = func.lower(col(User.name) + "/" + col(VM.name)).contains(find, autoescape=True)
    return col(VM.id).in_(select(VM.id).join(User, col(User.id) == VM.owner_id).where(named))


def _count(session: Session, *those: ColumnElement[bool] | bool) -> int:
    return session.exec(select(func.count()).select_from(VM).where(*those)).one()


def _grouped(queue: Iterable[VMPicture]) -> tuple[Waiting, ...]:
    """By reason, each group where its first one stands."""
    groups: dict[str, list[VMPicture]] = defaultdict(list)
    for one in queue:
        groups[one.vm.reason.sentence if one.vm.reason else ""].append(one)
    return tuple(Waiting(ones[0].vm.reason, tuple(ones)) for ones in groups.values())


def _vm(vm: VMOut, actor: Actor, at: datetime, *, ssh: str, took: dict[str, float], tint: int) -> VMPicture:
    lease, lease_at = _lease(vm, at)
    called, member = label(vm.owner, vm.name, actor), actor.name in vm.members
    return VMPicture(
        vm=vm,
        label=called,
        tint=tint,
        phases=_phases(vm, took, at),
        ready_in=say_span(timedelta(seconds=sum(took.values()))) if vm.state == "running" and took else "",
        verbs=verbs(vm, actor),
        ssh=ssh,
        command=f"vmgpu vm ssh {called}" if ssh and member else "",
        lets_in="" if member or not ssh else ", ".join(vm.members),
        lease=lease,
        lease_at=lease_at,
        size=_size(vm),
        proved=_proved(vm),
        waits=_brief((at - vm.since).total_seconds()),
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
