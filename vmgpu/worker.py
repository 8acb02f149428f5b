"""Claims due rows, runs their steps outside any transaction, and applies the outcomes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlmodel import col, select

from vmgpu import crash, lifecycle, machines, outcomes, views
from vmgpu.connections import Lanes, OpenHosts
from vmgpu.db import Change, Database, claim, drop_all_claims, keep_claims, next_due, setting, wake
from vmgpu.errors import HostRefused, HostUnreachable, Reason, ReasonCode, Unavailable, VmgpuError, reason
from vmgpu.guest import CheckFailed
from vmgpu.hypervisor import Carver, Hypervisor, Progress
from vmgpu.leader import Leader
from vmgpu.lifecycle import Fail, Hop, Nap, Outcome
from vmgpu.models import (
    VM,
    Claimed,
    Console,
    Host,
    HostState,
    Image,
    ImageCopy,
    ImageState,
    VMState,
    Wanted,
    now,
)
from vmgpu.service import images
from vmgpu.settings import Settings

log = logging.getLogger(__name__)

MOST_JOBS = 512
# giving back is tried until the host takes it; a VM that runs is not ended because a look at it failed
_PATIENT = (
    VMState.running,
    VMState.stopping,
    VMState.stopped,
    VMState.releasing,
    VMState.failed,
    VMState.lost,
)
STORE = "store"  # the lane of work on no host


@dataclass
class Job:
    """One claimed row at work in a thread. `until`: when it is given up."""

    kind: type[Claimed]
    row_id: str
    token: str
    lane: str
    since: datetime = field(default_factory=now)
    until: datetime | None = None
    doing: str = ""
    given_up: bool = False


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
    tell: Callable[[Reason], None]
    _carvers: dict[str, Carver] = field(default_factory=dict)

    @cached_property
    def host(self) -> Hypervisor:
        return self.hosts.get(self.host_id)

    @cached_property
    def boot_id(self) -> str:
        return self.host.boot_id()

    def carver(self, mode: str) -> Carver:
        return self.host.carver(mode)

    def store_path(self, image_id: str) -> Path:
        return self.settings.images_dir / f"image-{image_id}.qcow2"

    def progress(self, code: ReasonCode) -> Progress:
        return lambda percent: self.tell(reason(code, percent=percent))


class Worker:
    """The threads that move every row towards what is wished of it."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self._db, self._settings = db, settings
        self._hosts = OpenHosts(db, settings, self._on_change)
        self._lanes = Lanes(settings.workers)
        self._leader = Leader(db)
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._nudged: set[str] = set()
        self._deaf: Callable[[], None] = lambda: None
        self._threads = [
            threading.Thread(target=self._loop, name="worker", daemon=True),
            threading.Thread(target=self._heart, name="worker-heart", daemon=True),
        ]

    def start(self) -> None:
        """Begin. On SQLite every claim is a dead process's: this one is alone."""
        self._settings.images_dir.mkdir(parents=True, exist_ok=True)
        if self._db.embedded:
            drop_all_claims(self._db)
            images.sweep(self._db, self._settings)
        with self._db.read() as session:
            self._installation = setting(session, "installation") or ""
            self._our_key = setting(session, "ssh_private") or ""
            self._our_public_key = setting(session, "ssh_public") or ""
        with self._db.write() as session:
            # what the hosts did while nobody looked: see them before the VMs on them take a step
            wake(session, Host, col(Host.id).is_not(None))
            wake(session, VM, col(VM.state).not_in([VMState.gone, VMState.pending]))
            outcomes.give_time(session)
        self._deaf = self._db.listen(self._hear)
        for thread in self._threads:
            thread.start()
        self._leader.start()

    def stop(self, timeout: float = 20) -> None:
        """Take no new row, let steps at work end for a while; what is cut off is found again at the next start."""
        self._stop.set()
        self._wake.set()
        self._leader.stop()
        until = now() + timedelta(seconds=timeout)
        while self._jobs and now() < until:
            threading.Event().wait(0.05)
        self._deaf()
        for thread in self._threads:
            thread.join(timeout=5)
        self._hosts.close()

    @property
    def alive(self) -> bool:
        """Whether its threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def _hear(self, changes: frozenset[Change]) -> None:
        if any(table in ("vm", "host", "image", "imagecopy", "*") for table, _ in changes):
            self._wake.set()

    def _on_change(self, vm_id: str) -> None:
        """A host reports a change of a domain: its row is due. Called from the host's own thread, so only noted."""
        self._nudged.add(vm_id)
        self._wake.set()

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self._heed()
                if self._claim_some():
                    continue
                due = next_due(self._db)
            except Unavailable as bad:
                log.warning("%s", bad.message)
                self._stop.wait(1.0)
                continue
            except Exception:
                log.exception("the worker's loop")
                self._stop.wait(1.0)
                continue
            full = len(self._jobs) >= MOST_JOBS  # then there is nothing to do before one of them ends
            left = (due - now()).total_seconds() if due and not full else 5.0
            self._wake.wait(min(5.0, max(0.02, left)))

    def _claim_some(self) -> bool:
        claimed = False
        for kind in (Host, Image, ImageCopy, VM):
            while len(self._jobs) < MOST_JOBS and not self._stop.is_set():
                row = claim(self._db, kind, now(), hold=self._settings.claim_hold)
                if row is None:
                    break
                claimed = True
                self._begin(kind, row)
        return claimed

    def _begin(self, kind: type[Claimed], row: Any) -> None:
        lane = str(row.id if kind is Host else getattr(row, "host_id", None) or STORE)
        job = Job(kind, row.id, row.claim_token, lane if kind is not Host else f"visit-{lane}")
        with self._lock:
            self._jobs[job.token] = job
        self._lanes.run(job.lane, lambda: self._work(job))

    def _work(self, job: Job) -> None:
        run = {VM: self._vm, Host: self._host, ImageCopy: self._copy, Image: self._image}[job.kind]
        try:
            run(job)
        except outcomes.TakenOver:
            pass
        except Exception:
            log.exception("%s %s", job.kind.__name__, job.row_id)
            self._drop(job, timedelta(seconds=10))
        finally:
            with self._lock:
                self._jobs.pop(job.token, None)
                free = not job.given_up
            if free:
                self._lanes.done(job.lane)
            self._wake.set()

    def _drop(self, job: Job, again: timedelta) -> None:
        """End a claim whose step broke, and try again later."""
        try:
            with self._db.write() as session:
                outcomes.let_go(outcomes.held(session, job.kind, job.row_id, job.token), now() + again)
        except (outcomes.TakenOver, VmgpuError):
            log.info("%s %s: the claim is no longer ours", job.kind.__name__, job.row_id)

    def _heart(self) -> None:
        """Keep the claims of steps at work, and give up those that hang."""
        beat, hold = 0, self._settings.claim_hold
        every = max(1, int(hold.total_seconds() // 4))
        while not self._stop.wait(1.0):
            with self._lock:
                jobs = list(self._jobs.values())
            for job in jobs:
                if job.until and job.until < now() and not job.given_up:
                    self._give_up(job)
            beat += 1
            if beat % every == 0:
                for kind in (Host, Image, ImageCopy, VM):
                    tokens = [job.token for job in jobs if job.kind is kind and not job.given_up]
                    if tokens:
                        try:
                            keep_claims(self._db, kind, tokens, now() + hold)
                        except VmgpuError as bad:
                            log.warning("keeping claims: %s", bad.message)

    def _give_up(self, job: Job) -> None:
        """A step hangs: its thread is lost, its row is free, whatever it still brings is thrown away."""
        with self._lock:
            if self._jobs.pop(job.token, None) is None:
                return  # it has just ended
            job.given_up = True
        log.warning("%s %s: %s hangs and is given up", job.kind.__name__, job.row_id, job.doing)
        self._lanes.done(job.lane)
        try:
            with self._db.write() as session:
                row: Any = outcomes.held(session, job.kind, job.row_id, job.token)
                host = session.get(Host, getattr(row, "host_id", None) or row.id)
                seconds = round((now() - job.since).total_seconds())
                because = reason(ReasonCode.call_hangs, host=host.name if host else "", seconds=seconds)
                if isinstance(row, Host):
                    # it answers nobody: its VMs wait for its return, and no new ones are sent there
                    outcomes.host_away(session, row, because, again=timedelta(seconds=10))
                    return
                if hasattr(row, "reason"):
                    row.reason = because.as_dict()
                outcomes.let_go(row, now() + timedelta(seconds=2))
        except (outcomes.TakenOver, VmgpuError):
            log.info("%s %s: already free", job.kind.__name__, job.row_id)

    def _heed(self) -> None:
        """Make nudged rows due, and take VMs out of a long look inside when their owner has changed their mind."""
        nudged = set()
        while self._nudged:
            nudged.add(self._nudged.pop())
        if nudged:
            with self._db.write() as session:
                settled = (VMState.running, VMState.stopped, VMState.stopping, VMState.capturing, VMState.building)
                wake(session, VM, col(VM.id).in_(nudged), col(VM.state).in_(settled))
        with self._lock:
            checking = {job.token: job for job in self._jobs.values() if job.kind is VM and job.doing == "checking"}
        if not checking:
            return
        unwanted = select(VM.claim_token).where(col(VM.claim_token).in_(checking), VM.wanted != Wanted.running)
        with self._db.read() as session:
            tokens = session.exec(unwanted).all()
        for token in tokens:
            self._drop(checking[str(token)], timedelta(0))

    # VMs

    def _vm(self, job: Job) -> None:
        moved = True
        while moved and not self._stop.is_set():
            view = self._view(job)
            if view is None:
                return
            job.doing = view.state
            crash.point(f"vm.{view.state}.begin")
            outcome = self._step(job, view)
            crash.point(f"vm.{view.state}.worked")
            console = self._console(view) if isinstance(outcome, Fail) or self._console_due(view) else None
            with self._db.write() as session:
                vm = outcomes.held(session, VM, job.row_id, job.token)
                if console is not None:
                    outcomes.keep_console(session, vm.id, console)
                moved = outcomes.apply_vm(session, vm, view, outcome)
            job.until = None
            crash.point(f"vm.{view.state}.applied")
            self._log(view, outcome)
        if moved:
            self._drop(job, timedelta(0))

    def _view(self, job: Job) -> views.VMView | None:
        """The VM as it is now, after whatever its lease asks for; None when it is gone."""
        while True:
            with self._db.read() as session:
                row = session.get(VM, job.row_id)
                if row is None or row.claim_token != job.token:
                    raise outcomes.TakenOver
                view = views.view(session, row, installation=self._installation)
            news = lifecycle.lease(view, now(), self._settings)
            if news is None:
                return view
            with self._db.write() as session:
                row = outcomes.held(session, VM, job.row_id, job.token)
                # asked again with the row locked: it may have been extended a moment ago
                news = lifecycle.lease(views.view(session, row, installation=self._installation), now(), self._settings)
                if news:
                    outcomes.apply_lease(session, row, news)

    def _step(self, job: Job, view: views.VMView) -> Outcome:
        """What follows for this VM now: a wish's pull, or its state's step; errors become outcomes here."""
        hop = lifecycle.steer(view)
        if hop:
            return hop
        step = lifecycle.STEPS.get(view.state)
        if step is None:
            return Nap(None)
        if view.host_id and self._host_is_away(view.host_id):
            # its return wakes the VMs on it
            return Nap(60, reason(ReasonCode.host_unreachable, host=view.host_name, detail="no answer"))
        job.since, job.until = now(), now() + step.within
        try:
            return step.run(view, self._world(job, view))
        except HostUnreachable as bad:
            if self._stop.is_set():  # it was us who hung up
                self._drop(job, timedelta(0))
                raise outcomes.TakenOver from bad
            self._away(view.host_id, bad)
            return Nap(2, reason(ReasonCode.host_unreachable, host=view.host_name, detail=bad.message))
        except CheckFailed as bad:
            blame = "card" if bad.reason.code.value.startswith("card_") else ""
            return Fail(bad.reason, blame)
        except (HostRefused, VmgpuError) as bad:
            because = getattr(bad, "reason", None) or reason(
                ReasonCode.host_error, host=view.host_name, detail=bad.message, hint=bad.hint
            )
            return self._refused(view, because)
        except outcomes.TakenOver:
            raise
        except Exception as bad:
            log.exception("%s: %s", view.title, view.state, extra={"vm_id": view.id})
            detail = f"{type(bad).__name__}: {bad}"
            return self._refused(view, reason(ReasonCode.host_error, host=view.host_name, detail=detail, hint=""))

    def _refused(self, view: views.VMView, because: Reason) -> Outcome:
        if view.state in _PATIENT:
            return Nap(20, because)
        return Fail(because, "card" if because.code.value.startswith(("card_", "group_")) else "host")

    def _world(self, job: Job, view: views.VMView) -> _World:
        said = [-1]

        def tell(because: Reason) -> None:
            step = int(because.args.get("percent", 0)) // 5
            if step != said[0]:
                said[0] = step
                with self._db.write() as session:
                    outcomes.held(session, VM, job.row_id, job.token).reason = because.as_dict()

        return _World(
            settings=self._settings,
            now=now(),
            our_login=self._settings.ssh_user,
            our_key=self._our_key,
            our_public_key=self._our_public_key,
            hosts=self._hosts,
            host_id=view.host_id or "",
            tell=tell,
        )

    def _console_due(self, view: views.VMView) -> bool:
        if view.console_asked is None or view.host_id is None:
            return False
        with self._db.read() as session:
            kept = session.get(Console, view.id)
        return kept is None or kept.at < view.console_asked

    def _console(self, view: views.VMView) -> bytes | None:
        if view.host_id is None:
            return None
        try:
            return self._hosts.get(view.host_id).console(view.id)
        except VmgpuError as bad:
            log.info("no console of %s: %s", view.title, bad.message)
            return None

    def _log(self, view: views.VMView, outcome: Outcome) -> None:
        extra = {"vm_id": view.id}
        match outcome:
            case Hop():
                log.info("%s: %s → %s", view.title, view.state, outcome.state, extra=extra)
            case Fail():
                log.warning("%s: %s failed: %s", view.title, view.state, outcome.because.sentence(), extra=extra)
            case Nap() if outcome.because:
                log.debug("%s: %s: %s", view.title, view.state, outcome.because.sentence(), extra=extra)

    # hosts and images

    def _host_is_away(self, host_id: str) -> bool:
        with self._db.read() as session:
            host = session.get(Host, host_id)
            return host is not None and host.state is HostState.unreachable

    def _away(self, host_id: str | None, bad: HostUnreachable) -> None:
        """A step met a host that does not answer: note it, and look at the host soon."""
        if host_id is None:
            return
        with self._db.write() as session:
            host = session.get(Host, host_id, with_for_update=True)
            if host is not None and host.claim_token is None:
                because = reason(ReasonCode.host_unreachable, host=host.name, detail=bad.message)
                outcomes.host_away(session, host, because, again=timedelta(seconds=1))

    def _host(self, job: Job) -> None:
        with self._db.read() as session:
            host = session.get_one(Host, job.row_id)
        due = machines.survey_due(host.survey_asked, host.surveyed_at, now())
        view = machines.HostView(host.id, host.name, host.state, due)
        job.doing, job.since, job.until = "visit", now(), now() + 2 * self._settings.host_call_timeout
        crash.point("host.begin")
        try:
            open_host = self._hosts.get(host.id)
            if view.state is HostState.removing:
                with self._db.read() as session:
                    images_there = session.exec(outcomes.images_on(host.id)).all()
                for image in images_there:
                    open_host.drop_image(views.image_ref(image))
                open_host.withdraw()
                news = None
            else:
                news = machines.visit(view, open_host)
        except (HostUnreachable, VmgpuError) as bad:
            if view.state is HostState.removing:
                self._forget(job)
                return
            silent = isinstance(bad, HostUnreachable) and host.surveyed_at is not None
            code = ReasonCode.host_unreachable if silent else ReasonCode.survey_failed
            because = reason(code, host=host.name, detail=bad.message, hint=bad.hint)
            again = timedelta(seconds=5 if silent else 30)
            with self._db.write() as session:
                row = outcomes.held(session, Host, job.row_id, job.token)
                outcomes.host_away(session, row, because, again=again)
            return
        crash.point("host.worked")
        if news is None:
            self._forget(job)
            return
        with self._db.write() as session:
            row = outcomes.held(session, Host, job.row_id, job.token)
            if row.state is HostState.removing:
                outcomes.let_go(row, now())
                return
            outcomes.apply_host(session, row, news, self._installation, self._settings.sync_every)
        crash.point("host.applied")

    def _forget(self, job: Job) -> None:
        with self._db.write() as session:
            outcomes.forget_host(session, outcomes.held(session, Host, job.row_id, job.token))
        self._hosts.drop(job.row_id)

    def _copy(self, job: Job) -> None:
        with self._db.read() as session:
            copy = session.get_one(ImageCopy, job.row_id)
            image = session.get_one(Image, copy.image_id)
            host = session.get_one(Host, copy.host_id)
        view = machines.CopyView(
            views.image_ref(image), image.name, host.name, self._settings.images_dir / image.volume
        )
        job.doing, job.until = "copy", now() + timedelta(hours=4)
        failed = None
        crash.point("copy.begin")
        try:
            machines.bring(view, self._hosts.get(host.id), self._copy_progress(job))
        except HostUnreachable as bad:
            self._away(host.id, bad)
            self._drop(job, timedelta(seconds=10))
            return
        except VmgpuError as bad:
            failed = reason(ReasonCode.image_broken, image=image.name, detail=bad.message)
        crash.point("copy.worked")
        with self._db.write() as session:
            outcomes.apply_copy(session, outcomes.held(session, ImageCopy, job.row_id, job.token), failed=failed)
        crash.point("copy.applied")

    def _copy_progress(self, job: Job) -> Progress:
        said = [0]

        def tell(percent: int) -> None:
            if percent >= said[0] + 5:
                said[0] = percent
                with self._db.write() as session:
                    outcomes.held(session, ImageCopy, job.row_id, job.token).percent = percent

        return tell

    def _image(self, job: Job) -> None:
        with self._db.read() as session:
            image = session.get_one(Image, job.row_id)
            source = session.get(VM, image.source_vm) if image.source_vm else None
            host = session.get(Host, source.host_id) if source and source.host_id else None
        path = self._settings.images_dir / image.volume
        job.doing = image.state
        job.until = now() + timedelta(hours=1)
        if image.state is ImageState.deleting:
            self._delete_image(job, image, path)
            return
        if image.state is not ImageState.generalising:
            self._drop(job, timedelta(days=1))
            return
        accel = str((host.facts or {}).get("accel", "tcg")) if host else "tcg"
        view = machines.ImageView(image.id, image.name, image.state, path, accel, tuple(image.logins))
        crash.point("image.begin")
        news = machines.clean(view, simulated=bool(host and host.simulated))
        crash.point("image.worked")
        with self._db.write() as session:
            outcomes.apply_image(session, outcomes.held(session, Image, job.row_id, job.token), news)
        crash.point("image.applied")

    def _delete_image(self, job: Job, image: Image, path: Path) -> None:
        """Remove every host's copy, then the master, then the rows; a host that does not answer is waited for."""
        with self._db.read() as session:
            copies = session.exec(outcomes.copies_of(image.id)).all()
        for copy in copies:
            try:
                self._hosts.get(copy.host_id).drop_image(views.image_ref(image))
            except HostUnreachable as bad:
                self._away(copy.host_id, bad)
                self._drop(job, timedelta(seconds=15))
                return
            except HostRefused as bad:
                log.warning("image %s: %s", image.name, bad.message)
                self._drop(job, timedelta(seconds=30))
                return
        path.unlink(missing_ok=True)
        with self._db.write() as session:
            outcomes.forget_image(session, outcomes.held(session, Image, job.row_id, job.token))
