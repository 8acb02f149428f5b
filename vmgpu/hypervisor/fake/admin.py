"""A hand at a simulated host: what a person, a guest or fate does there, and what a test may see."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from vmgpu.hypervisor import DomainSeen, HostRef, Power
from vmgpu.hypervisor.fake.moods import Temper, temper
from vmgpu.hypervisor.fake.state import State, count, end, first_time, forget, open_state, reboot, set_temper, touch


@dataclass(frozen=True)
class Cut:
    """A slice as the card has it; `calls`: how often it was asked to be cut."""

    card: str
    start: int
    cells: int
    mode: str
    profile: str
    gpu_id: str
    slice_id: str
    vm_id: str
    calls: int


@dataclass(frozen=True)
class Snapshot:
    """All that is on a host at one moment; sets hold VM ids, `images` volume to percent."""

    boot_id: str
    domains: tuple[DomainSeen, ...]
    cuts: tuple[Cut, ...]
    images: dict[str, int]
    disks: frozenset[str]
    seeds: frozenset[str]
    nvram: frozenset[str]
    consoles: frozenset[str]
    leases: frozenset[str]

    def leaks(self, living: Collection[str] = ()) -> tuple[str, ...]:
        """What belongs to VMs other than these, as `kind vm-id`; foreign domains are nobody's leak."""
        kinds = {
            "domain": [d.id for d in self.domains if d.installation is not None],
            "cut": [cut.vm_id for cut in self.cuts],
            **{kind: sorted(getattr(self, kind)) for kind in ("disks", "seeds", "nvram", "consoles", "leases")},
        }
        return tuple(f"{kind} {vm_id}" for kind, ids in kinds.items() for vm_id in ids if vm_id not in living)

    def running(self) -> frozenset[str]:
        """The ids of the domains that run."""
        return frozenset(d.id for d in self.domains if d.power is Power.running)


def fake_admin(ref: HostRef) -> FakeAdmin:
    """The hand at the host that `ref` names; works beside any number of services, in any mood."""
    return FakeAdmin(open_state(ref))


class FakeAdmin:
    """Acts on the host directly: no mood stands in its way."""

    def __init__(self, state: State) -> None:
        self._state = state

    def close(self) -> None:
        """Let go of the state file."""
        self._state.close()

    def set_mood(self, mood: str, **numbers: float) -> None:
        """Change how the host behaves from its next call on; see `Temper` for the numbers. Raises Invalid."""
        new = temper(mood, **numbers)
        with self._state.write() as db:
            set_temper(db, new)

    def mood(self) -> Temper:
        """How it behaves now."""
        return self._state.temper()

    def wake(self) -> None:
        """Let the call that hangs go on."""
        with self._state.write() as db:
            first_time(db, "woken")

    def power_off_by_hand(self, vm_id: str) -> None:
        """As `virsh destroy` does."""
        self._end(vm_id, "destroyed")

    def guest_poweroff(self, vm_id: str) -> None:
        """As a user's `sudo poweroff` does."""
        self._end(vm_id, "shutdown")

    def guest_crash(self, vm_id: str) -> None:
        """As a fault in QEMU does."""
        self._end(vm_id, "crashed")

    def undefine_by_hand(self, vm_id: str) -> None:
        """As `virsh destroy` and `virsh undefine --nvram` do: the disk stays."""
        with self._state.write() as db:
            forget(db, vm_id)

    def delete_disk_by_hand(self, vm_id: str) -> None:
        """As `rm` does."""
        with self._state.write() as db:
            db.execute("DELETE FROM disks WHERE vm_id = ?", (vm_id,))

    def reboot_host(self) -> None:
        """Every domain off, a new boot id; cuts stay (see `lose_cuts`)."""
        with self._state.write() as db:
            reboot(db)

    def lose_cuts(self) -> None:
        """What a reboot does to MIG instances and mediated devices."""
        with self._state.write() as db:
            db.execute("DELETE FROM cuts")

    def define_foreign(self, name: str, *, installation: str | None = None, vm_id: str = "") -> str:
        """A running domain that the service did not make; an orphan where it bears its installation. Gives its id."""
        vm_id = vm_id or str(uuid.uuid4())
        with self._state.write() as db:
            db.execute(
                """INSERT INTO domains (id, name, installation, power, why, memory_mib)
                   VALUES (?, ?, ?, 'running', '', 0)""",
                (vm_id, name, installation),
            )
            touch(db, vm_id)
        return vm_id

    def write_in_guest(self, vm_id: str, line: str) -> None:
        """Leave a line on the VM's disk, to be found in images captured from it."""
        with self._state.write() as db:
            db.execute("UPDATE disks SET content = content || ? WHERE vm_id = ?", (f"{line}\n", vm_id))

    def read_in_guest(self, vm_id: str) -> tuple[str, ...]:
        """The lines on the VM's disk."""
        with self._state.read() as db:
            row = db.execute("SELECT content FROM disks WHERE vm_id = ?", (vm_id,)).fetchone()
        return tuple(row["content"].splitlines()) if row else ()

    def seed_of(self, vm_id: str) -> dict[str, str]:
        """The files of the VM's seed disk."""
        with self._state.read() as db:
            row = db.execute("SELECT files FROM seeds WHERE vm_id = ?", (vm_id,)).fetchone()
        return dict(json.loads(row["files"])) if row else {}

    def counts(self, vm_id: str | None = None) -> Counter[str]:
        """How often each thing happened, to this VM or at all: verbs as they were called, and what came of them."""
        with self._state.read() as db:
            rows = db.execute(
                "SELECT what, sum(n) FROM counters WHERE vm_id = coalesce(?, vm_id) GROUP BY what", (vm_id,)
            )
            return Counter({what: int(n) for what, n in rows})

    def everything(self) -> Snapshot:
        """All that is on the host now."""
        with self._state.read() as db:

            def ids(table: str) -> frozenset[str]:
                return frozenset(row[0] for row in db.execute(f"SELECT vm_id FROM {table}"))  # noqa: S608

            domains = db.execute("SELECT id, name, power, why, installation, build FROM domains ORDER BY id")
            cuts = db.execute(
                """SELECT card, start, cells, mode, profile, gpu_id, slice_id, vm_id, calls
                   FROM cuts ORDER BY card, start"""
            )
            return Snapshot(
                boot_id=db.execute("SELECT boot_id FROM host").fetchone()[0],
                domains=tuple(DomainSeen(i, n, Power(p), w, inst, b) for i, n, p, w, inst, b in domains),
                cuts=tuple(Cut(*_values(row)) for row in cuts),
                images=dict(_values(row) for row in db.execute("SELECT volume, percent FROM images")),
                **{kind: ids(kind) for kind in ("disks", "seeds", "nvram", "consoles", "leases")},
            )

    def _end(self, vm_id: str, why: str) -> None:
        with self._state.write() as db:
            if db.execute("SELECT 1 FROM domains WHERE id = ? AND power = 'running'", (vm_id,)).fetchone():
                end(db, vm_id, why)
                count(db, f"{why}_by_hand", vm_id)


def _values(row: Any) -> tuple[Any, ...]:
    return tuple(row)
