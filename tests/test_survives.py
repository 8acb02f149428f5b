"""What a host, a guest or a hand at the host may do: rows end true, a slice goes back once, others go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select

from tests.factories import admin, make_database, make_settings
from tests.worlds import House
from vmgpu import crash, host_outcomes, leases, lifecycle, machines, outcomes, steps, views, vm_work, work, worker
from vmgpu.db import Database, claim, next_number, setting, wake
from vmgpu.errors import Conflict, HostRefused, Reason, ReasonCode, Unavailable, VmgpuError
from vmgpu.hypervisor import GpuRef, SliceRef
from vmgpu.hypervisor.fake.host import FakeHost
from vmgpu.ledger import fleet
from vmgpu.models import (
    VM,
    Console,
    CopyState,
    Event,
    Gpu,
    Host,
    HostState,
    Image,
    ImageCopy,
    ImageState,
    OnStop,
    VMState,
    Wanted,
    now,
)
from vmgpu.requests import (
    CaptureRequest,
    ExtendRequest,
    FlavorRequest,
    HostChange,
    HostRequest,
    StopRequest,
    UserRequest,
)
from vmgpu.service import flavors, hosts, people, show, vms
from vmgpu.views import VMView

pytestmark = pytest.mark.slow

S = VMState
Open = Callable[..., House]


# a start has no time of its own beside the step's
NO_PATIENCE = {"start_timeout": timedelta(0), "start_timeout_per_gib": timedelta(0)}


@pytest.fixture
def open_house(tmp_path: Path) -> Iterator[Open]:
    """Installations that are empty, and clean, in the end."""
    made: list[House] = []

    def opened(**given: Any) -> House:
        settings = make_settings(tmp_path / f"data-{len(made)}", **{"sync_every": timedelta(seconds=0.3)} | given)
        db = make_database(settings)
        made.append(House(settings, db, admin(db)))
        return made[-1]

    yield opened
    try:
        for house in made:
            house.empty()
    finally:
        for house in made:
            house.close()


@pytest.fixture
def house(open_house: Open) -> House:
    return open_house()


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Database]:
    """Rows, and nobody who works on them."""
    db = make_database(make_settings(tmp_path / "idle"))
    yield db
    db.close()


def _surveyed_anew(house: House) -> None:
    asked = hosts.survey(house.db, house.me, "h1").survey_asked

    def done() -> bool:
        at = house.row(Host, "h1").surveyed_at
        return bool(at and asked and at >= asked)

    house.until(done)


def reason_of(vm: VM) -> str:
    return vm.reason["code"] if vm.reason else ""


def path_of(house: House, name: str = "s1") -> list[str]:
    return [str(event.state) for event in house.events(name) if event.kind == "state"]


class TestAHand:
    def test_destroys_the_domain(self, house: House) -> None:
        """That is a stop: it is not started again, and its slices are kept for a while."""
        hand = house.host()
        vm = house.request()
        house.reaches(S.running)
        hand.power_off_by_hand(vm.id)
        stopped = house.reaches(S.stopped)
        assert stopped.wanted is Wanted.stopped
        assert [code["code"] for e in house.events() if (code := e.reason)][-1] == ReasonCode.stopped_by_guest
        assert stopped.holds and stopped.keep_until and len(house.slices()) == 1
        vms.start(house.db, house.me, "s1")
        house.reaches(S.running)

    def test_undefines_the_domain(self, house: House) -> None:
        """The slices go back once, for the next one; the disk stays, and a start defines it again."""
        hand = house.host()
        vm = house.request()
        house.reaches(S.running)
        house.request("s2", "7g.40gb")
        hand.undefine_by_hand(vm.id)
        lost = house.reaches(S.lost)
        assert (lost.wanted, reason_of(lost), lost.has_disk) == (Wanted.stopped, ReasonCode.domain_gone, True)
        assert house.slices() == [] and vm.id in hand.everything().disks
        house.reaches(S.running, "s2")
        assert hand.counts(vm.id)["freed"] == 1
        vms.release(house.db, house.me, "s2")
        vms.start(house.db, house.me, "s1")
        house.reaches(S.running)
        assert hand.counts(vm.id)["disk_made"] == 1

    def test_removes_the_disk_of_a_stopped_vm(self, house: House) -> None:
        hand = house.host()
        vm = house.request()
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest())
        house.reaches(S.stopped)
        hand.delete_disk_by_hand(vm.id)
        vms.start(house.db, house.me, "s1")
        failed = house.reaches(S.failed)
        assert reason_of(failed) == ReasonCode.disk_gone
        vms.reset(house.db, house.me, "s1")
        house.reaches(S.running)

    def test_starts_a_stopped_vm(self, house: House) -> None:
        """Its slices may be another's by now: it is switched off again."""
        hand = house.host()
        vm = house.request(on_stop=OnStop.release)
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest())
        house.reaches(S.stopped)
        hand._state  # noqa: B018 - the next lines are what `virsh start` does
        with hand._state.write() as db:
            db.execute("UPDATE domains SET power = 'running', devices = '[]' WHERE id = ?", (vm.id,))
        house.until(lambda: vm.id not in hand.everything().running())
        assert house.vm().state is S.stopped

    def test_leaves_a_domain_of_ours_without_a_row(self, house: House) -> None:
        """An orphan is listed and not touched."""
        hand = house.host()
        with house.db.read() as session:
            installation = setting(session, "installation")
        orphan = hand.define_foreign("left-over", installation=installation)
        _surveyed_anew(house)
        house.until(lambda: house.row(Host, "h1").orphans == [f"left-over ({orphan})"])
        assert orphan in hand.everything().running()
        with hand._state.write() as db:
            db.execute("DELETE FROM domains WHERE id = ?", (orphan,))

    def test_what_an_orphan_holds_is_taken_until_it_is_removed(self, house: House) -> None:
        """A host is given up for lost, comes back and is added again: half of its card is still in use there."""
        hand = house.host()
        left = house.request("left")
        house.reaches(S.running, "left")
        hand.set_mood("unreachable")
        house.until(lambda: house.row(Host, "h1").state is HostState.unreachable)
        hosts.remove(house.db, house.me, "h1", lost=True)
        house.until(lambda: not house.there(Host, "h1"))
        hand.set_mood("cheerful")
        house.request("one", image="base")
        house.request("two", image="base")
        hosts.add(house.db, house.me, HostRequest(name="h1", uri="fake://A100-40GB"))
        house.reaches(S.running, "one")
        house.until(lambda: reason_of(house.vm("two")) == ReasonCode.no_slice_free)
        with house.db.read() as session:
            (card,) = show.gpus(session)
        assert card.orphans == [f"3g.20gb by orphan domain left-{left.id[:8]}"]
        there = house.worker._ground.hosts.get(house.row(Host, "h1").id)
        (held,) = there.holds(left.id)
        there.power_off(left.id)
        gpu = GpuRef(card.id, "emulated", card.model, card.address)
        there.carver("emulated").release(SliceRef("", left.id, gpu, "3g.20gb", held.start or 0, 4, 3, 0))
        there.erase(left.id)
        house.reaches(S.running, "two")
        with house.db.read() as session:
            assert [card.orphans for card in show.gpus(session)] == [[]]


class TestAGuest:
    def test_powers_itself_off(self, house: House) -> None:
        hand = house.host()
        vm = house.request()
        house.reaches(S.running)
        hand.guest_poweroff(vm.id)
        stopped = house.reaches(S.stopped)
        assert (stopped.wanted, len(house.slices())) == (Wanted.stopped, 1)

    def test_crashes_once(self, house: House) -> None:
        hand = house.host(mood="crashing", after=0.4)
        vm = house.request()
        house.until(lambda: hand.counts(vm.id)["started"] == 2)
        running = house.reaches(S.running)
        assert (running.restarts, running.wanted) == (1, Wanted.running)
        assert hand.counts(vm.id)["cut"] == 1

    def test_crashes_again_and_again(self, house: House) -> None:
        hand = house.host()
        vm = house.request()
        for crashes in range(4):
            house.until(lambda: house.reaches(S.running).restarts == crashes)  # noqa: B023
            hand.guest_crash(vm.id)
        failed = house.reaches(S.failed)
        assert (reason_of(failed), failed.wanted, house.slices()) == (ReasonCode.guest_crashed, Wanted.stopped, [])
        assert vm.id not in hand.everything().running()

    def test_never_gets_an_address(self, open_house: Open) -> None:
        house = open_house(guest_timeout=timedelta(seconds=0.5))
        house.host(mood="mute")
        house.request()
        failed = house.reaches(S.failed)
        assert (reason_of(failed), house.slices()) == (ReasonCode.no_address, [])
        with house.db.read() as session:
            kept = session.get(Console, failed.id)
        assert kept and b"[simulated]" in kept.text

    def test_does_not_listen_to_a_stop(self, open_house: Open) -> None:
        house = open_house(shutdown_timeout=timedelta(seconds=0.5))
        hand = house.host(off=1000)
        vm = house.request()
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest())
        house.reaches(S.stopped)
        assert hand.counts(vm.id)["powered_off"] == 1


class TestACard:
    def test_is_not_there_and_there_is_no_other(self, house: House) -> None:
        hand = house.host(mood="cardless")
        vm = house.request()
        failed = house.reaches(S.failed)
        assert (reason_of(failed), failed.wanted, failed.tries) == (ReasonCode.card_missing, Wanted.stopped, 0)
        assert house.slices() == []
        assert hand.counts(vm.id)["cut"] == hand.counts(vm.id)["freed"] == 1

    def test_is_not_there_and_nobody_takes_the_claim_away(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        """The failed VM is wanted stopped; that must not be taken for its owner's change of mind during the check."""
        tokens: list[str | None] = []

        def point(name: str) -> None:
            if name == "vm.checking.applied":
                tokens.append(house.vm().claim_token)
                house.worker._heed()
                tokens.append(house.vm().claim_token)

        house.host(mood="cardless")
        monkeypatch.setattr(crash, "point", point)
        house.request()
        house.reaches(S.failed)
        assert tokens[-2] is not None and tokens[-2] == tokens[-1]

    def test_is_not_there_but_on_another_host(self, house: House) -> None:
        """Tried once more, elsewhere, with a fresh disk; nothing stays where it failed."""
        first = house.host(mood="cardless", boot=1.5)
        vm = house.request()
        house.until(lambda: house.vm().state is S.booting)
        second = house.host("h2")
        running = house.reaches(S.running)
        assert running.host_id == house.row(Host, "h2").id
        assert first.everything().leaks([house.foreign["h1"]]) == ()
        assert (first.counts(vm.id)["freed"], second.counts(vm.id)["cut"]) == (1, 1)
        assert path_of(house) == [
            *("carving", "building", "booting", "checking", "failed", "pending"),
            *("carving", "building", "booting", "checking", "running"),
        ]

    def test_is_not_there_twice(self, house: House) -> None:
        """Another card of the same host is tried once, and not a third."""
        hand = house.host(cards="3xA100-40GB", mood="cardless")
        vm = house.request()
        failed = house.reaches(S.failed)
        assert (failed.tries, reason_of(failed), hand.counts(vm.id)["cut"]) == (1, ReasonCode.card_missing, 2)

    def test_a_retry_waits_for_no_claim(self, house: House) -> None:
        """Sent back to the queue, a VM is the leader's at once: no worker holds it."""
        house.host(cards="2xA100-40GB", mood="cardless")
        house.request()
        house.reaches(S.failed, seconds=15)


class TestAHost:
    def test_loses_every_other_reply(self, house: House) -> None:
        hand = house.host(mood="forgetful", every=2)
        for name in ("s1", "s2"):
            house.request(name)
        for name in ("s1", "s2"):
            house.reaches(S.running, name, seconds=40)
        vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.release))
        house.reaches(S.stopped, seconds=40)
        vms.start(house.db, house.me, "s1")
        house.reaches(S.running, seconds=40)
        assert hand.counts()["reply_lost"] >= 4
        assert hand.counts(house.vm().id)["freed"] == 1

    def test_refuses_once(self, house: House) -> None:
        """Blamed on the host, so tried elsewhere; without another host it fails, and a start tries again."""
        hand = house.host(mood="refusing")
        vm = house.request()
        failed = house.reaches(S.failed)
        assert (reason_of(failed), house.slices()) == (ReasonCode.host_error, [])
        vms.start(house.db, house.me, "s1")
        house.reaches(S.running)
        assert hand.counts(vm.id)["cut"] == 2

    def test_does_not_answer_for_long(self, house: House) -> None:
        """Its VMs keep state and slices; VMs of other hosts go on; then what was wished meanwhile is done."""
        hand = house.host()
        other = house.host("h2", "A30-24GB")
        vm = house.request()
        house.request("s2", "2g.12gb")
        for name in ("s1", "s2"):
            house.reaches(S.running, name)
        hand.set_mood("unreachable")
        house.until(lambda: house.row(Host, "h1").state is HostState.unreachable)
        house.request("s3", "2g.12gb")
        house.reaches(S.running, "s3")
        house.request("s4", "1g.5gb")
        house.until(lambda: reason_of(house.vm("s4")) == ReasonCode.host_unreachable)
        vms.reboot(house.db, house.me, "s2")
        house.until(lambda: house.vm("s2").booted == 2)
        time.sleep(1)
        away = house.vm()
        assert (away.state, away.wanted, len(house.slices())) == (S.running, Wanted.running, 1)
        assert house.vm("s4").state is S.pending
        hand.set_mood("cheerful", boot=0.05)
        house.reaches(S.running, "s4")
        assert house.row(Host, "h1").state is HostState.ready
        assert (hand.counts(vm.id)["started"], house.vm().state, house.vm().restarts) == (1, S.running, 0)
        assert other.counts()["started"] == 3

    @pytest.mark.parametrize("wish", ["stop", "release"])
    def test_does_what_was_wished_once_it_answers_again(self, house: House, wish: str) -> None:
        hand = house.host()
        house.request()
        house.reaches(S.running)
        hand.set_mood("unreachable")
        house.until(lambda: house.row(Host, "h1").state is HostState.unreachable)
        if wish == "stop":
            vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.release))
        else:
            vms.release(house.db, house.me, "s1")
        time.sleep(0.5)
        assert len(house.slices()) == 1, "nobody has proved it off"
        hand.set_mood("cheerful", off=0.02)
        house.reaches(S.stopped if wish == "stop" else S.gone)
        assert house.slices() == []

    def test_that_was_away_for_long_does_not_cost_a_guest_its_time(self, open_house: Open) -> None:
        house = open_house(guest_timeout=timedelta(seconds=2))
        hand = house.host(boot=0.8)
        house.request()
        house.until(lambda: house.vm().state is S.booting)
        hand.set_mood("unreachable")
        time.sleep(2.5)
        hand.reboot_host()  # so that its guest has to boot anew
        hand.set_mood("cheerful", boot=0.8)
        house.reaches(S.running)

    def test_that_is_away_is_not_asked_all_the_time(self, open_house: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also not for a stopped VM whose time of keeping its slices has passed meanwhile."""
        house = open_house(keep_gpu=timedelta(seconds=0.5))
        hand = house.host()
        house.request()
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest())
        house.reaches(S.stopped)
        hand.set_mood("unreachable")
        house.until(lambda: house.row(Host, "h1").state is HostState.unreachable)
        time.sleep(0.7)
        steps = count_steps(monkeypatch)
        time.sleep(1)
        assert len(steps) <= 3
        assert len(house.slices()) == 1
        hand.set_mood("cheerful")
        house.until(lambda: house.slices() == [])

    def test_reboots(self, house: House) -> None:
        """VMs wanted running come back on what they held; stopped ones stay stopped."""
        hand = house.host(cards="2xA100-40GB")
        for name in ("s1", "s2"):
            house.request(name)
            house.reaches(S.running, name)
        vms.stop(house.db, house.me, "s2", StopRequest(slices=OnStop.keep))
        stopped = house.reaches(S.stopped, "s2")
        held = [(cut.gpu_id, cut.start) for cut in house.slices()]
        hand.reboot_host()
        hand.lose_cuts()  # as MIG instances are
        house.until(lambda: hand.counts(house.vm().id)["started"] == 2)
        running = house.reaches(S.running)
        assert [(cut.gpu_id, cut.start) for cut in house.slices()] == held
        assert (running.wanted, running.restarts) == (Wanted.running, 0)
        assert running.host_boot_id == hand.everything().boot_id
        assert house.vm("s2").state is S.stopped and house.vm("s2").wanted is Wanted.stopped
        assert hand.everything().running() == {running.id}
        assert hand.counts(stopped.id)["started"] == 1
        with house.db.read() as session:
            assert session.exec(select(Event).where(Event.kind == "host_rebooted")).all()
        vms.start(house.db, house.me, "s2")
        house.reaches(S.running, "s2")
        # the books of the host count a cut that a reboot took as never given back
        with hand._state.write() as db:
            db.execute("DELETE FROM counters WHERE what IN ('cut', 'freed')")
            db.execute("INSERT INTO counters VALUES ('cut', '', 2)")

    def test_reboots_in_good_order(self, house: House) -> None:
        """libvirt's service shuts guests down first, which looks as if they did so; one that was stopped stays so."""
        hand = house.host(cards="2xA100-40GB")
        for name in ("s1", "s2"):
            house.request(name)
            house.reaches(S.running, name)
        vms.stop(house.db, house.me, "s2", StopRequest(slices=OnStop.keep))
        house.reaches(S.stopped, "s2")
        hand.guest_poweroff(house.vm("s1").id)
        assert reason_of(house.reaches(S.stopped, "s1")) == ReasonCode.stopped_by_guest
        hand.reboot_host()
        back = house.reaches(S.running, "s1")
        assert back.wanted is Wanted.running and hand.counts(back.id)["started"] == 2
        assert ReasonCode.restarted_after_host in [code["code"] for e in house.events() if (code := e.reason)]
        assert house.vm("s2").state is S.stopped

    def test_a_guest_that_was_off_long_before_the_reboot_stays_off(self, house: House) -> None:
        hand = house.host()
        house.request()
        house.reaches(S.running)
        hand.guest_poweroff(house.vm().id)
        stopped = house.reaches(S.stopped)
        with house.db.write() as session:
            session.get_one(VM, stopped.id).state_since -= timedelta(minutes=11)
        hand.reboot_host()
        house.until(lambda: house.row(Host, "h1").boot_id == hand.everything().boot_id)
        assert house.vm().state is S.stopped and house.vm().wanted is Wanted.stopped

    def test_reboots_while_guests_boot(self, house: House) -> None:
        hand = house.host(boot=0.6)
        vm = house.request()
        house.until(lambda: vm.id in hand.everything().running())
        hand.reboot_host()
        house.reaches(S.running)

    def test_does_not_return_from_a_call(self, open_house: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        """The thread is lost, the row is not; the next VM of the same host goes on beside it."""
        monkeypatch.setitem(
            lifecycle.STEPS, S.booting, replace(lifecycle.STEPS[S.booting], within=timedelta(seconds=1.5))
        )
        house = open_house(**NO_PATIENCE)
        hand = house.host(mood="hanging")
        vm = house.request()
        house.until(lambda: hand.counts()["hung"] == 1)
        house.request("s2")
        house.reaches(S.running, "s2")
        house.until(lambda: reason_of(house.vm()) == ReasonCode.call_hangs)
        assert house.vm().state is S.booting and len(house.slices()) == 1
        late = house.reaches(S.running, seconds=30)
        hand.wake()  # what the lost thread brings now is thrown away
        time.sleep(0.3)
        assert house.vm().state is S.running and house.vm().state_since == late.state_since
        assert hand.counts(vm.id)["started"] == 1

    def test_that_hangs_does_not_hold_up_the_end(self, open_house: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(lifecycle.STEPS, S.booting, replace(lifecycle.STEPS[S.booting], within=timedelta(0)))
        house = open_house(**NO_PATIENCE)
        hand = house.host(mood="hanging")
        house.request()
        house.until(lambda: reason_of(house.vm()) == ReasonCode.call_hangs)
        begun = time.monotonic()
        house.worker.stop(15)
        assert time.monotonic() - begun < 10
        hand.wake()
        house.worker = worker.Worker(house.db, house.settings)
        house.worker.start()

    def test_that_hangs_holds_up_no_other(self, house: House) -> None:
        hand = house.host(mood="hanging")
        house.host("h2", "A30-24GB")
        house.request()
        house.until(lambda: hand.counts()["hung"] == 1)
        house.request("s2", "2g.12gb")
        house.reaches(S.running, "s2")
        hand.wake()
        house.reaches(S.running)

    def test_is_slow(self, house: House) -> None:
        house.host(mood="slow", pause=0.05, boot=0.5)
        house.request()
        house.reaches(S.running)

    def test_is_drained(self, house: House) -> None:
        house.host()
        house.request()
        house.reaches(S.running)
        hosts.change(house.db, house.me, "h1", HostChange(draining=True))
        house.request("s2")
        house.until(lambda: reason_of(house.vm("s2")) == ReasonCode.host_draining)
        assert house.vm().state is S.running
        hosts.change(house.db, house.me, "h1", HostChange(draining=False))
        house.reaches(S.running, "s2")


class TestLeases:
    def test_end_and_then_the_grace_ends(self, open_house: Open) -> None:
        house = open_house(grace=timedelta(seconds=5))
        hand = house.host()
        vm = house.request(lease="2s")
        house.until(lambda: vm.id in hand.everything().disks)
        stopped = house.reaches(S.stopped)
        assert stopped.expires_at and stopped.delete_at == stopped.expires_at + timedelta(seconds=5)
        assert house.slices() == [] and vm.id in hand.everything().disks
        house.reaches(S.gone)
        assert [e.kind for e in house.events() if e.kind not in ("state", "requested")] == [
            "lease_ended",
            "grace_ended",
        ]

    @pytest.mark.parametrize("how", ["extend", "start", "reset"])
    def test_come_back_in_the_grace(self, open_house: Open, how: str) -> None:
        house = open_house(grace=timedelta(seconds=60))
        house.host()
        house.request(lease="1s")
        house.reaches(S.stopped)
        with house.db.write() as session:
            session.exec(select(VM)).one().lease_seconds = 3600
        if how == "extend":
            extended = vms.extend(house.db, house.settings, house.me, "s1", ExtendRequest(by="1h"))
            assert extended.delete_at is None
        (vms.reset if how == "reset" else vms.start)(house.db, house.me, "s1")
        running = house.reaches(S.running)
        assert running.delete_at is None
        assert running.expires_at and running.expires_at > now() - timedelta(seconds=5)
        if how == "extend":
            assert running.expires_at > now() + timedelta(minutes=50)

    def test_of_a_stopped_vm_gives_back_what_it_kept(self, house: House) -> None:
        house.host()
        house.request(lease="6s", on_stop=OnStop.keep)
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest())
        house.reaches(S.stopped)
        assert len(house.slices()) == 1
        house.until(lambda: house.slices() == [])
        assert house.vm().state is S.stopped

    def test_that_is_extended_at_its_last_moment_goes_on(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        """The worker has seen that it is over; before it says so, the owner extends."""
        house.host()
        house.request(lease="5s")
        house.reaches(S.running)
        asked = leases.lease

        def late(vm: Any, at: Any, settings: Any) -> Any:
            news = asked(vm, at, settings)
            if news and news.kind == "lease_ended" and not extended:
                extended.append(True)
                vms.extend(house.db, house.settings, house.me, "s1", ExtendRequest(by="1h"))
            return news

        extended: list[bool] = []
        monkeypatch.setattr(leases, "lease", late)
        house.until(lambda: bool(extended))
        time.sleep(0.5)
        vm = house.vm()
        assert (vm.state, vm.wanted, vm.delete_at, len(house.slices())) == (S.running, Wanted.running, None, 1)


class TestWhatASecondPairOfEyesFound:
    def test_slices_are_not_kept_past_the_leases_end(self, house: House) -> None:
        house.host()
        house.request()
        house.reaches(S.running)
        with house.db.write() as session:
            session.exec(select(VM)).one().delete_at = now() + timedelta(days=7)
        stopped = vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.keep))
        assert stopped.stop_mode is OnStop.release

    def test_who_gave_a_place_back_queues_behind_those_who_wait(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The start comes when the host has the slices back and the row does not say so yet."""
        plain, started = lifecycle.STEPS[S.stopping], []

        def late(vm: VMView, world: steps.World) -> steps.Outcome:
            outcome = plain.run(vm, world)
            if isinstance(outcome, steps.Hop) and not started:
                started.append(vms.start(house.db, house.me, "s1"))
            return outcome

        monkeypatch.setitem(lifecycle.STEPS, S.stopping, replace(plain, run=late))
        house.host()
        for name in ("s1", "s2", "s3"):
            house.request(name)
            if name != "s3":
                house.reaches(S.running, name)
        vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.release))
        house.reaches(S.running, "s3")
        assert (house.vm("s1").state, house.vm("s1").wanted) == (S.pending, Wanted.running)

    def test_one_machine_is_one_host(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = FakeHost.survey
        monkeypatch.setattr(FakeHost, "survey", lambda host: replace(plain(host), machine="4c4c4544 gpu1"))
        house.host("h1")
        hosts.add(house.db, house.me, HostRequest(name="again", uri="fake://A100-40GB"))
        house.until(lambda: house.row(Host, "again").reason is not None)
        twin = house.row(Host, "again")
        assert "host h1 already" in Reason.of(twin.reason).sentence()  # type: ignore[union-attr]
        assert (twin.state, twin.facts) == (HostState.new, None)
        with house.db.read() as session:
            assert session.exec(select(Gpu).where(Gpu.host_id == twin.id)).all() == []

    def test_a_stopped_vm_says_why(self, house: House) -> None:
        hand = house.host()
        vm = house.request()
        house.reaches(S.running)
        hand.guest_poweroff(vm.id)
        assert reason_of(house.reaches(S.stopped)) == ReasonCode.stopped_by_guest
        vms.start(house.db, house.me, "s1")
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest())
        asked = Reason.of(house.reaches(S.stopped).reason)
        assert asked and asked.args == {"who": house.me.name, "what": "stop"}

    def test_written_blocks_are_not_counted_twice(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        """20 GiB are free beside a VM's 16 GiB, all written: 10 more leave 10."""
        house.host()
        for gib in (16, 10):
            flavor = FlavorRequest(name=f"d{gib}", vcpus=1, memory=1024, disk=gib, profile="1g.5gb")
            flavors.add(house.db, house.me, flavor)
        big = house.request("big", flavor="d16")
        house.reaches(S.running, "big")
        plain = FakeHost.survey
        full = {"disk_free_gib": 20, "disk_written_mib": {big.id: 16 * 1024}}
        monkeypatch.setattr(FakeHost, "survey", lambda host: replace(plain(host), **full))
        _surveyed_anew(house)
        house.request("fits", flavor="d10")
        house.reaches(S.running, "fits")
        with house.db.read() as session:
            (host,) = fleet(session).hosts.values()
        assert host.disk_free_gib == 10

    def test_the_copy_of_an_image_takes_room_before_and_after_the_next_survey(self, house: House) -> None:
        """Of 36 GiB, less 2 for `base`, a disk takes 8, the copy of the image made of it 8, and two more disks 16."""
        house.host(cards="A100-40GB?disk=36g")
        flavors.add(house.db, house.me, FlavorRequest(name="d8", vcpus=1, memory=1024, disk=8, profile="1g.5gb"))
        house.request("first", flavor="d8")
        house.reaches(S.running, "first")
        vms.capture(house.db, house.settings, house.me, "first", CaptureRequest(image="t/x:1"))
        house.until(lambda: house.row(Image, "t/x:1").state is ImageState.ready)
        house.request("second", flavor="d8", image="t/x:1")
        house.reaches(S.running, "second")

        def free() -> int:
            with house.db.read() as session:
                (host,) = fleet(session).hosts.values()
            return host.disk_free_gib

        assert free() == 10
        _surveyed_anew(house)
        assert free() == 10
        house.request("third", flavor="d8", image="t/x:1")
        house.reaches(S.running, "third")
        house.request("fourth", flavor="d8", image="t/x:1")
        house.until(lambda: house.vm("fourth").reason is not None)
        because = Reason.of(house.vm("fourth").reason)
        assert because == Reason(ReasonCode.no_disk_space, {"needed_gib": 8, "free_gib": 2})

    def test_a_start_that_came_while_the_host_was_away_is_not_forgotten(self, house: House) -> None:
        """The VM has failed, its slices are not back yet, and its owner starts it."""
        hand = house.host()
        vm = house.request()
        house.reaches(S.running)
        hand.set_mood("unreachable")
        house.until(lambda: house.row(Host, "h1").state is HostState.unreachable)
        with house.db.write() as session:
            row = session.get_one(VM, vm.id)
            row.state, row.wanted = S.failed, Wanted.stopped
        vms.start(house.db, house.me, "s1")
        hand.set_mood("cheerful", boot=0.05, off=0.02)
        house.reaches(S.running)

    def test_a_stop_outlives_the_retry(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        plain, stopped = lifecycle.STEPS[S.failed], []

        def late(vm: VMView, world: steps.World) -> steps.Outcome:
            if vm.retry and not stopped:
                stopped.append(vms.stop(house.db, house.me, "s1", StopRequest()))
                return steps.Nap(0)  # the next look sees a VM that is to be tried again, and is wanted stopped
            return plain.run(vm, world)

        monkeypatch.setitem(lifecycle.STEPS, S.failed, replace(plain, run=late))
        for name in ("h1", "h2"):
            house.host(name, mood="refusing")
        house.request()
        house.until(lambda: bool(stopped))
        assert house.reaches(S.stopped).wanted is Wanted.stopped

    def test_a_snapshot_of_a_vm_without_a_place_starts_nothing(self, house: House) -> None:
        """A start during the copy queues like any other."""
        house.host()
        for name in ("s1", "s2"):
            house.request(name, profile="7g.40gb")
            if name == "s1":
                house.reaches(S.running, name)
        vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.release))
        house.reaches(S.running, "s2")
        with house.db.write() as session:
            session.exec(select(VM).where(VM.name == "s1")).one().due_at = None
        vms.capture(house.db, house.settings, house.me, "s1", CaptureRequest(image="team/x:1"))
        vms.start(house.db, house.me, "s1")
        house.until(lambda: house.vm("s1").state is S.pending and house.vm("s1").capture_as is None)
        assert not house.vm("s1").holds

    def test_a_host_that_is_lost_goes_with_its_vms(self, house: House) -> None:
        hand = house.host()
        house.request()
        house.reaches(S.running)
        with pytest.raises(Conflict):
            hosts.remove(house.db, house.me, "h1", lost=True)  # it answers
        hand.set_mood("unreachable")
        house.until(lambda: house.row(Host, "h1").state is HostState.unreachable)
        with pytest.raises(Conflict) as refused:
            hosts.remove(house.db, house.me, "h1")
        assert "--lost" in refused.value.hint
        hosts.remove(house.db, house.me, "h1", lost=True)
        house.until(lambda: house.vm().state is S.gone)
        assert reason_of(house.vm()) == ReasonCode.host_given_up and house.slices() == []
        with house.db.read() as session:
            assert session.exec(select(Host)).all() == []
        house.hands.pop("h1").close()

    def test_why_a_vm_failed_outlives_its_hosts_silence(self, house: House) -> None:
        hand = house.host(mood="cardless")
        house.request()
        why = reason_of(house.reaches(S.failed))
        hand.set_mood("unreachable")
        house.until(lambda: house.row(Host, "h1").state is HostState.unreachable)
        with house.db.write() as session:
            wake(session, VM, col(VM.name) == "s1")  # as a restart of the service does
        house.until(lambda: house.vm().claim_token is None and house.vm().due_at != now())
        time.sleep(0.5)
        hand.set_mood("cheerful")
        house.until(lambda: house.row(Host, "h1").state is HostState.ready)
        time.sleep(0.5)
        assert reason_of(house.vm()) == why

    def test_half_a_character_makes_no_row_unreadable(self, house: House) -> None:
        """Root in a guest writes what it likes where cloud-init keeps its result."""
        with house.db.write() as session:
            session.add(Event(kind="said", reason={"code": "host_error", "args": {"detail": "a \ud800 b"}}))
        with house.db.read() as session:
            (said,) = session.exec(select(Event).where(Event.kind == "said")).all()
        assert said.reason and said.reason["args"]["detail"] == "a ? b"

    def test_our_database_being_away_fails_nobody(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        house.host()
        plain = lifecycle.STEPS[S.building]
        away: list[bool] = []

        def once(vm: Any, world: Any) -> Any:
            if not away:
                away.append(True)
                raise Unavailable("The database did not answer")
            return plain.run(vm, world)

        monkeypatch.setitem(lifecycle.STEPS, S.building, replace(plain, run=once))
        house.request()
        assert house.reaches(S.running).tries == 0 and away
        assert S.failed not in {event.state for event in house.events()}

    def test_the_thread_that_keeps_claims_outlives_any_error(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("no")

        monkeypatch.setattr(worker, "keep_claims", broken)
        monkeypatch.setattr(house.worker, "_give_up", broken)
        time.sleep(2.5)
        assert house.worker.alive

    def test_a_step_given_up_cannot_reach_the_host_again(self, house: House) -> None:
        house.host()
        vm = house.request()
        house.reaches(S.running)
        job = work.Job(VM, vm.id, "gone", vm.host_id or "", given_up=True)
        with house.db.read() as session:
            view = views.view(session, house.vm(), installation="")
        world = vm_work._world(house.worker._ground, job, view)
        with pytest.raises(outcomes.TakenOver):
            _ = world.host

    def test_a_snapshot_without_room_leaves_the_guest_running(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hand = house.host()
        house.request()
        house.reaches(S.running)

        def full(host: FakeHost, vm_id: str, target: Path) -> None:
            short = outcomes.reason(ReasonCode.no_room_for_copy, needed_mib=9, free_mib=1, where="the pool of host h1")
            raise HostRefused(short.sentence(), hint=short.cure(), reason=short)

        monkeypatch.setattr(FakeHost, "see_room", full)
        vms.capture(house.db, house.settings, house.me, "s1", CaptureRequest(image="t/x:1"))
        house.until(lambda: house.row(Image, "t/x:1").state is ImageState.failed)
        because = Reason.of(house.row(Image, "t/x:1").reason)
        assert because and because.code is ReasonCode.no_room_for_copy
        house.reaches(S.running)
        counts = hand.counts()
        assert (counts["started"], counts["guest_off"], counts["powered_off"]) == (1, 0, 0)

    def test_a_simulated_copy_is_known_by_its_own_labels(self, house: House) -> None:
        """Its VM and host may be gone by the time it is cleaned; there is no disk in it that a helper could open."""
        path = house.settings.images_dir / "image-copy.qcow2"
        path.write_text("vmgpu simulated disk\n")
        with house.db.write() as session:
            labels = {"simulated": "yes"}
            state, due = ImageState.generalising, now()
            session.add(Image(id="copy", name="t/x:1", labels=labels, state=state, source_vm="gone", due_at=due))
        house.until(lambda: house.row(Image, "t/x:1").state is not ImageState.generalising)
        assert house.row(Image, "t/x:1").state is ImageState.ready

    def test_a_person_with_a_kept_console_can_go(self, house: House) -> None:
        house.host()
        people.add_user(house.db, house.me, UserRequest(name="ben"))
        vm = house.request(owner="ben")
        house.reaches(S.running)
        with house.db.write() as session:
            outcomes.keep_console(session, vm.id, b"hello")
        vms.release(house.db, house.me, "ben/s1")
        house.until(lambda: _gone(house, vm.id))
        people.remove_user(house.db, house.me, "ben")

    def test_who_waits_for_an_image_that_fails_is_told(self, house: House) -> None:
        house.host()
        house.request()
        house.reaches(S.running)
        image = vms.capture(house.db, house.settings, house.me, "s1", CaptureRequest(image="t/x:1"))
        with house.db.write() as session:
            row = session.get_one(Image, image.id)
            row.state, row.due_at = ImageState.generalising, None
        waits = house.request("s2", image="t/x:1")
        with house.db.write() as session:
            because = outcomes.reason(ReasonCode.capture_failed, detail="no room")
            row = session.get_one(Image, image.id)
            outcomes.apply_image(session, row, machines.ImageNews(ImageState.failed, because=because))
            assert session.get_one(VM, waits.id).state is S.failed

    def test_a_lost_copy_of_an_image_is_brought_again(self, house: House) -> None:
        host = house.host()
        vm = house.request()
        house.reaches(S.running)
        assert host
        with house.db.write() as session:
            outcomes.copy_again(session, session.get_one(VM, vm.id))
        with house.db.read() as session:
            assert session.exec(select(ImageCopy)).one().state in (CopyState.wanted, CopyState.ready)
        house.until(lambda: _copy_state(house) is CopyState.ready)

    def test_a_survey_that_is_refused_leaves_the_vms_their_host(self, house: House) -> None:
        house.host()
        house.request()
        house.reaches(S.running)
        with house.db.write() as session:
            row = session.exec(select(Host)).one()
            row.due_at = None
            host_outcomes.survey_refused(
                session, row, outcomes.reason(ReasonCode.survey_failed, host="h", detail="br0"), again=timedelta(days=1)
            )
        vms.stop(house.db, house.me, "s1", StopRequest())
        house.reaches(S.stopped)
        house.request("s2")
        time.sleep(0.5)
        assert house.vm("s2").state is S.pending


def _gone(house: House, vm_id: str) -> bool:
    with house.db.read() as session:
        return session.get_one(VM, vm_id).state is S.gone


def _copy_state(house: House) -> CopyState:
    with house.db.read() as session:
        return session.exec(select(ImageCopy)).one().state


class TestWishes:
    def test_for_the_slices_that_come_late_are_heard(self, house: House) -> None:
        """Asked while the guest still shuts down, or once it is off: the slices go back for those who wait."""
        house.host(off=1.0)
        house.request()
        house.request("s2", "7g.40gb")
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.keep))
        house.until(lambda: house.vm().state is S.stopping)
        vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.release))
        house.reaches(S.stopped)
        house.until(lambda: house.slices() == [])
        house.reaches(S.running, "s2")

    def test_to_give_back_what_a_stopped_vm_keeps(self, house: House) -> None:
        house.host()
        house.request()
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest())
        assert house.reaches(S.stopped).keep_until
        vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.keep))
        house.until(lambda: house.vm().keep_until is None)
        assert len(house.slices()) == 1
        vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.release))
        house.until(lambda: house.slices() == [])

    def test_that_come_during_a_step_stand(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step's outcome carries what it saw; what was wished while it was at work is not overwritten by it."""
        house.host()
        house.request()
        house.reaches(S.running)
        entered, go_on = threading.Event(), threading.Event()
        plain = lifecycle.STEPS[S.stopping]

        def held(vm: Any, world: Any) -> Any:
            done = plain.run(vm, world)
            if isinstance(done, steps.Hop):
                entered.set()
                go_on.wait(10)
            return done

        monkeypatch.setitem(lifecycle.STEPS, S.stopping, replace(plain, run=held))
        vms.stop(house.db, house.me, "s1", StopRequest())
        assert entered.wait(10)
        vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.release))
        go_on.set()
        house.until(lambda: house.slices() == [])
        assert house.reaches(S.stopped).stop_mode is None

    def test_a_release_during_a_capture(self, house: House) -> None:
        house.host(off=0.6)
        house.request()
        house.reaches(S.running)
        vms.capture(house.db, house.settings, house.me, "s1", CaptureRequest(image="t/x:1"))
        house.until(lambda: house.vm().state is S.capturing)
        vms.release(house.db, house.me, "s1")
        house.reaches(S.gone)
        assert house.row(Image, "t/x:1").state is ImageState.failed

    def test_a_stop_during_a_capture_decides_about_the_slices(self, house: House) -> None:
        house.host(off=0.6)
        house.request()
        house.reaches(S.running)
        vms.capture(house.db, house.settings, house.me, "s1", CaptureRequest(image="t/x:1"))
        house.until(lambda: house.vm().state is S.capturing)
        vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.release))
        house.reaches(S.stopped)
        house.until(lambda: house.slices() == [])
        assert house.row(Image, "t/x:1").state in (ImageState.ready, ImageState.generalising)

    def test_a_stop_of_what_was_half_built_leaves_nothing(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        hand = house.host()
        plain = lifecycle.STEPS[S.building]

        def stopped_meanwhile(vm: Any, world: Any) -> Any:
            done = plain.run(vm, world)
            if isinstance(done, steps.Hop):
                vms.stop(house.db, house.me, "s1", StopRequest(slices=OnStop.release))
                raise outcomes.TakenOver  # as if the process had died here
            return done

        monkeypatch.setitem(lifecycle.STEPS, S.building, replace(plain, run=stopped_meanwhile))
        vm = house.request()
        house.until(lambda: vm.id in hand.everything().disks and house.vm().wanted is Wanted.stopped)
        monkeypatch.setitem(lifecycle.STEPS, S.building, plain)
        with house.db.write() as session:
            row = session.get_one(VM, vm.id)
            outcomes.let_go(row, now())
        stopped = house.reaches(S.stopped)
        assert not stopped.has_disk
        assert hand.everything().leaks([house.foreign["h1"]]) == ()

    def test_40_at_once_for_two_slices(self, house: House) -> None:
        """On SQLite: no lock is met, two run, 38 wait in order."""
        house.host()
        house.request("s0")
        vms.release(house.db, house.me, "s0")
        house.reaches(S.gone, "s0")
        with ThreadPoolExecutor(40) as pool:
            list(pool.map(lambda number: house.request(f"n{number}"), range(40)))
        house.until(lambda: states(house).count("running") == 2)
        assert states(house).count("pending") == 38
        with house.db.read() as session:
            rows = session.exec(select(VM).where(VM.state == S.pending).order_by(col(VM.ticket))).all()
            assert [one.position for one in show.vms(session, rows)] == list(range(1, 39))

    def test_a_running_vm_survives_a_look_that_fails(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        hand = house.host()
        vm = house.request()
        house.reaches(S.running)
        looks: list[bool] = []

        def broken(vm: Any, world: Any) -> Any:
            looks.append(True)
            raise VmgpuError("internal error: cannot look")

        monkeypatch.setitem(lifecycle.STEPS, S.running, replace(lifecycle.STEPS[S.running], run=broken))
        with house.db.write() as session:
            wake(session, VM, col(VM.id) == vm.id)
        house.until(lambda: bool(looks))
        time.sleep(0.3)
        assert house.vm().state is S.running and vm.id in hand.everything().running()


class TestIdling:
    def test_costs_next_to_nothing(self, open_house: Open) -> None:
        house = open_house(sync_every=timedelta(seconds=30))
        house.host(cards="2xA100-40GB")
        for number in range(4):
            house.request(f"s{number}")
        house.request("s9")  # and one that waits
        for number in range(4):
            house.reaches(S.running, f"s{number}")
        house.until(lambda: house.vm("s9").reason is not None)
        time.sleep(0.5)
        before = time.process_time()
        time.sleep(3)
        assert time.process_time() - before < 0.25

    def test_a_vm_that_started_within_its_time_of_keeping_is_left_alone(
        self, open_house: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = open_house(keep_gpu=timedelta(seconds=1))
        house.host()
        house.request()
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest())
        assert house.reaches(S.stopped).keep_until
        vms.start(house.db, house.me, "s1")
        assert house.reaches(S.running).keep_until is None
        time.sleep(1.2)
        steps = count_steps(monkeypatch)
        time.sleep(0.7)
        assert len(steps) <= 2
        assert len(house.slices()) == 1

    def test_the_slices_of_a_stopped_vm_go_to_who_waits(self, open_house: Open) -> None:
        house = open_house(keep_gpu=timedelta(seconds=0.7))
        house.host()
        house.request()
        house.request("s2", "7g.40gb")
        house.reaches(S.running)
        vms.stop(house.db, house.me, "s1", StopRequest())
        house.reaches(S.running, "s2")
        stopped = house.vm()
        assert (stopped.state, reason_of(stopped)) == (S.stopped, ReasonCode.keep_ended)


class TestTheBooks:
    def test_say_how_long_each_phase_took(self, house: House) -> None:
        house.host(boot=0.4)
        house.request()
        house.request("s2", "7g.40gb")
        house.reaches(S.running)
        time.sleep(0.3)
        vms.release(house.db, house.me, "s1")
        house.reaches(S.running, "s2")
        events = [event for event in house.events("s2") if event.kind == "state"]
        assert [event.was for event in events] == ["pending", "carving", "building", "booting", "checking"]
        assert all(event.seconds is not None for event in events)
        took = {event.was: event.seconds or 0.0 for event in events}
        assert took["pending"] >= 0.6, "it waited while s1 booted and ran"
        assert took["booting"] >= 0.3
        total = (house.vm("s2").state_since - house.vm("s2").created_at).total_seconds()
        assert sum(took.values()) == pytest.approx(total, abs=0.5)

    def test_numbers_are_given_once(self, house: House) -> None:
        def one(_: int) -> int:
            with house.db.write() as session:
                return next_number(session, "fresh")

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(one, range(24))) == list(range(1, 25))

    def test_a_claim_is_one_workers_alone(self, idle: Database) -> None:
        image = Image(name="i", virtual_mib=1, due_at=now())
        with idle.write() as session:
            session.add(image)
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda _: claim(idle, Image, now(), hold=timedelta(minutes=1)), range(8)))
        assert [row.id for row in got if row] == [image.id]
        again = claim(idle, Image, now() + timedelta(minutes=2), hold=timedelta(minutes=1))
        assert again and again.id == image.id, "its holder died"
        with pytest.raises(outcomes.TakenOver), idle.write() as session:
            outcomes.held(session, Image, image.id, next(row for row in got if row).claim_token or "")


def states(house: House) -> list[str]:
    with house.db.read() as session:
        return [state.value for state in session.exec(select(VM.state)).all()]


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes every outcome of a VM from now on."""
    steps: list[str] = []
    plain = outcomes.apply_vm

    def noted(session: Any, vm: VM, view: Any, outcome: Any) -> bool:
        steps.append(f"{vm.name} {vm.state} {outcome}")
        return plain(session, vm, view, outcome)

    monkeypatch.setattr(outcomes, "apply_vm", noted)
    return steps
