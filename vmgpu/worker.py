"""Claims due rows and has them worked on, each in its host's lane; gives up what hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from sqlmodel import col, select

from vmgpu import host_outcomes, host_work, machines, outcomes, vm_work
from vmgpu.connections import Lanes, OpenHosts
from vmgpu.db import Change, Database, claim, drop_all_claims, keep_claims, next_due, wake
from vmgpu.errors import ReasonCode, Unavailable, VmgpuError, reason
from vmgpu.hypervisor.doctor import unseen
from vmgpu.leader import Leader
from vmgpu.models import VM, Claimed, Host, Image, ImageCopy, VMState, Wanted, now
from vmgpu.service import images
from vmgpu.settings import Settings
from vmgpu.work import Ground, Job

log = logging.getLogger(__name__)

MOST_JOBS = 512
STORE = "store"  # the lane of work on no host
_WORK: Mapping[type[Claimed], Callable[[Job, Ground], None]] = {
    Host: host_work.visit,
    Image: host_work.tend_image,
    ImageCopy: host_work.bring_image,
    VM: vm_work.run,
}


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
        self._ground = Ground(db, settings, self._hosts, self._stop)
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
        self._ground.learn()
        with self._db.write() as session:
            # what the hosts did while nobody looked: see them before the VMs on them take a step
            wake(session, Host, col(Host.id).is_not(None))
            wake(session, VM, col(VM.state).not_in([VMState.gone, VMState.pending]), step_since=now())
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
        for kind in _WORK:
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
        try:
            _WORK[job.kind](job, self._ground)
        except outcomes.TakenOver:
            pass
        except Exception:
            log.exception("%s %s", job.kind.__name__, job.row_id)
            self._ground.drop(job, timedelta(seconds=10))
        finally:
            with self._lock:
                self._jobs.pop(job.token, None)
                free = not job.given_up
            if free:
                self._lanes.done(job.lane)
            self._wake.set()

    def _heart(self) -> None:
        """Keep the claims of steps at work, and give up those that hang."""
        beat, hold = 0, self._settings.claim_hold
        every = max(1, int(hold.total_seconds() // 4))
        while not self._stop.wait(1.0):
            with self._lock:
                jobs = list(self._jobs.values())
            beat += 1
            try:
                for job in jobs:
                    if job.until and job.until < now() and not job.given_up:
                        self._give_up(job)
                for kind in _WORK if beat % every == 0 else ():
                    tokens = [job.token for job in jobs if job.kind is kind and not job.given_up]
                    if tokens:
                        keep_claims(self._db, kind, tokens, now() + hold)
            except VmgpuError as bad:
                log.warning("keeping claims: %s", bad.message)
            except Exception:  # without this thread claims run out under steps at work
                log.exception("keeping claims")

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
                    if row.doctor_asked and machines.doctor_due(row.doctor_asked, row.doctor_at):
                        silent = unseen(because.sentence(), because.cure())
                        host_outcomes.examined(row, machines.Findings((silent,), row.doctor_asked))
                    # it answers nobody: its VMs wait for its return, and no new ones are sent there
                    host_outcomes.host_away(session, row, because, again=timedelta(seconds=10))
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
            checking = {
                job.token: job for job in self._jobs.values() if job.kind is VM and job.doing == VMState.checking
            }
        if not checking:
            return
        # one that has just failed is no longer looked at, and what gives its slices back must keep its claim
        unwanted = select(VM.claim_token).where(
            col(VM.claim_token).in_(checking), VM.state == VMState.checking, VM.wanted != Wanted.running
        )
        with self._db.read() as session:
            tokens = session.exec(unwanted).all()
        for token in tokens:
            self._ground.drop(checking[str(token)], timedelta(0))
