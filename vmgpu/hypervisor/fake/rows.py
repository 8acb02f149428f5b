"""A simulated host's entries, read and begun inside a transaction."""

from __future__ import annotations

import sqlite3
import time

from vmgpu.hypervisor import DomainSeen, Power
from vmgpu.hypervisor.fake.moods import Mood, Temper
from vmgpu.hypervisor.fake.shape import BASE_VOLUME
from vmgpu.hypervisor.fake.state import count, first_time, say, touch

_MISFORTUNES = {Mood.crashing: "crashed", Mood.restless: "shutdown", Mood.amnesic: "undefined"}


def start(db: sqlite3.Connection, domain: sqlite3.Row, mood: Temper) -> None:
    """Switch the domain on, and lay up for it what the mood has in store."""
    started = time.time()
    up: float | None = None if mood.mood is Mood.mute else started + mood.boot
    later = (up or started) + mood.after
    misfortune = _MISFORTUNES.get(mood.mood)
    struck = misfortune is not None and first_time(db, misfortune, domain["id"])
    db.execute(
        """UPDATE domains SET power = 'running', why = '', started_at = ?, up_at = ?, ends_at = ?, ends_as = ?
           WHERE id = ?""",
        (started, up, later if struck else None, misfortune if struck else None, domain["id"]),
    )
    if mood.mood is Mood.rebooting and first_time(db, "reboot"):
        db.execute("UPDATE host SET reboot_at = ?", (later,))
    db.execute("INSERT INTO nvram VALUES (?) ON CONFLICT DO NOTHING", (domain["id"],))
    db.execute("INSERT INTO consoles VALUES (?, '') ON CONFLICT DO NOTHING", (domain["id"],))
    say(db, domain["id"], f"[simulated] {domain['name']} starts, build {domain['build']}\n")
    count(db, "started", domain["id"])
    touch(db, domain["id"])


def domain(db: sqlite3.Connection, vm_id: str) -> sqlite3.Row | None:
    """The domain, or None."""
    row: sqlite3.Row | None = db.execute("SELECT * FROM domains WHERE id = ?", (vm_id,)).fetchone()
    return row


def seen(row: sqlite3.Row) -> DomainSeen:
    """The domain as the product is told of it."""
    return DomainSeen(row["id"], row["name"], Power(row["power"]), row["why"], row["installation"], row["build"])


def is_up(row: sqlite3.Row) -> bool:
    """Whether its guest has booted."""
    return row["power"] == Power.running and row["up_at"] is not None and row["up_at"] <= time.time()


def has(db: sqlite3.Connection, table: str, vm_id: str) -> bool:
    """Whether this table has something of the VM."""
    return db.execute(f"SELECT 1 FROM {table} WHERE vm_id = ?", (vm_id,)).fetchone() is not None  # noqa: S608


def image_percent(db: sqlite3.Connection, volume: str) -> int:
    """How much of the image is there."""
    if volume == BASE_VOLUME:
        return 100
    row = db.execute("SELECT percent FROM images WHERE volume = ?", (volume,)).fetchone()
    return int(row["percent"]) if row else 0
