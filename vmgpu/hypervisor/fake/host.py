"""One simulated host: it keeps books on domains, disks, images and cards as a real one would, and runs nothing."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from vmgpu.errors import HostRefused, ReasonCode, reason
from vmgpu.hypervisor import (
    DomainSeen,
    Held,
    HostDevice,
    HostFacts,
    HostRef,
    Hypervisor,
    ImageRef,
    NetworkRef,
    Power,
    Progress,
    VMSpec,
)
from vmgpu.hypervisor.doctor import Check
from vmgpu.hypervisor.doctor.findings import ok
from vmgpu.hypervisor.fake import rows
from vmgpu.hypervisor.fake.carver import FakeCarver
from vmgpu.hypervisor.fake.facts import host_facts
from vmgpu.hypervisor.fake.line import Line
from vmgpu.hypervisor.fake.moods import Mood
from vmgpu.hypervisor.fake.shape import FakeShape, parse
from vmgpu.hypervisor.fake.state import count, end, first_time, forget, lease, open_state, touch

DISK_HEADER = "vmgpu simulated disk\n"  # the first line of every file that stands for a disk of a simulated host
_PERCENTS = (0, 25, 50, 75)


def open_fake(ref: HostRef, *, on_change: Callable[[str], None]) -> FakeHost:
    """Open the simulated host that `ref` names, made on first use; `on_change` is told of each domain that changes.

    Raises Invalid for a URI that cannot be read.
    """
    shape = parse(ref.uri)
    return FakeHost(ref, shape, Line(open_state(ref), on_change=on_change))


class FakeHost(Hypervisor):
    """A Hypervisor whose guests are entries in a file. Guests are not dialled: ask `guest_checked` instead."""

    simulated: ClassVar[bool] = True

    def __init__(self, ref: HostRef, shape: FakeShape, line: Line) -> None:
        self.ref = ref
        self.shape = shape
        self._line = line

    # the host itself

    def survey(self) -> HostFacts:
        """What the URI says, called simulated wherever a name is asked for."""
        with self._line.reading() as db:
            boot_id = db.execute("SELECT boot_id FROM host").fetchone()[0]
            images_mib = dict(db.execute("SELECT volume, virtual_mib FROM images").fetchall())
        return host_facts(self.ref, self.shape, boot_id=boot_id, images_mib=images_mib)

    def checkup(self) -> tuple[Check, ...]:
        """One check: there is nothing real to look at."""
        self._line.greet()
        return (ok("simulated", "this host is simulated", "Its cards and guests are entries in a file: all is well."),)

    def boot_id(self) -> str:
        with self._line.reading() as db:
            return str(db.execute("SELECT boot_id FROM host").fetchone()[0])

    def carver(self, mode: str, framework: str | None = None) -> FakeCarver:
        """The carver of this host's cards in that mode."""
        return FakeCarver(self._line, self.shape, mode)

    def dial(self, address: str, port: int) -> object | None:
        return None

    def withdraw(self) -> None:
        """Leave: the file stays, as the machine does, and what lies there is not ours to remove unasked."""
        with self._line.changing("withdraw"):
            pass

    def close(self) -> None:
        self._line.close()

    # images and disks

    def has_image(self, image: ImageRef) -> bool:
        with self._line.reading() as db:
            return rows.image_percent(db, image.volume) == 100

    def ensure_image(self, image: ImageRef, source: Path, *, progress: Progress) -> None:
        if self.has_image(image):
            return
        try:
            content = source.read_bytes()[: 1 << 20].decode(errors="replace").removeprefix(DISK_HEADER)
        except OSError as bad:
            raise HostRefused(f"simulated: cannot read {source.name}: {bad.strerror}") from bad
        part = """INSERT INTO images VALUES (?, ?, ?, ?, '') ON CONFLICT DO
                  UPDATE SET percent = excluded.percent WHERE percent < 100"""
        for percent in _PERCENTS:
            self._line.greet()
            with self._line.state.write() as db:
                db.execute(part, (image.volume, image.id, image.virtual_mib, percent))
            progress(percent)
        with self._line.changing("ensure_image", image.id) as db:
            whole = "UPDATE images SET percent = 100, content = ? WHERE volume = ? AND percent < 100"
            if db.execute(whole, (content, image.volume)).rowcount:
                count(db, "image_copied", image.id)
        progress(100)

    def drop_image(self, image: ImageRef) -> None:
        with self._line.changing("drop_image", image.id) as db:
            if db.execute("SELECT 1 FROM disks WHERE volume = ?", (image.volume,)).fetchone():
                raise HostRefused(f"simulated: a disk stands on {image.volume}")
            db.execute("DELETE FROM images WHERE volume = ?", (image.volume,))

    def ensure_disk(self, spec: VMSpec) -> None:
        with self._line.changing("ensure_disk", spec.id) as db:
            if rows.has(db, "disks", spec.id):
                return
            if rows.image_percent(db, spec.image.volume) != 100:
                gone = reason(ReasonCode.image_not_on_host, image=spec.image.volume, host=self.ref.name)
                raise HostRefused(f"simulated: there is no volume {spec.image.volume}", reason=gone)
            found = db.execute("SELECT content FROM images WHERE volume = ?", (spec.image.volume,)).fetchone()
            disk = (spec.id, spec.image.volume, spec.disk_gib, found["content"] if found else "")
            db.execute("INSERT INTO disks VALUES (?, ?, ?, ?)", disk)
            count(db, "disk_made", spec.id)

    def drop_disk(self, vm_id: str) -> None:
        with self._line.changing("drop_disk", vm_id) as db:
            self._must_be_off(db, vm_id, "its disk cannot be removed")
            if db.execute("DELETE FROM disks WHERE vm_id = ?", (vm_id,)).rowcount:
                count(db, "disk_dropped", vm_id)

    def has_disk(self, vm_id: str) -> bool:
        with self._line.reading() as db:
            return rows.has(db, "disks", vm_id)

    def see_room(self, vm_id: str, target: Path) -> None:
        """A simulated disk's copy is a line of text."""
        self._line.greet()

    def copy_flat(self, vm_id: str, target: Path, *, progress: Progress) -> None:
        """Write a small text file, marked as a simulated disk, that `ensure_image` takes back in."""
        with self._line.reading() as db:
            self._must_be_off(db, vm_id, "its disk cannot be copied")
            disk = db.execute("SELECT content FROM disks WHERE vm_id = ?", (vm_id,)).fetchone()
        if disk is None:
            raise HostRefused("simulated: it has no disk here", reason=reason(ReasonCode.disk_gone, host=self.ref.name))
        for percent in _PERCENTS:
            self._line.greet()
            progress(percent)
        part = target.with_name(f"{target.name}.part")
        part.write_text(DISK_HEADER + disk["content"])
        part.replace(target)
        with self._line.changing("copy_flat", vm_id):
            progress(100)

    # domains

    def ensure_defined(self, spec: VMSpec) -> None:
        with self._line.changing("ensure_defined", spec.id) as db:
            found = self._ours(db, spec.id)
            if found and found["power"] == Power.running:
                return
            if found and found["name"] != spec.name:
                raise HostRefused(f"simulated: domain {found['name']!r} is already defined with UUID {spec.id}")
            if db.execute("SELECT 1 FROM domains WHERE name = ? AND id != ?", (spec.name, spec.id)).fetchone():
                raise HostRefused(f"simulated: another domain is called {spec.name!r}")
            files = {name: content.decode(errors="replace") for name, content in spec.seed.files.items()}
            db.execute("INSERT OR REPLACE INTO seeds VALUES (?, ?, ?)", (spec.id, spec.build, json.dumps(files)))
            db.execute(
                """INSERT INTO domains (id, name, installation, build, power, why, memory_mib, mac, devices)
                   VALUES (?, ?, ?, ?, 'off', 'unknown', ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
                   build = excluded.build, memory_mib = excluded.memory_mib, mac = excluded.mac,
                   devices = excluded.devices""",
                (
                    *(spec.id, spec.name, spec.installation, spec.build, spec.memory_mib, spec.mac),
                    json.dumps([repr(device) for device in spec.devices]),
                ),
            )
            lease(db, spec.id, spec.mac)
            if not found:
                count(db, "defined", spec.id)
                touch(db, spec.id)

    def ensure_running(self, vm_id: str) -> None:
        if self._line.state.temper().mood is Mood.hanging:
            with self._line.state.write() as db:
                hangs = first_time(db, "hung")
                if hangs:
                    count(db, "hung", vm_id)
            if hangs:
                self._line.hang()
        with self._line.changing("ensure_running", vm_id) as db:
            found = self._ours(db, vm_id)
            if found and found["power"] == Power.running:
                return
            mood = self._line.state.temper()
            if mood.mood is Mood.refusing and first_time(db, "refused", vm_id):
                raise HostRefused("simulated: internal error: process exited while connecting to monitor")
            if found is None:
                raise HostRefused(f"simulated: no domain with UUID {vm_id}")
            self._must_be_able_to_start(db, found)
            rows.start(db, found, mood)

    def look(self, vm_id: str) -> DomainSeen:
        with self._line.reading() as db:
            row = rows.domain(db, vm_id)
        return rows.seen(row) if row else DomainSeen(vm_id, "", Power.absent)

    def domains(self) -> tuple[DomainSeen, ...]:
        with self._line.reading() as db:
            return tuple(rows.seen(row) for row in db.execute("SELECT * FROM domains ORDER BY id"))

    def holds(self, vm_id: str) -> tuple[Held, ...]:
        with self._line.reading() as db:
            cuts = db.execute("SELECT * FROM cuts WHERE vm_id = ? ORDER BY card, start", (vm_id,)).fetchall()
        return tuple(Held(cut["profile"], address=cut["card"], start=cut["start"]) for cut in cuts)

    def shutdown(self, vm_id: str) -> None:
        with self._line.changing("shutdown", vm_id) as db:
            found = self._ours(db, vm_id)
            if found and found["power"] == Power.running:
                off_at = time.time() + self._line.state.temper().off
                db.execute(
                    """UPDATE domains SET ends_at = ?, ends_as = 'shutdown'
                       WHERE id = ? AND (ends_at IS NULL OR ends_at > ?)""",
                    (off_at, vm_id, off_at),
                )

    def power_off(self, vm_id: str) -> None:
        with self._line.changing("power_off", vm_id) as db:
            found = self._ours(db, vm_id)
            if found and found["power"] in (Power.running, Power.paused):
                end(db, vm_id, "destroyed")
                count(db, "powered_off", vm_id)

    def erase(self, vm_id: str) -> None:
        """Remove all there is of it; one that runs loses its power first."""
        with self._line.changing("erase", vm_id) as db:
            found = self._ours(db, vm_id)
            if found and found["power"] in (Power.running, Power.paused):
                end(db, vm_id, "destroyed")
                count(db, "powered_off", vm_id)
            if found:
                forget(db, vm_id)
                count(db, "undefined", vm_id)
            if db.execute("DELETE FROM disks WHERE vm_id = ?", (vm_id,)).rowcount:
                count(db, "disk_dropped", vm_id)
            for table in ("seeds", "consoles", "leases"):
                db.execute(f"DELETE FROM {table} WHERE vm_id = ?", (vm_id,))  # noqa: S608 - the names are ours

    def leftovers(self, vm_id: str) -> tuple[str, ...]:
        with self._line.reading() as db:
            kept = {"nvram": "nvram", "disk": "disks", "seed": "seeds", "console": "consoles"}
            found = [name for name, table in kept.items() if rows.has(db, table, vm_id)]
            return (*(["domain"] if rows.domain(db, vm_id) else []), *found)

    # guests

    def address(self, vm_id: str, mac: str, network: NetworkRef) -> str | None:
        with self._line.reading() as db:
            row = rows.domain(db, vm_id)
            if row is None or row["mac"] != mac or not rows.is_up(row):
                return None
            return str(db.execute("SELECT address FROM leases WHERE mac = ?", (mac,)).fetchone()[0])

    def wait_guest(self, vm_id: str, seconds: float) -> bool:
        """Wait for the guest; one that is off, or gone, is not waited for."""
        deadline = time.time() + seconds
        while True:
            with self._line.reading() as db:
                row = rows.domain(db, vm_id)
            if row is not None and rows.is_up(row):
                return True
            left = deadline - time.time()
            if left <= 0 or row is None or row["power"] != Power.running:
                return False
            self._line.wait(left if row["up_at"] is None else min(left, row["up_at"] - time.time()))

    def guest_checked(self, vm_id: str, devices: Sequence[HostDevice]) -> tuple[bool, str]:
        """What SSH into the guest would find: whether it is ready, and its card: `seen`, or `none` if it has none.

        HostRefused with the reason when a card that should be there is not.
        """
        mood = self._line.greet()
        with self._line.reading() as db:
            row = rows.domain(db, vm_id)
        if row is None or not rows.is_up(row):
            return False, "none"
        if not devices:
            return True, "none"
        wanted = Counter(repr(device) for device in devices)
        if mood.mood is Mood.cardless or wanted - Counter(json.loads(row["devices"])):
            missing = reason(ReasonCode.card_missing, wanted=", ".join(wanted))
            raise HostRefused("simulated: the guest does not show its card", reason=missing)
        return True, "seen"

    def console(self, vm_id: str, limit: int = 256 * 1024) -> bytes:
        with self._line.reading() as db:
            row = db.execute("SELECT text FROM consoles WHERE vm_id = ?", (vm_id,)).fetchone()
            domain = rows.domain(db, vm_id)
        text = row["text"] if row else ""
        if domain is not None and rows.is_up(domain):
            text += f"[simulated] {domain['name']} is up\n{domain['name']} login: "
        return text.encode()[-limit:] if limit > 0 else b""

    def _ours(self, db: sqlite3.Connection, vm_id: str) -> sqlite3.Row | None:
        """The domain, if there is one; one of another installation may only be looked at."""
        row = rows.domain(db, vm_id)
        if row is not None and row["installation"] != self.ref.installation:
            count(db, "foreign_touched", vm_id)
            raise HostRefused(f"simulated: domain {row['name']!r} belongs to {row['installation'] or 'somebody else'}")
        return row

    def _must_be_off(self, db: sqlite3.Connection, vm_id: str, else_what: str) -> None:
        row = self._ours(db, vm_id)
        if row is not None and row["power"] in (Power.running, Power.paused):
            raise HostRefused(f"simulated: domain {row['name']!r} is running: {else_what}")

    def _must_be_able_to_start(self, db: sqlite3.Connection, domain: sqlite3.Row) -> None:
        if not rows.has(db, "disks", domain["id"]):
            raise HostRefused(
                f"simulated: the disk of {domain['name']!r} is not there",
                reason=reason(ReasonCode.disk_gone, host=self.ref.name),
            )
        if not rows.has(db, "seeds", domain["id"]):
            raise HostRefused(f"simulated: the seed of {domain['name']!r} is not there")
        self._must_be_cut(db, domain)
        used = db.execute("SELECT coalesce(sum(memory_mib), 0) FROM domains WHERE power = 'running'").fetchone()[0]
        if used + domain["memory_mib"] > self.shape.memory_mib:
            count(db, "memory_overrun", domain["id"])
            raise HostRefused("simulated: cannot set up guest memory: Cannot allocate memory")

    def _must_be_cut(self, db: sqlite3.Connection, domain: sqlite3.Row) -> None:
        """See that all its devices lie on the simulated cards."""
        held: Counter[str] = Counter()
        for row in db.execute("SELECT devices FROM cuts WHERE vm_id = ?", (domain["id"],)):
            held.update(json.loads(row["devices"]))
        for device in Counter(json.loads(domain["devices"])) - held:
            count(db, "uncut_device", domain["id"])
            raise HostRefused(f"simulated: device {device} was not cut for {domain['name']!r}")
