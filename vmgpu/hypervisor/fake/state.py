"""The file in which a simulated host lives, and what happens in it as time goes by.

It is shared by every process of the installation: each call is one short transaction, and nothing is kept in memory.
"""

from __future__ import annotations

import ipaddress
import sqlite3
import threading
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from vmgpu.errors import HostUnreachable
from vmgpu.hypervisor import HostRef, Power
from vmgpu.hypervisor.fake.moods import Temper, read_temper, temper
from vmgpu.hypervisor.fake.shape import parse

_PATIENCE = 10.0  # seconds to wait for another process's transaction
_CHANGES_KEPT = 5000
_CONSOLE_KEPT = 256 * 1024
# Addresses that nobody's network has: those of documentation, then those of benchmarks.
NETWORKS = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
_ADDRESSES = tuple(str(address) for net in NETWORKS for address in ipaddress.ip_network(net).hosts())
_MORE = ipaddress.ip_network("198.18.0.0/15")
# how a running domain's time ends, and the name by which that is counted
_ENDINGS = {"shutdown": "guest_off", "crashed": "guest_crashed", "undefined": "lost_by_hand"}

_SCHEMA = """
CREATE TABLE IF NOT EXISTS host (
    one INTEGER PRIMARY KEY CHECK (one = 1), boot_id TEXT NOT NULL, born_mood TEXT NOT NULL, temper TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0, since_lost INTEGER NOT NULL DEFAULT 0, reboot_at REAL);
CREATE TABLE IF NOT EXISTS domains (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, installation TEXT, build INTEGER, power TEXT NOT NULL,
    why TEXT NOT NULL, memory_mib INTEGER NOT NULL, mac TEXT, devices TEXT NOT NULL DEFAULT '[]',
    started_at REAL, up_at REAL, ends_at REAL, ends_as TEXT);
CREATE INDEX IF NOT EXISTS ending ON domains (ends_at) WHERE ends_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS images (
    volume TEXT PRIMARY KEY, image_id TEXT NOT NULL, virtual_mib INTEGER NOT NULL, percent INTEGER NOT NULL,
    content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS disks (
    vm_id TEXT PRIMARY KEY, volume TEXT NOT NULL, gib INTEGER NOT NULL, content TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS standing ON disks (volume);
CREATE TABLE IF NOT EXISTS seeds (vm_id TEXT PRIMARY KEY, build INTEGER NOT NULL, files TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS nvram (vm_id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS consoles (vm_id TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS leases (mac TEXT PRIMARY KEY, vm_id TEXT NOT NULL, address TEXT NOT NULL UNIQUE);
CREATE INDEX IF NOT EXISTS leased ON leases (vm_id);
CREATE TABLE IF NOT EXISTS cuts (
    card TEXT NOT NULL, start INTEGER NOT NULL, cells INTEGER NOT NULL, compute INTEGER NOT NULL, mode TEXT NOT NULL,
    profile TEXT NOT NULL, gpu_id TEXT NOT NULL, slice_id TEXT NOT NULL, vm_id TEXT NOT NULL, devices TEXT NOT NULL,
    calls INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (card, start));
CREATE INDEX IF NOT EXISTS holding ON cuts (vm_id);
CREATE TABLE IF NOT EXISTS counters (
    what TEXT NOT NULL, vm_id TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (what, vm_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS happened_once (
    what TEXT NOT NULL, vm_id TEXT NOT NULL, PRIMARY KEY (what, vm_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY AUTOINCREMENT, vm_id TEXT NOT NULL);
"""


def path_of(ref: HostRef) -> Path:
    """Where this host's state lies: named after the host, as a machine outlives its entry in our database."""
    return ref.state_dir / f"{quote(ref.name, safe='')}.sqlite"


def open_state(ref: HostRef) -> State:
    """The state of this host, made on first use; a mood that is new in the URI becomes the host's mood."""
    state, born = State(path_of(ref)), parse(ref.uri).mood
    with state.write() as db:
        if db.execute("SELECT born_mood FROM host").fetchone()[0] != born:
            db.execute("UPDATE host SET born_mood = ?", (born,))
            set_temper(db, temper(born))
    return state


class State:
    """One process's connection to the file; its transactions are taken in turn by the threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        with self._spoken():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)  # seeds hold keys
            self._db = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
            self._db.row_factory = sqlite3.Row
            # what one process wrote is there for the next; a power cut may take the last moments of a simulation
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._enter_wal()
            with self._transaction("IMMEDIATE"):
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(
                    "INSERT INTO host (one, boot_id, born_mood, temper) VALUES (1, ?, '', ?) ON CONFLICT DO NOTHING",
                    (str(uuid.uuid4()), Temper().as_json()),
                )

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent look; what was due by now has happened."""
        with self._lock, self._spoken():
            if self._is_due():
                with self._transaction("IMMEDIATE"):
                    _settle(self._db)
            with self._transaction("DEFERRED"):
                yield self._db

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One change, whole or not at all; what was due by now has happened."""
        with self._lock, self._spoken(), self._transaction("IMMEDIATE"):
            _settle(self._db)
            yield self._db

    def temper(self) -> Temper:
        """The mood it is in now."""
        with self._lock, self._spoken():
            return read_temper(self._db.execute("SELECT temper FROM host").fetchone()[0])

    def close(self) -> None:
        """Let go of the file; what is called later finds the host unreachable."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        self._db.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except (sqlite3.Error, OSError) as error:
            raise HostUnreachable(f"the state of a simulated host, {self.path}, cannot be used: {error}") from error

    def _is_due(self) -> bool:
        now = time.time()
        due = "SELECT EXISTS (SELECT 1 FROM domains WHERE ends_at <= ?) OR coalesce(reboot_at <= ?, 0) FROM host"
        return bool(self._db.execute(due, (now, now)).fetchone()[0])

    def _enter_wal(self) -> None:
        # SQLite does not wait for its busy timeout here when several processes open a new file at once
        for left in range(100, -1, -1):
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if not left:
                    raise
                time.sleep(0.02)


# What can be done inside a transaction. A caller verifies first and changes then: a refusal is committed too.


def set_temper(db: sqlite3.Connection, new: Temper) -> None:
    """Change the mood; what happens once in a mood may happen again."""
    db.execute("UPDATE host SET temper = ?, epoch = epoch + 1, since_lost = 0, reboot_at = NULL", (new.as_json(),))
    db.execute("DELETE FROM happened_once")


def count(db: sqlite3.Connection, what: str, vm_id: str = "") -> None:
    """Remember that this happened (once more)."""
    db.execute("INSERT INTO counters VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1", (what, vm_id))


def first_time(db: sqlite3.Connection, what: str, vm_id: str = "") -> bool:
    """True the first time this is asked in the present mood."""
    return db.execute("INSERT INTO happened_once VALUES (?, ?) ON CONFLICT DO NOTHING", (what, vm_id)).rowcount == 1


def touch(db: sqlite3.Connection, vm_id: str) -> None:
    """Tell those who watch that this domain is no longer as it was."""
    number = db.execute("INSERT INTO changes (vm_id) VALUES (?)", (vm_id,)).lastrowid or 0
    db.execute("DELETE FROM changes WHERE number <= ?", (number - _CHANGES_KEPT,))


def end(db: sqlite3.Connection, vm_id: str, why: str) -> None:
    """The domain is off now, for a reason as libvirt names it."""
    power = Power.crashed if why == "crashed" else Power.off
    db.execute(
        """UPDATE domains SET power = ?, why = ?, started_at = NULL, up_at = NULL, ends_at = NULL, ends_as = NULL
           WHERE id = ?""",
        (power, why, vm_id),
    )
    say(db, vm_id, f"[simulated] the guest is off: {why}\n")
    touch(db, vm_id)


def forget(db: sqlite3.Connection, vm_id: str) -> None:
    """The host knows this domain no longer; its disk and seed lie where they lay."""
    db.execute("DELETE FROM domains WHERE id = ?", (vm_id,))
    db.execute("DELETE FROM nvram WHERE vm_id = ?", (vm_id,))
    touch(db, vm_id)


def reboot(db: sqlite3.Connection) -> None:
    """Every domain is off, the host has a new boot id."""
    for row in db.execute("SELECT id FROM domains WHERE power IN ('running', 'paused')").fetchall():
        end(db, row["id"], "unknown")
    db.execute("UPDATE host SET boot_id = ?, reboot_at = NULL", (str(uuid.uuid4()),))
    count(db, "rebooted")


def say(db: sqlite3.Connection, vm_id: str, text: str) -> None:
    """Write to the serial console's log, where there is one; its end is kept."""
    add = "UPDATE consoles SET text = substr(text || ?, ?) WHERE vm_id = ?"
    db.execute(add, (text, -_CONSOLE_KEPT, vm_id))


def lease(db: sqlite3.Connection, vm_id: str, mac: str) -> str:
    """The address that this MAC has, or gets: the one its letters lead to, else the next that is free."""
    known = db.execute("SELECT address FROM leases WHERE mac = ?", (mac,)).fetchone()
    if known:
        return str(known[0])
    taken = {row[0] for row in db.execute("SELECT address FROM leases")}
    first = zlib.crc32(mac.encode())
    ring = (_ADDRESSES[(first + step) % len(_ADDRESSES)] for step in range(len(_ADDRESSES)))
    more = (str(_MORE[1 + step]) for step in range(_MORE.num_addresses - 2))
    address = next((a for pool in (ring, more) for a in pool if a not in taken), "")
    db.execute("INSERT INTO leases VALUES (?, ?, ?)", (mac, vm_id, address))
    return address


def _settle(db: sqlite3.Connection) -> None:
    now = time.time()
    if db.execute("SELECT 1 FROM host WHERE reboot_at <= ?", (now,)).fetchone():
        reboot(db)
    for row in db.execute("SELECT id, ends_as FROM domains WHERE ends_at <= ?", (now,)).fetchall():
        if row["ends_as"] == "undefined":
            forget(db, row["id"])
        else:
            end(db, row["id"], row["ends_as"])
        count(db, _ENDINGS[row["ends_as"]], row["id"])
