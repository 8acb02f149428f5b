"""The work on a claimed VM: its view, its step outside any transaction, its outcome applied."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

from vmgpu import crash, leases, lifecycle, logs, outcomes, views
from vmgpu.connections import OpenHosts
from vmgpu.db import claim_all, let_all_go
from vmgpu.errors import HostUnreachable, Reason, ReasonCode, Unavailable, VmgpuError, reason
from vmgpu.guest import CheckFailed
from vmgpu.hypervisor import Carver, Hypervisor, Progress
from vmgpu.hypervisor.doctor import advice, explain
from vmgpu.models import VM, Console, Gpu, Host, HostState, VMState, now
from vmgpu.settings import Settings
from vmgpu.steps import Fail, Hop, Nap, Outcome
from vmgpu.work import Ground, Job

log = logging.getLogger(__name__)

# giving back is tried until the host takes it; a VM that runs is not ended because a look at it failed
_PATIENT = (
    VMState.running,
    VMState.stopping,
    VMState.stopped,
    VMState.releasing,
    VMState.failed,
    VMState.lost,
)


# steps in which a card may be cut, or a piece of it given back
_CUTTING = (
    VMState.carving,
    VMState.booting,
    VMState.stopping,
    VMState.stopped,
    VMState.releasing,
    VMState.failed,
    VMState.lost,
)


def run(job: Job, ground: Ground) -> None:
    """Take this VM as far as it goes now, step after step under one claim."""
    with logs.about_vm(job.row_id):
        _run(job, ground)


def _run(job: Job, ground: Ground) -> None:
    moved = True
    while moved and not ground.stopping.is_set():
        view = _view(ground, job)
        if view is None:
            return
        job.doing, job.since, job.until = view.state, now(), now() + 2 * ground.settings.host_call_timeout
        crash.point(f"vm.{view.state}.begin")
        outcome = _step(ground, job, view)
        crash.point(f"vm.{view.state}.worked")
        console = _console(ground, view) if isinstance(outcome, Fail) or _console_due(ground, view) else None
        with ground.db.write() as session:
            vm = outcomes.held_vm(session, view, job.token, with_cards=outcomes.closes_cards(outcome))
            if console is not None:
                outcomes.keep_console(session, vm.id, console)
            moved = outcomes.apply_vm(session, vm, view, outcome)
        job.until = None
        crash.point(f"vm.{view.state}.applied")
        _log(ground, view, outcome)
    if moved:
        ground.drop(job, timedelta(0))


def _view(ground: Ground, job: Job) -> views.VMView | None:
    """The VM as it is now, after whatever its lease asks for; None when it is gone."""
    while True:
        with ground.db.read() as session:
            row = session.get(VM, job.row_id)
            if row is None or row.claim_token != job.token:
                raise outcomes.TakenOver
            view = views.view(session, row, installation=ground.installation)
        news = leases.lease(view, now(), ground.settings)
        if news is None:
            return view
        with ground.db.write() as session:
            row = outcomes.held(session, VM, job.row_id, job.token)
            # asked again with the row locked: it may have been extended a moment ago
            news = leases.lease(views.view(session, row, installation=ground.installation), now(), ground.settings)
            if news:
                outcomes.apply_lease(session, row, news)


def _step(ground: Ground, job: Job, view: views.VMView) -> Outcome:
    """What follows for this VM now: a wish's pull, or its state's step; errors become outcomes here."""
    hop = lifecycle.steer(view)
    if hop:
        return hop
    step = lifecycle.STEPS.get(view.state)
    if step is None:
        return Nap(None)
    if view.host_id and _host_is_away(ground, view.host_id):
        # its return wakes the VMs on it
        return Nap(60, reason(ReasonCode.host_unreachable, host=view.host_name, detail="no answer"))
    within = step.within + _start_patience(view, ground.settings)
    job.since, job.until = now(), now() + within
    cards = {cut.gpu.id for cut in view.slices if cut.gpu.mode != "emulated"} if view.state in _CUTTING else set()
    token = claim_all(ground.db, Gpu, cards, now() + within) if cards else None
    if cards and token is None:
        return Nap(0.5)  # another VM's piece of the same card is being cut or given back
    try:
        return step.run(view, _world(ground, job, view))
    except Unavailable:
        ground.drop(job, timedelta(seconds=2))  # our database was away, which is nobody's failure
        raise outcomes.TakenOver from None
    except HostUnreachable as bad:
        if ground.stopping.is_set():  # it was us who hung up
            ground.drop(job, timedelta(0))
            raise outcomes.TakenOver from bad
        ground.away(view.host_id, bad)
        return Nap(2, reason(ReasonCode.host_unreachable, host=view.host_name, detail=bad.message))
    except CheckFailed as bad:
        blame = "card" if bad.reason.code.value.startswith("card_") else ""
        return Fail(bad.reason, blame)
    except VmgpuError as bad:
        because = getattr(bad, "reason", None) or _host_error(view, bad.message, bad.hint)
        if because.code is ReasonCode.image_not_on_host:
            with ground.db.write() as session:
                outcomes.copy_again(session, outcomes.held(session, VM, job.row_id, job.token))
            return Nap(None, reason(because.code, image=view.image_name, host=view.host_name))
        return _refused(ground, view, because)
    except outcomes.TakenOver:
        raise
    except Exception as bad:
        log.exception("%s: %s", view.title, view.state)
        detail = f"{type(bad).__name__}: {bad}"
        return _refused(ground, view, _host_error(view, detail))
    finally:
        if token:
            let_all_go(ground.db, Gpu, token)


# what the doctor reads in a host's words when the card itself is to blame
_THE_CARD = ("card-dead", "card-asleep", "reset-hangs")


def _start_patience(view: views.VMView, settings: Settings) -> timedelta:
    """What the host's start of this VM may take on top of all else."""
    if view.state is not VMState.booting:
        return timedelta(0)
    return settings.start_timeout + settings.start_timeout_per_gib * (view.memory_mib / 1024)


def _host_error(view: views.VMView, words: str, hint: str = "") -> Reason:
    """The host's own words, with the doctor's cure where he knows them; or that a card of the VM is not well."""
    causes = explain(words)
    if causes and causes[0].id in _THE_CARD and view.slices:
        cards = ", ".join(sorted({cut.gpu.address or cut.gpu.id for cut in view.slices}))
        return reason(ReasonCode.card_unhealthy, gpu=cards, detail=words)
    return reason(ReasonCode.host_error, host=view.host_name, detail=words, hint=advice(words) or hint)


def _refused(ground: Ground, view: views.VMView, because: Reason) -> Outcome:
    if view.state in _PATIENT:
        return Nap(20, because)
    return Fail(because, "card" if because.code.value.startswith(("card_", "group_")) else "host")


def _world(ground: Ground, job: Job, view: views.VMView) -> _World:
    said = [-1]

    def tell(because: Reason) -> None:
        step = int(because.args.get("percent", 0)) // 5
        if step != said[0]:
            said[0] = step
            job.goes_on()
            with ground.db.write() as session:
                outcomes.held(session, VM, job.row_id, job.token).reason = because.as_dict()

    return _World(
        settings=ground.settings,
        now=now(),
        our_login=ground.settings.ssh_user,
        our_key=ground.our_key,
        our_public_key=ground.our_public_key,
        hosts=ground.hosts,
        host_id=view.host_id or "",
        job=job,
        tell=tell,
    )


def _console_due(ground: Ground, view: views.VMView) -> bool:
    if view.console_asked is None or view.host_id is None or _host_is_away(ground, view.host_id):
        return False
    with ground.db.read() as session:
        kept = session.get(Console, view.id)
    return kept is None or kept.at < view.console_asked


def _console(ground: Ground, view: views.VMView) -> bytes | None:
    if view.host_id is None:
        return None
    try:
        return ground.hosts.get(view.host_id).console(view.id)
    except VmgpuError as bad:
        log.info("no console of %s: %s", view.title, bad.message)
        return None


def _log(ground: Ground, view: views.VMView, outcome: Outcome) -> None:
    match outcome:
        case Hop():
            log.info("%s: %s → %s", view.title, view.state, outcome.state)
        case Fail():
            log.warning("%s: %s failed: %s", view.title, view.state, outcome.because.sentence())
        case Nap() if outcome.because:
            log.debug("%s: %s: %s", view.title, view.state, outcome.because.sentence())


def _host_is_away(ground: Ground, host_id: str) -> bool:
    with ground.db.read() as session:
        host = session.get(Host, host_id)
        return host is not None and host.state is HostState.unreachable


@dataclass
class _World:
    """What one step may touch."""

    settings: Settings
    now: datetime
    our_login: str
    our_key: str
    our_public_key: str
    hosts: OpenHosts
    host_id: str
    job: Job
    tell: Callable[[Reason], None]

    @property
    def host(self) -> Hypervisor:
        """The host, for one more call: none for a step that hung, was given up, and has come back to life."""
        if self.job.given_up:
            raise outcomes.TakenOver
        return self._open

    @cached_property
    def _open(self) -> Hypervisor:
        return self.hosts.get(self.host_id)

    @cached_property
    def boot_id(self) -> str:
        return self.host.boot_id()

    def carver(self, mode: str, framework: str | None) -> Carver:
        return self.host.carver(mode, framework)

    def store_path(self, image_id: str) -> Path:
        return self.settings.images_dir / f"image-{image_id}.qcow2"

    def progress(self, code: ReasonCode) -> Progress:
        return lambda percent: self.tell(reason(code, percent=percent))
