"""How outcomes reach the rows: each in one short write, only where the claim is still ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, or_
from sqlmodel import Session, col, delete, select
from sqlmodel.sql.expression import SelectOfScalar

from vmgpu import ledger, placement
from vmgpu.db import HOLD, Row, change_all, lock, next_number, wake
from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.leases import LeaseNews, next_moment
from vmgpu.lifecycle import ALWAYS, MOVES, after_capture
from vmgpu.machines import ImageNews
from vmgpu.models import (
    VM,
    Console,
    CopyState,
    Event,
    Gpu,
    GpuState,
    Host,
    Image,
    ImageCopy,
    ImageState,
    Slice,
    VMMember,
    VMState,
    Wanted,
    now,
)
from vmgpu.steps import Fail, Hop, Nap, Outcome
from vmgpu.views import VMView

_WISHES = ("wanted", "stop_mode")  # columns that people write too: theirs stands if it came while the step was at work


# what a settled VM last said of itself outlives a host's silence, which the host itself shows
_SETTLED = (VMState.failed, VMState.lost, VMState.stopped)
_CARDS_FAULT = (ReasonCode.card_unhealthy, ReasonCode.card_other_mode)
_PASSING = (ReasonCode.host_unreachable, ReasonCode.host_error)


class TakenOver(Exception):
    """The claim is no longer ours: throw the result away."""


def held(session: Session, kind: type[Row], row_id: str, token: str) -> Row:
    """The row, locked, if this claim still holds it. Raises TakenOver."""
    row = session.get(kind, row_id, with_for_update=HOLD)
    if row is None or row.claim_token != token:
        raise TakenOver
    return row


def closes_cards(outcome: Outcome) -> bool:
    """Whether this outcome may quarantine the VM's cards, whose rows are then locked first."""
    return isinstance(outcome, Fail) or (
        isinstance(outcome, Nap) and outcome.because is not None and outcome.because.code in _CARDS_FAULT
    )


def held_vm(session: Session, view: VMView, token: str, *, with_cards: bool = False) -> VM:
    """A VM's row, locked with those of the VMs that wait for the image it is captured as. Raises TakenOver."""
    if with_cards:
        lock(session, Gpu, col(Gpu.id).in_([cut.gpu.id for cut in view.slices]))
    if view.capture_as:
        lock(session, VM, or_(col(VM.id) == view.id, _for_image(view.capture_as)))
    return held(session, VM, view.id, token)


def held_image(session: Session, row_id: str, token: str) -> Image:
    """An image's row, locked with those of the VMs that wait for it. Raises TakenOver."""
    lock(session, VM, _for_image(row_id))
    return held(session, Image, row_id, token)


def let_go(row: Any, due_at: datetime | None) -> None:
    """End the claim and say when the row is next due."""
    row.claim_token, row.claim_until, row.due_at = None, None, due_at


def apply_lease(session: Session, vm: VM, news: LeaseNews) -> None:
    """Write what the lease asked for, and tell it."""
    if "wanted" in news.changes:
        vm.stopped_because = news.because.as_dict()
    for name, value in news.changes.items():
        setattr(vm, name, value)
    session.add(Event(vm_id=vm.id, kind=news.kind, state=vm.state, reason=news.because.as_dict()))


def apply_vm(session: Session, vm: VM, view: VMView, outcome: Outcome) -> bool:
    """Write a step's outcome. True: the VM moved on, and its next step may follow at once under the same claim."""
    if vm.state is not view.state:
        return True  # the leader placed it meanwhile: what was found out is about a state it is no longer in
    match outcome:
        case Nap():
            _change(vm, view, outcome.changes)
            if outcome.slices_back:
                _slices_back(session, vm, view)
            if outcome.because and outcome.because.code in _CARDS_FAULT:
                # it was to be given back, and did not come back well
                quarantine(session, [cut.gpu.id for cut in view.slices], outcome.because)
            if outcome.news and outcome.because:
                session.add(Event(vm_id=vm.id, kind=outcome.news, state=vm.state, reason=outcome.because.as_dict()))
            if not (outcome.because and vm.state in _SETTLED and outcome.because.code in _PASSING):
                vm.reason = outcome.because.as_dict() if outcome.because else _kept_reason(vm)
            let_go(vm, _due(vm, view, outcome.seconds))
            return False
        case Fail() if vm.state is VMState.capturing:
            _capture_failed(session, vm, outcome.because)
            _move(session, vm, after_capture(view), outcome.because)
            return True
        case Fail():
            _fail(session, vm, outcome)
            return True
        case Hop():
            if outcome.state not in MOVES[vm.state] and outcome.state not in ALWAYS:
                raise AssertionError(f"{vm.state} does not move to {outcome.state}")
            _change(vm, view, outcome.changes)
            for slice_id, start in outcome.moved.items():
                session.get_one(Slice, slice_id).start = start
            if vm.state is VMState.capturing and outcome.state is VMState.releasing:
                _capture_failed(session, vm, reason(ReasonCode.capture_failed, detail="the VM was released"))
            elif vm.state is VMState.capturing:
                _captured(session, vm)
            elif outcome.state in (VMState.releasing, VMState.lost) and vm.capture_as:
                _capture_failed(session, vm, reason(ReasonCode.capture_failed, detail=f"the VM is {outcome.state}"))
            if outcome.slices_back:
                _slices_back(session, vm, view)
            _move(session, vm, outcome.state, outcome.because)
            if vm.state is VMState.gone:
                let_go(vm, None)
                return False
            if vm.state is VMState.pending and vm.wanted is Wanted.running:
                let_go(vm, _due(vm, replace(view, state=vm.state), None))  # the leader's turn
                return False
            return True


def give_up(session: Session, vm: VM, because: Reason) -> None:
    """Write that a VM is gone with what it lay on; nothing of it can be given back."""
    _capture_failed(session, vm, because)
    session.execute(delete(Slice).where(col(Slice.vm_id) == vm.id))
    _move(session, vm, VMState.gone, because)
    vm.wanted, vm.gone_at, vm.holds, vm.has_disk, vm.address = Wanted.gone, now(), False, False, None
    let_go(vm, None)


def keep_console(session: Session, vm_id: str, text: bytes) -> None:
    """Keep the end of a VM's console, over an earlier one."""
    kept = session.get(Console, vm_id)
    # a host that has erased the VM has nothing to say any more
    session.merge(Console(vm_id=vm_id, text=text or (kept.text if kept else b""), at=now()))


def copy_again(session: Session, vm: VM) -> None:
    """The host lost its copy of the VM's image: have it brought anew."""
    ledger.want_copy(session, vm.image_id, str(vm.host_id), lost=True)


def held_copy(session: Session, image_id: str, host_id: str, row_id: str, token: str) -> ImageCopy:
    """An image's copy on a host, locked with the VMs that wait for it. Raises TakenOver."""
    lock(session, VM, *_for_copy(image_id, host_id))
    return held(session, ImageCopy, row_id, token)


def copy_at(session: Session, copy: ImageCopy, percent: int) -> None:
    """Write how far a copy is, on its row and as the reason of those who wait for it."""
    copy.percent = percent
    image, host = session.get_one(Image, copy.image_id), session.get_one(Host, copy.host_id)
    why = reason(ReasonCode.uploading_image, image=image.name, host=host.name, percent=percent)
    change_all(session, VM, *_for_copy(image.id, host.id), reason=why.as_dict())


def apply_copy(session: Session, copy: ImageCopy, *, failed: Reason | None) -> None:
    """Write that an image lies on a host, or why not; the VMs that wait for it go on."""
    copy.state = CopyState.failed if failed else CopyState.ready
    copy.percent, copy.reason = (copy.percent, failed.as_dict()) if failed else (100, None)
    let_go(copy, None)
    wake(session, VM, *_for_copy(copy.image_id, copy.host_id))


def apply_image(session: Session, image: Image, news: ImageNews) -> None:
    """Write what became of an image."""
    for name, value in news.changes.items():
        setattr(image, name, value)
    if news.state is ImageState.failed and news.because:
        _fail_waiting(session, image)
    image.state = news.state
    image.reason = news.because.as_dict() if news.because else None
    session.add(Event(image_id=image.id, kind=f"image_{news.state}", reason=image.reason))
    let_go(image, None)


def copies_of(image_id: str) -> SelectOfScalar[ImageCopy]:
    """The copies of an image on hosts."""
    return select(ImageCopy).where(ImageCopy.image_id == image_id)


def images_on(host_id: str) -> SelectOfScalar[Image]:
    """The images that have a copy on a host."""
    return select(Image).join(ImageCopy, col(ImageCopy.image_id) == Image.id).where(ImageCopy.host_id == host_id)


def forget_image(session: Session, image: Image) -> None:
    """Remove an image's rows, and with it the rows of its VMs that are gone; their events stay."""
    session.execute(delete(ImageCopy).where(col(ImageCopy.image_id) == image.id))
    for vm in session.exec(select(VM).where(VM.image_id == image.id, VM.state == VMState.gone)).all():
        session.execute(delete(VMMember).where(col(VMMember.vm_id) == vm.id))
        session.execute(delete(Console).where(col(Console.vm_id) == vm.id))
        session.delete(vm)
    session.flush()
    session.delete(image)


def _for_copy(image_id: str, host_id: str) -> tuple[ColumnElement[bool], ...]:
    return col(VM.image_id) == image_id, col(VM.host_id) == host_id, col(VM.state) == VMState.building


def _for_image(image_id: str) -> ColumnElement[bool]:
    return and_(col(VM.image_id) == image_id, col(VM.state) == VMState.pending, col(VM.has_disk).is_(False))


def _due(vm: VM, view: VMView, seconds: float | None) -> datetime | None:
    """When to look again: after so many seconds, at the next moment of the lease, or at once where it was woken."""
    at = now()
    if vm.wakes != view.wakes:
        return at
    times = ("expires_at", "delete_at", "keep_until", "holds")
    moment = next_moment(replace(view, **{name: getattr(vm, name) for name in times}))
    if seconds is None:
        return moment
    due = at + timedelta(seconds=seconds)
    # a moment that has passed is why this very step was run: it could not be served yet, and is not asked for at once
    return min(due, moment) if moment and moment > at else due


def _change(vm: VM, view: VMView, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if name in _WISHES and getattr(vm, name) is not getattr(view, name):
            continue
        setattr(vm, name, value)


def _kept_reason(vm: VM) -> Mapping[str, Any] | None:
    # what a settled VM last said of itself (why it failed, why it stopped) stays readable
    return vm.reason if vm.state in (VMState.failed, VMState.lost, VMState.stopped, VMState.pending) else None


def _move(session: Session, vm: VM, state: VMState, because: Reason | None) -> None:
    at = now()
    session.add(
        Event(
            vm_id=vm.id,
            host_id=vm.host_id,
            kind="state",
            was=vm.state,
            state=state,
            seconds=round((at - vm.state_since).total_seconds(), 3),
            reason=because.as_dict() if because else None,
        )
    )
    if state is VMState.pending:
        vm.holds, vm.devices = False, []
        if not vm.has_disk:
            vm.host_id = None
    if state is VMState.stopping and because:
        vm.stopped_because = because.as_dict()
    if state is VMState.stopped:
        vm.reason, vm.stopped_because = vm.stopped_because, None
    elif state is not vm.state or because:
        vm.reason = because.as_dict() if because else None
    vm.state, vm.state_since, vm.step_since, vm.due_at = state, at, None, at


def _fail(session: Session, vm: VM, outcome: Fail) -> None:
    if vm.capture_as:
        _capture_failed(session, vm, outcome.because)
    gpus = session.exec(select(Slice.gpu_id).where(Slice.vm_id == vm.id)).all()
    excluded = [*vm.excluded, *(gpus if outcome.blame == "card" else ())]
    if outcome.blame and not vm.ever_ran and vm.host_id and (outcome.blame == "host" or not gpus):
        excluded.append(vm.host_id)
    if outcome.because.code in _CARDS_FAULT:
        quarantine(session, gpus, outcome.because)
    vm.retry = bool(outcome.blame) and vm.tries == 0 and vm.wanted is Wanted.running
    if vm.retry:
        vm.excluded = excluded
        (again,) = ledger.wishes(session, [vm if vm.ever_ran else vm.model_copy(update={"has_disk": False})])
        # a retry that no other card or host could ever serve would wait for ever: then it has simply failed
        vm.retry = placement.never(again, ledger.fleet(session)) is None
    if not vm.retry and vm.wanted is Wanted.running:
        vm.wanted = Wanted.stopped
    kind = ReasonCode.retried_elsewhere if vm.retry else None
    told = reason(kind, detail=outcome.because.sentence()) if kind else outcome.because
    _move(session, vm, VMState.failed, told)


def quarantine(session: Session, gpu_ids: Iterable[str], because: Reason) -> None:
    """Give no more of these cards out until an admin has looked at them."""
    ready = select(Gpu).where(col(Gpu.id).in_(list(gpu_ids)), Gpu.state != GpuState.quarantined)
    for gpu in session.exec(ready.order_by(Gpu.id)).all():
        why = reason(ReasonCode.card_quarantined, gpu=gpu.name, detail=because.sentence())
        gpu.state, gpu.reason, gpu.version = GpuState.quarantined, why.as_dict(), gpu.version + 1
        gpu.facts = {**gpu.facts, "modes": []}  # until a survey has seen it well again
        session.add(Event(host_id=gpu.host_id, kind="card_quarantined", reason=why.as_dict()))


def _slices_back(session: Session, vm: VM, view: VMView) -> None:
    gone = session.exec(select(Slice).where(Slice.vm_id == vm.id)).all()
    for cut in gone:
        session.delete(cut)
    vm.holds, vm.devices, vm.keep_until = False, [], None
    if vm.ever_ran and not view.retry and vm.wanted is not Wanted.gone:
        vm.ticket = next_number(session, "ticket")  # who gave a place back queues behind those who wait already


def _captured(session: Session, vm: VM) -> None:
    image = session.get_one(Image, vm.capture_as)
    image.state, image.due_at, image.wakes = ImageState.generalising, now(), image.wakes + 1
    session.add(Event(image_id=image.id, vm_id=vm.id, kind="image_generalising"))
    vm.capture_as = None


def _capture_failed(session: Session, vm: VM, because: Reason) -> None:
    image = session.get(Image, vm.capture_as) if vm.capture_as else None
    if image:
        image.state, image.reason = ImageState.failed, because.as_dict()
        session.add(Event(image_id=image.id, vm_id=vm.id, kind="image_failed", reason=image.reason))
        _fail_waiting(session, image)
    vm.capture_as = None


def _fail_waiting(session: Session, image: Image) -> None:
    """VMs that were asked for from an image that will never be there: they would wait for ever."""
    waiting = select(VM).where(_for_image(image.id)).order_by(VM.id)
    for vm in session.exec(waiting.with_for_update(key_share=True)).all():
        vm.wanted = Wanted.stopped
        _move(
            session, vm, VMState.failed, reason(ReasonCode.image_broken, image=image.name, detail="its capture failed")
        )
