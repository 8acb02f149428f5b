"""The line to a simulated host: every call goes over it, and its mood spoils what it may."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vmgpu.errors import HostRefused, HostUnreachable
from vmgpu.hypervisor.fake.moods import Mood, Temper, read_temper
from vmgpu.hypervisor.fake.state import State, count, first_time

_log = logging.getLogger(__name__)
_TICK = 0.05
_WATCH = 0.1


class Line:
    """One process's way to the host; `closed` ends whatever waits on it."""

    def __init__(self, state: State, *, on_change: Callable[[str], None]) -> None:
        self.state = state
        self._on_change = on_change
        self._closed = threading.Event()
        with state.read() as db:
            self._seen = _last_change(db)
        self._watcher = threading.Thread(target=self._watch, name=f"fake {state.path.stem}", daemon=True)
        self._watcher.start()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Ask the host something."""
        self.greet()
        with self.state.read() as db:
            yield db

    @contextmanager
    def changing(self, verb: str, vm_id: str = "") -> Iterator[sqlite3.Connection]:
        """Have the host do something; it is counted, even if the answer is no, and the reply may be lost."""
        mood = self.greet()
        refusal: HostRefused | None = None
        with self.state.write() as db:
            count(db, verb, vm_id)
            try:
                yield db
            except HostRefused as no:
                refusal = no
            lost = mood.mood is Mood.forgetful and _loses(db, mood, verb, vm_id)
        if lost:
            raise HostUnreachable(f"simulated: the reply to {verb} was lost")
        if refusal:
            raise refusal

    def greet(self) -> Temper:
        """Find out how the host feels, and bear it."""
        if self._closed.is_set():
            raise HostUnreachable("simulated: the connection is closed")
        mood = self.state.temper()
        if mood.pause:
            self._closed.wait(mood.pause)
        if mood.mood is Mood.unreachable:
            raise HostUnreachable("simulated: no route to host")
        return mood

    def hang(self) -> None:
        """Do not return before the mood has changed, or somebody woke this call."""
        here = "SELECT epoch, EXISTS (SELECT 1 FROM happened_once WHERE what = 'woken') FROM host"
        with self.state.read() as db:
            epoch = db.execute(here).fetchone()[0]
        while not self._closed.wait(_TICK):
            with self.state.read() as db:
                now, woken = db.execute(here).fetchone()
            if woken or now != epoch:
                return
        raise HostUnreachable("simulated: the connection was closed during a call")

    def wait(self, seconds: float) -> None:
        """Sleep, but no longer than the line is open."""
        self._closed.wait(min(max(seconds, 0.0), _TICK))

    def close(self) -> None:
        """Hang up; repeatable."""
        self._closed.set()
        if threading.current_thread() is not self._watcher:
            self._watcher.join(timeout=1.0)  # a listener may be waiting for whoever hangs up
        self.state.close()

    def _watch(self) -> None:
        """Call `on_change` for each domain that changed, whoever changed it: as libvirt's events do."""
        while not self._closed.is_set():
            try:
                touched = self._news()
            except HostUnreachable:
                touched = []
            for vm_id in touched:
                try:
                    self._on_change(vm_id)
                except Exception:
                    _log.exception("a listener failed", extra={"vm": vm_id})
            self._closed.wait(_WATCH)

    def _news(self) -> list[str]:
        with self.state.read() as db:
            # in the same look: a change that came after the mood turned is not told
            if read_temper(db.execute("SELECT temper FROM host").fetchone()[0]).mood is Mood.unreachable:
                return []
            last = _last_change(db)
            if last == self._seen:
                return []
            rows = db.execute(
                "SELECT vm_id FROM changes WHERE number > ? GROUP BY vm_id ORDER BY min(number)", (self._seen,)
            )
            self._seen = last
            return [row[0] for row in rows]


def _last_change(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()[0])


def _loses(db: sqlite3.Connection, mood: Temper, verb: str, vm_id: str) -> bool:
    # Once for each verb of a VM: a step of exactly as many changes as are between two losses would never end otherwise.
    db.execute("UPDATE host SET since_lost = since_lost + 1")
    waited: int = db.execute("SELECT since_lost FROM host").fetchone()[0]
    if waited < mood.every or not first_time(db, f"lost {verb}", vm_id):
        return False
    db.execute("UPDATE host SET since_lost = 0")
    count(db, "reply_lost", vm_id)
    return True
