"""What the rows say is free and who waits, as the planner's values; and the short write that takes a place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from itertools import count
from typing import Any, Protocol

from sqlalchemy import CursorResult, Update, update
from sqlmodel import Session, col, select

from vmgpu import placement
from vmgpu.db import lock
from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.hypervisor import Live
from vmgpu.leases import passed
from vmgpu.models import (
    VM,
    CopyState,
    Event,
    Gpu,
    GpuState,
    GpuUnit,
    Host,
    HostState,
    Image,
    ImageCopy,
    ImageState,
    Slice,
    VMState,
    Wanted,
    now,
)


def fleet(session: Session) -> placement.Fleet:
    """All hosts and cards with what VMs hold on them."""
    # before the VMs: what is placed between the two reads then fails on the host's version
    hosts = session.exec(select(Host).order_by(Host.id)).all()
    held: dict[str, list[VM]] = defaultdict(list)
    for vm in session.exec(select(VM).where(col(VM.host_id).is_not(None), VM.state != VMState.gone)).all():
        held[str(vm.host_id)].append(vm)
    cards = session.exec(select(Gpu)).all()
    gpus = [gpu for gpu in cards if gpu.mode is not None]
    on_host: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in cards:
        on_host[gpu.host_id].append(gpu)
    physical = {gpu.id for gpu in gpus if gpu.mode == placement.Mode.passthrough}
    cuts: dict[str, list[Slice]] = defaultdict(list)
    whole: set[str] = set()
    for cut in session.exec(select(Slice)).all():
        cuts[cut.gpu_id].append(cut)
        if cut.gpu_id in physical:
            whole.add(cut.vm_id)
    copies: dict[str, list[Image]] = defaultdict(list)
    lying = select(ImageCopy.host_id, Image).join(Image, col(Image.id) == ImageCopy.image_id)
    for host_id, image in session.exec(lying.where(ImageCopy.state != CopyState.failed)).all():
        copies[host_id].append(image)
    return placement.Fleet(
        [_host(host, held[host.id], whole, copies[host.id]) for host in hosts],
        [_card(gpu, cuts[gpu.id], of_group(gpu, on_host[gpu.host_id])) for gpu in gpus],
        units={unit.model: Fraction(unit.share) for unit in session.exec(select(GpuUnit)).all()},
    )


def wishes(session: Session, vms: Sequence[VM]) -> list[placement.Wish]:
    """What these waiting VMs need, as the planner is told.

    Simulated images run on simulated hosts only; real ones go there only where there is no real host at all.
    """
    images = {image.id: image for image in session.exec(select(Image)).all()}
    simulated = {image.id for image in images.values() if image.simulated}
    played = {host.id for host in session.exec(select(Host)).all() if host.simulated}
    real = {host.id for host in session.exec(select(Host)).all() if not host.simulated}
    kinds = (real if vm.image_id in simulated else played if real else set() for vm in vms)
    return [_wish(vm, images[vm.image_id], kind) for vm, kind in zip(vms, kinds, strict=True)]


def gpu_wish(profile: str | None, fgpu: str | None, *, cuda: bool = False) -> placement.GpuWish | None:
    """A flavor's wish for a piece of a card; None: none. `cuda`: one that can run CUDA."""
    if profile:
        return placement.ByProfile(profile, cuda)
    return placement.ByShare(Fraction(fgpu), cuda) if fgpu else None


def waiting(session: Session) -> list[VM]:
    """The queue, first to be served first."""
    queue = select(VM).where(VM.state == VMState.pending, VM.wanted == Wanted.running)
    return list(session.exec(queue.order_by(VM.ticket)).all())  # type: ignore[arg-type]


def servable(session: Session, vms: Iterable[VM]) -> tuple[list[VM], dict[str, Reason]]:
    """Those whose image is ready, and why the others are not served yet."""
    unready = {image.id: image for image in session.exec(select(Image).where(Image.state != ImageState.ready)).all()}
    served, reasons = [], {}
    for vm in vms:
        if vm.has_disk or vm.image_id not in unready:
            served.append(vm)
        else:
            reasons[vm.id] = reason(ReasonCode.image_not_ready, image=unready[vm.image_id].name)
    return served, reasons


class Stale(Exception):
    """A row changed since the plan was made: read again, plan again."""


def lock_places(session: Session, placed: Sequence[placement.Placed]) -> None:
    """Lock all rows that these placements change, in everybody's order: the plan's own is the queue's."""
    hosts, vms = {one.host_id for one in placed}, {one.vm_id for one in placed}
    lock(session, Host, col(Host.id).in_(hosts))
    lock(session, Gpu, col(Gpu.id).in_({one.gpu_id for one in placed if one.gpu_id}))
    lock(session, VM, col(VM.id).in_(vms))
    images = select(VM.image_id).where(col(VM.id).in_(vms))
    lock(session, ImageCopy, col(ImageCopy.host_id).in_(hosts), col(ImageCopy.image_id).in_(images))


def take(session: Session, placed: placement.Placed) -> None:
    """Write one placement: compare versions, insert the slice, move the VM. Raises Stale; the caller rolls back."""
    at = now()
    host = update(Host).where(col(Host.id) == placed.host_id, col(Host.version) == placed.host_version)
    _one(session, host.values(version=placed.host_version + 1))
    if placed.gpu_id is not None and placed.slice is not None:
        gpu = update(Gpu).where(col(Gpu.id) == placed.gpu_id, col(Gpu.version) == placed.gpu_version)
        _one(session, gpu.values(version=(placed.gpu_version or 0) + 1))
        cuts = session.exec(select(Slice).where(Slice.gpu_id == placed.gpu_id)).all()
        others = session.get_one(Gpu, placed.gpu_id).facts.get("foreign", ())
        used = {cut.slot for cut in cuts} | {other["slot"] for other in others}
        session.add(
            Slice(
                gpu_id=placed.gpu_id,
                slot=next(slot for slot in count() if slot not in used),
                vm_id=placed.vm_id,
                profile=placed.slice.profile,
                start=placed.slice.start,
                cells=placed.slice.cells,
                compute=placed.slice.compute,
                memory_mib=placed.slice_mib,
            )
        )
    vm = session.get_one(VM, placed.vm_id)
    waited = at - vm.state_since  # asked before the update, which also reaches this row's copy here
    moved = update(VM).where(
        col(VM.id) == placed.vm_id, col(VM.state) == VMState.pending, col(VM.wanted) == Wanted.running
    )
    expires_at = vm.expires_at or at + timedelta(seconds=vm.lease_seconds)
    warned = vm.warned if vm.expires_at else passed(expires_at, at)
    moved = moved.values(
        state=VMState.carving, state_since=at, host_id=placed.host_id, holds=True, due_at=at, wakes=VM.wakes + 1,
        reason=None, expires_at=expires_at,
        warned=warned,
    )  # fmt: skip
    _one(session, moved)
    session.add(
        Event(
            vm_id=vm.id,
            host_id=placed.host_id,
            kind="state",
            was="pending",
            state="carving",
            seconds=round(waited.total_seconds(), 3),
        )
    )
    if not vm.has_disk:
        want_copy(session, vm.image_id, placed.host_id)
    session.info["changes"].update({("vm", vm.id), ("host", placed.host_id), ("gpu", str(placed.gpu_id))})
    session.flush()


def want_copy(session: Session, image_id: str, host_id: str, *, lost: bool = False) -> None:
    """See that the image is, or will be, in this host's pool; `lost`: what was there is not any more."""
    lies = select(ImageCopy).where(ImageCopy.image_id == image_id, ImageCopy.host_id == host_id)
    lies = lies.with_for_update(key_share=True)
    copy = session.exec(lies).first() or ImageCopy(image_id=image_id, host_id=host_id, due_at=now())
    if copy.state is CopyState.failed or (lost and copy.state is CopyState.ready):
        copy.state, copy.reason, copy.percent, copy.due_at = CopyState.wanted, None, 0, now()
    session.add(copy)


def _one(session: Session, statement: Update) -> None:
    changed = session.execute(statement)
    assert isinstance(changed, CursorResult)  # noqa: S101 - what an UPDATE answers
    if changed.rowcount != 1:
        raise Stale


def _host(host: Host, vms: list[VM], whole: set[str], copies: list[Image]) -> placement.HostState:
    facts = host.facts or {}
    holding = [vm for vm in vms if vm.holds]
    pins = len(facts.get("numa", ())) > 1
    pinned = sum(vm.vcpus for vm in holding if pins and vm.id in whole)
    return placement.HostState(
        id=host.id,
        name=host.name,
        threads=host.threads,
        memory_mib=host.memory_mib,
        disk_gib=host.disk_gib,
        disk_free_gib=int(facts.get("disk_free_gib", 0)) - _promised_gib(facts, vms, copies),
        images=frozenset(image.id for image in copies),
        vcpus_used=sum(vm.vcpus for vm in holding) - pinned,
        vcpus_pinned=pinned,
        memory_used_mib=sum(vm.memory_mib for vm in holding),
        overcommit=host.overcommit,
        pins=pins,
        known=host.state is HostState.ready,
        closed=_closed(host),
        version=host.version,
    )


def _promised_gib(facts: Mapping[str, Any], vms: list[VM], copies: list[Image]) -> int:
    """What these VMs' disks, and copies of images, may still grow by since the survey. Disks are thin, but a full pool
    breaks every guest that is on it.
    """
    written: Mapping[str, int] = facts.get("disk_written_mib", {})
    disks = [vm for vm in vms if vm.has_disk or vm.holds]
    grow = sum(max(0, vm.disk_gib - written.get(vm.id, 0) // 1024) for vm in disks)
    return grow + -(-sum(max(0, image.copy_mib - written.get(image.volume, 0)) for image in copies) // 1024)


def _wish(vm: VM, image: Image, wrong_hosts: set[str]) -> placement.Wish:
    return placement.Wish(
        vm_id=vm.id,
        order=(0, 0.0, f"{vm.ticket:015d}"),
        vcpus=vm.vcpus,
        memory_mib=vm.memory_mib,
        disk_gib=vm.disk_gib,
        image=image.id,
        image_gib=-(-image.copy_mib // 1024),
        gpu=gpu_wish(vm.profile, vm.fgpu, cuda=vm.cuda),
        disk_on=vm.host_id if vm.has_disk else None,
        other_kind=frozenset(wrong_hosts) if not vm.has_disk else frozenset(),
        not_hosts=frozenset(vm.excluded) if not vm.has_disk else frozenset(),
        not_gpus=frozenset(vm.excluded),
    )


def _closed(host: Host) -> Reason | None:
    if host.state is HostState.new:
        return Reason.of(host.reason) or reason(ReasonCode.host_unsurveyed, host=host.name)
    if host.state is HostState.unreachable:
        return Reason.of(host.reason) or reason(ReasonCode.host_unreachable, host=host.name, detail="no answer")
    if host.reason:
        return Reason.of(host.reason)  # it answers, but the last survey was refused
    if host.draining or host.state is HostState.removing:
        return reason(ReasonCode.host_draining, host=host.name)
    return None


def to_cut_again(session: Session) -> dict[str, list[str]]:
    """What a reboot of its host took from a card and a VM still holds, by card: it is cut again before that VM starts.

    Mediated devices on a card without virtual functions are started by their host.
    """
    lost = (
        select(Gpu, Slice.profile)
        .join(Slice, col(Slice.gpu_id) == Gpu.id)
        .join(VM, col(VM.id) == Slice.vm_id)
        .join(Host, col(Host.id) == Gpu.host_id)
        .where(VM.host_boot_id != "", VM.host_boot_id != Host.boot_id)
        .where(col(Gpu.mode).in_([placement.Mode.vgpu, placement.Mode.mig]))
    )
    found: dict[str, list[str]] = defaultdict(list)
    for gpu, profile in session.exec(lost.order_by(col(Slice.start))).all():
        if gpu.facts.get("framework") != "mdev" or gpu.facts.get("on_functions"):
            found[gpu.id].append(profile)
    return found


class Lying(Protocol):
    """A slice as far as it takes room: its row, or what people are shown of it."""

    @property
    def start(self) -> int: ...
    @property
    def cells(self) -> int: ...
    @property
    def compute(self) -> int: ...
    @property
    def profile(self) -> str: ...


def of_group(gpu: Gpu, cards: Iterable[Gpu]) -> list[Gpu]:
    """The cards of a host that share this one's IOMMU group, where it is given away whole."""
    shared = gpu.facts.get("mates", ()) if gpu.mode == placement.Mode.passthrough else ()
    return [card for card in cards if card.address in shared and card.host_id == gpu.host_id]


def room(gpu: Gpu, cuts: Mapping[str, Sequence[Lying]], cards: Iterable[Gpu]) -> dict[str, int]:
    """How many more of each size fit on a card in its mode now, each instead of the others; none where it is closed.

    `cuts`: what lies on which card; `cards`: all there are.
    """
    mates = of_group(gpu, cards)
    state = _card(gpu, cuts.get(gpu.id, ()), mates) if gpu.mode else None
    if state is None or state.closed or any(cuts.get(mate.id) for mate in mates):
        return {}
    sizes = placement.offered(state.shape, state.mode)
    counts = {size.name: placement.places(state.shape, size, tuple(sorted(state.taken))) for size in sizes}
    return {name: count for name, count in counts.items() if count}


def _card(gpu: Gpu, cuts: Iterable[Lying], mates: Iterable[Gpu]) -> placement.CardState:
    own = told(gpu.model, gpu.mode, gpu.facts)
    closed = Reason.of(gpu.reason) if gpu.state is not GpuState.ready else None
    if gpu.state is GpuState.absent:
        closed = reason(ReasonCode.card_unhealthy, gpu=gpu.name, detail="the last survey did not see it")
    for mate in mates:
        if mate.mode != placement.Mode.passthrough:
            how = f"given out as {mate.mode}" if mate.mode else "kept for the host"
            group = gpu.facts.get("iommu_group")
            closed = closed or reason(
                ReasonCode.group_kept_back, gpu=gpu.address, group=group, mate=mate.address, how=how
            )
    return placement.CardState(
        id=gpu.id,
        host_id=gpu.host_id,
        model=gpu.model,
        mode=placement.Mode(str(gpu.mode)),
        taken=tuple(taken(gpu, cuts, _others(gpu))),
        closed=closed,
        version=gpu.version,
        name=gpu.name,
        told=own,
        mates=tuple(sorted(mate.id for mate in mates)),
    )


def of_others(gpu: Gpu, cuts: Sequence[Lying]) -> list[placement.Window]:
    """What others and orphans have of a card, beside our slices: where it lies, or may lie."""
    return taken(gpu, cuts, _others(gpu))[len(cuts) :]


def _others(gpu: Gpu) -> list[Mapping[str, Any]]:
    # where the tables must do, nobody else's pieces are known
    seen = gpu.facts.get("foreign", []) if told(gpu.model, gpu.mode, gpu.facts) else []
    return [*seen, *gpu.facts.get("orphans", [])]


def taken(gpu: Gpu, cuts: Iterable[Lying], others: Sequence[Mapping[str, Any]]) -> list[placement.Window]:
    """What is taken of a card: by our slices, and by what others and orphans cut from it."""
    windows = [placement.Window(cut.start, cut.cells, cut.compute, cut.profile) for cut in cuts]
    if not others or gpu.mode is None:
        return windows
    return _with_others(shape(gpu.model, gpu.mode, gpu.facts), windows, others)


def foreign(live: Iterable[Live], cuts: Iterable[Slice]) -> list[Live]:
    """What others cut from a card, of all that a survey saw: it takes room, and is left alone."""
    ids, slots, starts = ({getattr(cut, name) for cut in cuts} for name in ("id", "slot", "start"))
    return [
        each
        for each in live
        if not (each.uuid in ids if each.uuid else each.slot in slots or (each.slot is None and each.start in starts))
    ]


def _with_others(
    shape: placement.CardModel, taken: list[placement.Window], others: Sequence[Mapping[str, Any]]
) -> list[placement.Window]:
    """The card's windows with those of others; where a time-sliced one lies is nobody's business but the driver's."""
    sizes = {profile.name: profile for profile in (*shape.profiles, shape.whole)}
    for live in others:
        size = sizes.get(live["name"])
        if size is None:
            continue
        places = [live["start"]] if live["start"] is not None else [*size.starts]
        windows = (placement.Window(start, size.cells, size.compute, size.name) for start in places)
        fitting = next((window for window in windows if placement.legal(shape, (*taken, window))), None)
        if fitting:
            taken = [*taken, fitting]
    return taken


def shape(model: str, mode: str, facts: Mapping[str, Any]) -> placement.CardModel:
    """What a card can be cut into in this mode: as its host says, else as the tables know its model."""
    return told(model, mode, facts) or placement.shape_of(model, placement.Mode(mode))


def told(model: str, mode: str | None, facts: Mapping[str, Any]) -> placement.CardModel | None:
    """What its host says that a card can be cut into in this mode; None where the tables must do."""
    cuts = facts.get("cuts", {}).get(mode)
    if not cuts:
        return None
    pieces = tuple(
        placement.Profile(
            name=piece["name"],
            compute=piece["compute"],
            cells=piece["cells"],
            starts=tuple(piece["starts"]),
            memory_mib=piece["memory_mib"],
            most=piece["most"],
            attributes=frozenset(piece["marks"]),
            cuda=piece["cuda"],
        )
        for piece in cuts["pieces"]
    )
    return placement.shape_told(
        model,
        memory_gb=(facts.get("memory_mib") or 0) // 1024,
        cells=cuts["cells"],
        compute=cuts["compute"],
        instances=cuts["instances"],
        profiles=pieces,
        equal=cuts["equal"],
    )
