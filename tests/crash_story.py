"""A program whose children each live a story of one installation, and may be told at which point to die.

It is started once and forks for each story, so that a test does not pay for the imports: one JSON object a line in
({folder, acts, point, mood}), the child's exit code a line out. A story is resumed where the last child left it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import alembic.command  # noqa: F401 - forked children find it loaded
from sqlmodel import Session, col, select

from vmgpu import lifecycle
from vmgpu.connections import host_ref
from vmgpu.db import Database, migrate, setting
from vmgpu.errors import Conflict
from vmgpu.hypervisor.fake import FakeAdmin, fake_admin
from vmgpu.models import VM, Event, Host, HostState, Image, ImageState, Slice, User, VMState, Wanted
from vmgpu.requests import CaptureRequest, FlavorRequest, HostRequest, StopRequest, VMRequest
from vmgpu.service import flavors, hosts, people, vms
from vmgpu.service.access import Actor
from vmgpu.settings import Settings, settings
from vmgpu.worker import Worker

QUICK = {"boot": 0.05, "off": 0.02}
MOODS: dict[str, dict[str, float]] = {
    "slow": {"pause": 0.03, "boot": 0.3, "off": 0.1},
    "forgetful": {**QUICK, "every": 2},
    **{mood: {**QUICK, "after": 0.15} for mood in ("crashing", "restless", "amnesic", "rebooting")},
}
PATIENCE = 90  # seconds for one child; SIGALRM ends it
FORBIDDEN = ("double_carve", "foreign_touched", "released_in_use", "uncut_device", "memory_overrun")


class Life:
    """One child's life: the installation in a folder, and the acts of its story."""

    def __init__(self, folder: Path, *, point: str, mood: str) -> None:
        self.folder, self.point, self.mood = folder, point, mood
        self.settings = Settings(
            data_dir=folder,
            sync_every=timedelta(seconds=1),
            guest_timeout=timedelta(seconds=1 if mood == "mute" else 20),
            shutdown_timeout=timedelta(seconds=10),
            # a start has no time of its own beside the step's
            start_timeout=timedelta(0),
            start_timeout_per_gib=timedelta(0),
        )
        self.db = Database(self.settings.url)
        with self.db.read() as session:
            admin = session.exec(select(User)).one()
        self.me = Actor(admin.id, admin.name, True)

    def live(self, acts: list[str]) -> None:
        """Go on with the story where the last life ended."""
        if self.mood == "hanging":
            lifecycle.STEPS[VMState.booting] = replace(lifecycle.STEPS[VMState.booting], within=timedelta(seconds=3))
        worker = Worker(self.db, self.settings)
        worker.start()
        for act in acts[self.done() :]:
            verb, _, rest = act.partition(" ")
            getattr(self, verb)(*rest.split())
            self.note(act)
        worker.stop()
        self.db.close()

    def done(self) -> int:
        path = self.folder / "done"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def note(self, act: str) -> None:
        with (self.folder / "done").open("a") as file:
            file.write(f"{act}\n")

    # what people do

    def arm(self) -> None:
        """From here on the point is deadly."""
        os.environ["VMGPU_CRASH_AT"] = self.point
        settings.cache_clear()

    def host(self, name: str, cards: str) -> None:
        with self.db.read() as session:
            known = session.exec(select(Host).where(Host.name == name)).first()
        if not known:
            hosts.add(self.db, self.me, HostRequest(name=name, uri=f"fake://{cards}"))
        self.until(lambda s: s.exec(select(Host).where(Host.name == name)).one().state is HostState.ready)
        with self.hand(name) as hand:
            hand.set_mood("cheerful", **QUICK)

    def unhost(self, name: str) -> None:
        with self.db.read() as session:
            known = session.exec(select(Host).where(Host.name == name)).first()
        if known and known.state is not HostState.removing:
            hosts.remove(self.db, self.me, name)
        self.until(lambda s: s.exec(select(Host).where(Host.name == name)).first() is None)

    def request(self, name: str, profile: str, image: str = "base") -> None:
        with self.db.read() as session:
            if session.exec(select(VM).where(VM.name == name)).first():
                return
        with suppress(Conflict):  # it is there already
            flavors.add(self.db, self.me, FlavorRequest(name=profile, vcpus=1, memory=1024, disk=2, profile=profile))
        vms.request(self.db, self.settings, self.me, VMRequest(name=name, flavor=profile, image=image))

    def stop(self, name: str, mode: str = "") -> None:
        self.once(name, "stop", lambda: vms.stop(self.db, self.me, name, StopRequest(slices=mode or None)))

    def start(self, name: str) -> None:
        self.once(name, "start", lambda: vms.start(self.db, self.me, name))

    def reboot(self, name: str) -> None:
        self.once(name, "reboot", lambda: vms.reboot(self.db, self.me, name))

    def reset(self, name: str) -> None:
        self.once(name, "reset", lambda: vms.reset(self.db, self.me, name))

    def capture(self, name: str, image: str) -> None:
        asked = CaptureRequest(image=image)
        self.once(name, "snapshot", lambda: vms.capture(self.db, self.settings, self.me, name, asked))

    def release(self, name: str) -> None:
        self.once(name, "release", lambda: vms.release(self.db, self.me, name))

    def undefine(self, name: str) -> None:
        if not self.marked("undefine"):
            with self.hand("h1") as hand:
                hand.undefine_by_hand(self.vm(name).id)

    def feel(self, mood: str) -> None:
        """The host is in another mood from now on."""
        if not self.marked(f"feel {mood}"):
            with self.hand("h1") as hand:
                hand.set_mood(mood, **MOODS.get(mood, QUICK))

    def once(self, name: str, what: str, wish: Callable[[], object]) -> None:
        """A wish is one transaction: its event says whether an earlier life has made it."""
        vm = self.vm(name)
        asked = [text.split()[0] for text in (self.folder / "done").read_text().splitlines() if text.endswith(name)]
        before = asked.count({"snapshot": "capture"}.get(what, what))
        with self.db.read() as session:
            events = session.exec(select(Event).where(Event.vm_id == vm.id, Event.kind == "asked")).all()
        if sum(1 for e in events if e.reason and e.reason["args"]["what"] == what) <= before:
            wish()

    # what they wait for

    def running(self, name: str) -> None:
        self.until(lambda s: _runs(self.vm(name, s)))

    def arrives(self, name: str) -> None:
        """As `running`, by somebody who starts it again whenever it ended in another state, until it stays."""
        since = None
        while since is None or time.monotonic() - since < 0.5:
            vm = self.vm(name)
            if vm.claim_token is None and vm.wanted is Wanted.stopped and vm.state in ("failed", "lost", "stopped"):
                vms.start(self.db, self.me, vm.id)
            runs = _runs(vm) and self._really_runs(vm)
            since = (since or time.monotonic()) if runs else None
            time.sleep(0.02)

    def stopped(self, name: str) -> None:
        self.until(lambda s: _still(self.vm(name, s), VMState.stopped))

    def failed(self, name: str) -> None:
        self.until(lambda s: _still(self.vm(name, s), VMState.failed) and not self.vm(name, s).holds)

    def lost(self, name: str) -> None:
        self.until(lambda s: _still(self.vm(name, s), VMState.lost) and not self.vm(name, s).holds)

    def waiting(self, name: str) -> None:
        self.until(lambda s: self.vm(name, s).reason is not None and self.vm(name, s).state is VMState.pending)

    def gone(self, name: str) -> None:
        self.until(lambda s: self.vm(name, s).state is VMState.gone)

    def image(self, name: str) -> None:
        self.until(lambda s: s.exec(select(Image).where(Image.name == name)).one().state is ImageState.ready)

    # what must be true

    def check(self) -> None:
        """Rows and host say the same; nothing is there twice, nothing is left of those who are gone."""
        with self.db.read() as session:
            rows = session.exec(select(VM).where(VM.state != VMState.gone)).all()
            cuts = {(cut.vm_id, cut.start, cut.cells) for cut in session.exec(select(Slice)).all()}
            claimed = session.exec(select(VM.name).where(col(VM.claim_token).is_not(None), VM.state == "gone")).all()
        with self.hand("h1") as hand:
            seen, counts = hand.everything(), hand.counts()
        placed = {vm.id for vm in rows if vm.host_id}
        defined = {vm.id for vm in rows if vm.has_disk and vm.state is not VMState.lost}
        facts: dict[str, tuple[Any, Any]] = {
            "leaks": (seen.leaks(placed), ()),
            "domains": (sorted(domain.id for domain in seen.domains), sorted(defined)),
            "running": (seen.running(), {vm.id for vm in rows if vm.state is VMState.running}),
            "disks": (seen.disks, {vm.id for vm in rows if vm.has_disk}),
            "cuts": ({(cut.vm_id, cut.start, cut.cells) for cut in seen.cuts}, cuts),
            "freed": (counts["freed"], counts["cut"] - len(seen.cuts)),
            "claims of those gone": (claimed, []),
            **{what: (counts[what], 0) for what in FORBIDDEN},
        }
        wrong = {what: pair for what, pair in facts.items() if pair[0] != pair[1]}
        assert not wrong, f"(host, rows): {wrong}"

    # by what means

    def until(self, true: Callable[[Session], bool]) -> None:
        while True:
            with self.db.read() as session:
                if true(session):
                    return
            time.sleep(0.02)

    def vm(self, name: str, session: Session | None = None) -> VM:
        if session:
            return session.exec(select(VM).where(VM.name == name)).one()
        with self.db.read() as session:
            return session.exec(select(VM).where(VM.name == name)).one()

    def marked(self, what: str) -> bool:
        path = self.folder / what.replace(" ", "-")
        known = path.exists()
        path.touch()
        return known

    def hand(self, host: str) -> _Hand:
        with self.db.read() as session:
            row = session.exec(select(Host).where(Host.name == host)).one()
            return _Hand(fake_admin(host_ref(row, setting(session, "installation") or "", self.settings)))

    def _really_runs(self, vm: VM) -> bool:
        with self.hand("h1") as hand:
            return vm.id in hand.everything().running()


class _Hand:
    def __init__(self, admin: FakeAdmin) -> None:
        self.admin = admin

    def __enter__(self) -> FakeAdmin:
        return self.admin

    def __exit__(self, *raised: object) -> None:
        self.admin.close()


def _runs(vm: VM) -> bool:
    settled = (vm.built, vm.booted, vm.capture_as, vm.claim_token) == (vm.build, vm.boots, None, None)
    return vm.state is VMState.running and vm.wanted is Wanted.running and settled


def _still(vm: VM, state: VMState) -> bool:
    return vm.state is state and vm.claim_token is None and vm.capture_as is None and vm.wanted is Wanted.stopped


def child(told: dict[str, Any]) -> None:
    """Live one life and end with it: 0, or 1 with the reason in `why`."""
    folder = Path(told["folder"])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE)
    log = (folder / "log").open("a")
    logging.basicConfig(stream=log, level=logging.INFO, format="%(process)d %(relativeCreated)d %(name)s %(message)s")
    try:
        Life(folder, point=told["point"], mood=told["mood"]).live(told["acts"])
    except BaseException:
        (folder / "why").write_text(traceback.format_exc())
        os._exit(1)
    log.flush()
    os._exit(0)


def template(folder: Path) -> None:
    """An installation that has just been made; stories begin with a copy of it."""
    made = Settings(data_dir=folder, admin_token="an-admin-token-of-the-tests")
    db = Database(made.url)
    migrate(db)
    people.settle_in(db, made)
    db.close()


def main() -> None:
    first = Path(sys.argv[1])
    for line in sys.stdin:
        told = json.loads(line)
        folder = Path(told["folder"])
        if not folder.exists():
            shutil.copytree(first, folder)
        pid = os.fork()
        if pid == 0:
            child(told)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
