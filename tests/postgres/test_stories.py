"""The stories of one installation, as on SQLite: what survives there survives here."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from tests import test_survives
from tests.factories import admin, make_settings
from tests.postgres.conftest import Server
from tests.worlds import House
from vmgpu.db import Database, next_number
from vmgpu.errors import Conflict, NotFound
from vmgpu.models import Event, Host, HostState, OnStop, VMState, Wanted
from vmgpu.requests import HostChange, StopRequest
from vmgpu.service import hosts, vms
from vmgpu.settings import Settings
from vmgpu.worker import Worker


@pytest.fixture
def installation(server: Server, database: str, tmp_path: Path) -> Callable[..., Settings]:
    """Settings of any number of processes of one installation."""

    def made(**given: Any) -> Settings:
        quick = {"sync_every": timedelta(seconds=0.3), "claim_hold": timedelta(seconds=4)}
        return make_settings(tmp_path / "data", database_url=server.url(database), **quick | given)

    return made


@pytest.fixture
def open_house(installation: Callable[..., Settings]) -> Iterator[test_survives.Open]:
    made: list[House] = []

    def opened(**given: Any) -> House:
        settings = installation(**given)
        settings.data_dir.mkdir(exist_ok=True)
        db = Database(settings.url)
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
def house(open_house: test_survives.Open) -> House:
    return open_house()


@pytest.fixture
def idle(installation: Callable[..., Settings]) -> Iterator[Database]:
    db = Database(installation().url)
    yield db
    db.close()


class TestAHand(test_survives.TestAHand):
    pass


class TestACard(test_survives.TestACard):
    pass


class TestLeases(test_survives.TestLeases):
    pass


class TestWishes(test_survives.TestWishes):
    pass


class TestTheBooks(test_survives.TestTheBooks):
    pass


class TestIdling(test_survives.TestIdling):
    pass


class TestAHost:
    plain = test_survives.TestAHost
    test_loses_every_other_reply = plain.test_loses_every_other_reply
    test_does_not_answer_for_long = plain.test_does_not_answer_for_long
    test_reboots = plain.test_reboots
    test_does_not_return_from_a_call = plain.test_does_not_return_from_a_call


class TestAtTheSameMoment:
    def test_two_wishes_are_both_seen(self, house: House) -> None:
        """A start that has read the row must not undo the release that came before its write."""
        house.host()
        for turn in range(6):
            name = f"s{turn}"
            house.request(name)
            house.reaches(VMState.running, name)
            vms.stop(house.db, house.me, name, StopRequest(slices=OnStop.release))
            with ThreadPoolExecutor(4) as pool:
                for _ in range(3):
                    pool.submit(_quietly, vms.start, house.db, house.me, name)
                pool.submit(vms.release, house.db, house.me, name)
            assert house.vm(name).wanted is Wanted.gone
            house.reaches(VMState.gone, name)

    def test_no_boot_is_lost(self, house: House) -> None:
        house.host(boot=0.3)
        house.request()
        house.reaches(VMState.running)
        with ThreadPoolExecutor(5) as pool:
            for _ in range(5):
                pool.submit(vms.reboot, house.db, house.me, "s1")
        with house.db.read() as session:
            asked = session.exec(select(Event).where(Event.kind == "asked")).all()
        assert house.vm().boots == 1 + sum(1 for e in asked if e.reason and e.reason["args"]["what"] == "reboot")

    def test_a_host_is_not_removed_under_a_placement(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        """The leader wants to place on a host that was found empty a moment ago: it waits, and plans again."""
        house.host()
        looked = threading.Event()

        class Slowly:
            @property
            def removing(self) -> HostState:
                looked.set()
                time.sleep(1.5)
                return HostState.removing

        monkeypatch.setattr(hosts, "HostState", Slowly())
        with ThreadPoolExecutor(1) as pool:
            removal = pool.submit(hosts.remove, house.db, house.me, "h1")
            assert looked.wait(10)
            house.request()
            removal.result()
        house.until(lambda: not _rows(house, select(Host)))
        house.hands.pop("h1").close()
        vm = house.vm()
        assert (vm.state, vm.host_id, house.slices()) == (VMState.pending, None, [])

    def test_first_numbers_are_given_once(self, house: House) -> None:
        def one(_: int) -> int:
            with house.db.write() as session:
                return next_number(session, "never-before")

        with ThreadPoolExecutor(12) as pool:
            assert sorted(pool.map(one, range(12))) == list(range(1, 13))

    def test_many_who_want_many_things_do_not_wait_for_each_other_for_ever(
        self, house: House, installation: Callable[..., Settings]
    ) -> None:
        """Two workers, hosts that come and go, wishes from many threads. The server's log must know of no deadlock."""
        one, two = house.host("h1", "2xA100-40GB"), house.host("h2", "2xA100-40GB")
        other = Database(house.db.url)
        second = Worker(other, installation())
        second.start()
        names = [f"s{number}" for number in range(8)]
        for name in names:
            house.request(name)
        end = time.monotonic() + 5

        def wish(seed: int) -> None:
            dice = random.Random(seed)
            while time.monotonic() < end:
                name = dice.choice(names)
                match dice.randrange(6):
                    case 0:
                        _quietly(vms.stop, house.db, house.me, name, StopRequest(slices=dice.choice([None, *OnStop])))
                    case 1 | 2:
                        _quietly(vms.start, house.db, house.me, name)
                    case 3:
                        _quietly(vms.reboot, house.db, house.me, name)
                    case 4:
                        _quietly(vms.reset, house.db, house.me, name)
                    case 5:
                        change = HostChange(draining=dice.random() < 0.3)
                        _quietly(hosts.change, house.db, house.me, dice.choice(["h1", "h2"]), change)

        try:
            with ThreadPoolExecutor(6) as pool:
                for seed in range(5):
                    pool.submit(wish, seed)
                pool.submit(_blink, one, two, until=end)
            for name in ("h1", "h2"):
                hosts.change(house.db, house.me, name, HostChange(draining=False))
                house.until(lambda name=name: house.row(Host, name).state is HostState.ready)  # type: ignore[misc]
            for name in names:
                _quietly(vms.start, house.db, house.me, name)
            for name in names:
                house.until(lambda name=name: house.vm(name).state in ("running", "failed", "lost"))  # type: ignore[misc]
        finally:
            second.stop(5)
            other.close()


def _rows(house: House, query: Any) -> bool:
    with house.db.read() as session:
        return bool(session.exec(query).all())


def _blink(*hands: Any, until: float) -> None:
    while time.monotonic() < until:
        for hand in hands:
            hand.set_mood("unreachable")
            time.sleep(0.3)
            hand.set_mood("cheerful", boot=0.05, off=0.02)
            time.sleep(0.3)


def _quietly(verb: Callable[..., object], *given: object) -> None:
    """A refusal is an answer too."""
    with suppress(Conflict, NotFound):
        verb(*given)
