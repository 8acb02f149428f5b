"""The leader places those who wait. One process leads; on PostgreSQL the others stand by."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from vmgpu import crash, ledger, placement
from vmgpu.db import LEADING, Change, Database
from vmgpu.errors import Reason, VmgpuError
from vmgpu.models import VM, VMState

log = logging.getLogger(__name__)

_MATTERS = frozenset({"vm", "slice", "gpu", "host", "image", "gpuunit", "*"})
_AT_ONCE = 50  # placements in one write: few enough that others get their turn at the database


class Leader:
    """A thread that plans whenever something that matters was committed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)
        self._deaf: Callable[[], None] = lambda: None
        self._lock: Connection | None = None

    def start(self) -> None:
        """Begin to lead, or to stand by."""
        self._deaf = self._db.listen(self._hear)
        self._news.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop after the pass that is under way."""
        self._stop.set()
        self._news.set()
        self._thread.join(timeout=10)
        self._deaf()

    def _hear(self, changes: frozenset[Change]) -> None:
        if any(table in _MATTERS for table, _ in changes):
            self._news.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._leads():
                self._stop.wait(1.0)
                continue
            # now and then without news too: a missed word must not leave anybody waiting
            self._news.wait(5.0)
            self._news.clear()
            try:
                while not self._stop.is_set() and place_waiting(self._db):
                    pass
            except VmgpuError as bad:
                log.warning("placing: %s", bad.message)
                self._stop.wait(1.0)
                self._news.set()
            except Exception:
                log.exception("placing failed")
                self._stop.wait(1.0)
                self._news.set()
        if self._lock:
            self._lock.invalidate()  # closed for good: a connection that goes back to the pool would keep the lock
            self._lock.close()

    def _leads(self) -> bool:
        """Whether this process leads: alone on SQLite, else by an advisory lock that dies with its connection."""
        if self._db.embedded:
            return True
        try:
            if self._lock is None:
                conn = self._db.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                if not conn.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": LEADING}).scalar():
                    conn.close()
                    return False
                self._lock = conn
            self._lock.execute(text("SELECT 1"))  # the lock is ours as long as this very connection lives
            return True
        except SQLAlchemyError:
            if self._lock is not None:
                self._lock.invalidate()
                self._lock.close()
            self._lock = None
            return False


def place_waiting(db: Database) -> bool:
    """One pass over the queue. True: places were taken or rows had changed, so another pass is due."""
    with db.read() as session:
        vms = ledger.waiting(session)
        if not vms:
            return False
        ready, unready = ledger.servable(session, vms)
        wishes, fleet = ledger.wishes(session, ready), ledger.fleet(session)
    placed, waiting = placement.plan(wishes, fleet)
    reasons = {one.vm_id: one.reason for one in waiting} | unready
    if placed:
        try:
            with db.write() as session:
                ledger.lock_places(session, placed[:_AT_ONCE])
                for one in placed[:_AT_ONCE]:
                    ledger.take(session, one)
                crash.point("place.begin")
        except ledger.Stale:
            return True
        crash.point("place.applied")
    _tell_why(db, vms, reasons)
    return bool(placed)


def _tell_why(db: Database, vms: list[VM], reasons: dict[str, Reason]) -> None:
    """Write each waiting VM's reason where it is another than before."""
    news = [vm for vm in vms if vm.id in reasons and vm.reason != reasons[vm.id].as_dict()]
    if not news:
        return
    with db.write() as session:
        for seen in news:
            vm = session.get(VM, seen.id)
            if vm is not None and vm.state is VMState.pending:
                vm.reason = reasons[vm.id].as_dict()
