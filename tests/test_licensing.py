"""A vGPU's licence: settings of its host, files of its guest, and what the guest's driver says of it later."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlmodel import select

from tests import factories
from tests.worlds import NOON, PlayedWorld, a_view
from vmgpu import guest, outcomes, specs, views
from vmgpu.db import Database
from vmgpu.errors import ReasonCode, VmgpuError
from vmgpu.lifecycle import STEPS
from vmgpu.models import VM, Event, Gpu, Host, Slice, VMState
from vmgpu.requests import HostChange
from vmgpu.service import hosts, show
from vmgpu.service.access import Actor
from vmgpu.steps import Nap
from vmgpu.views import LicenceView, VMView

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzZWNyZXQiOjF9.c2lnbmF0dXJl"
MINUTES, HOURS = timedelta(minutes=1), timedelta(hours=1)
LICENSED, UNLICENSED = "Licensed (Expiry: 2030-3-1 10:0:0 GMT)", "Unlicensed (Unrestricted)"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = factories.make_database(factories.make_settings(tmp_path))
    yield made
    made.close()


@pytest.fixture
def me(db: Database) -> Actor:
    return factories.admin(db)


def licensed_by(db: Database, me: Actor, **licence: Any) -> Host:
    return hosts.change(db, me, "h1", HostChange.model_validate({"licence": licence}))


def with_slice(db: Database, mode: str, vendor: str = "10de", **facts: Any) -> str:
    """A VM with a slice of a real card in this mode, and its id."""
    host = factories.make_host(db, cards=())
    factories.make_image(db)
    vm = factories.make_vm(db, factories.admin(db), "a", host=host)
    with db.write() as session:
        gpu = Gpu(host_id=host.id, key="k", model="A100-40GB", mode=mode, facts={"vendor": vendor, **facts})
        session.add(gpu)
        session.flush()
        session.add(Slice(gpu_id=gpu.id, vm_id=vm.id, profile="3g.20gb", start=0, cells=4, compute=3, memory_mib=19968))
    return vm.id


def seen(db: Database, vm_id: str) -> VMView:
    with db.read() as session:
        return views.view(session, session.get_one(VM, vm_id), installation="here")


def seed_of(vm: VMView) -> dict[str, Any]:
    vm = replace(vm, host_key="ssh-ed25519 AAAA", host_key_private="secret")
    made = specs.spec(vm, our_login="vmgpu", our_key="ssh-ed25519 BBBB").seed.files["user-data"]
    config: dict[str, Any] = yaml.safe_load(made.decode())
    return config


def written(config: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["path"]: (each["content"], each["permissions"]) for each in config["write_files"]}


class TestTheSettingsOfAHost:
    def test_reach_the_guest_of_a_vgpu_with_nvidias_paths_and_modes(self, db: Database, me: Actor) -> None:
        vm = with_slice(db, "vgpu")
        licensed_by(db, me, token=TOKEN, server="licences.example.org:7070", feature=2)
        config = seed_of(seen(db, vm))
        files = written(config)
        assert files["/etc/nvidia/gridd.conf"] == (
            "FeatureType=2\nServerAddress=licences.example.org\nServerPort=7070\n",
            "0644",
        )
        tokens = {path: found for path, found in files.items() if path.endswith(".tok")}
        (path,) = tokens
        assert path.startswith("/etc/nvidia/ClientConfigToken/client_configuration_token_")
        assert tokens[path] == (TOKEN, "0744")
        # the daemon may have started before the files were there, and a later token comes to a guest that has booted
        assert ["write_files", "always"] in config["cloud_init_modules"]
        assert config["runcmd"] == [["systemctl", "--no-block", "try-restart", "nvidia-gridd.service"]]

    @pytest.mark.parametrize(
        ("mode", "vendor", "wanted"),
        [("vgpu", "10de", True), ("mig", "10de", True), ("passthrough", "10de", False), ("vgpu", "", False)],
    )
    def test_reach_only_who_needs_a_licence(
        self, db: Database, me: Actor, mode: str, vendor: str, wanted: bool
    ) -> None:
        vm = with_slice(db, mode, vendor)
        licensed_by(db, me, token=TOKEN)
        found = seen(db, vm)
        assert (found.licensing is not None) is wanted
        assert (TOKEN in str(seed_of(found))) is wanted

    def test_are_nothing_to_a_simulated_host(self, db: Database, me: Actor) -> None:
        """Nobody can log in to its guests, to bring a token or to read what became of it."""
        vm = with_slice(db, "mig")
        with db.write() as session:
            session.exec(select(Host)).one().uri = "fake://1xA100-40GB"
        licensed_by(db, me, token=TOKEN)
        assert seen(db, vm).licensing is None

    def test_change_nothing_in_a_guest_where_there_are_none(self, db: Database) -> None:
        config = seed_of(seen(db, with_slice(db, "vgpu")))
        assert not [path for path in written(config) if "nvidia" in path]
        assert "write_files" in config["cloud_init_modules"] and "runcmd" not in config

    def test_are_changed_one_by_one_and_taken_away(self, db: Database, me: Actor) -> None:
        factories.make_host(db)
        licensed_by(db, me, token=f" {TOKEN}\n")
        licensed_by(db, me, feature=4)
        assert licensed_by(db, me, server="l1").licence == {"token": TOKEN, "feature": 4, "server": "l1"}
        assert licensed_by(db, me, token="").licence == {"token": "", "feature": 4, "server": "l1"}

    @pytest.mark.parametrize(
        "licence",
        [
            {"token": "two words"},
            {"token": "a\nFeatureType=0"},
            {"token": "x" * 40_000},
            {"server": "l1\nFeatureType=0"},
            {"server": "-x y"},
            {"feature": 3},
            {"tokens": "x"},
        ],
    )
    def test_are_checked(self, licence: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="validation error"):
            HostChange.model_validate({"licence": licence})

    def test_never_show_the_token(self, db: Database, me: Actor, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        vm = with_slice(db, "vgpu")
        licensed_by(db, me, token=TOKEN)
        found = seen(db, vm)
        with db.read() as session:
            shown = show.hosts(session, session.exec(select(Host)).all())[0]
            events = show.events(session, session.exec(select(Event)).all())
            row = show.vm(session, session.get_one(VM, vm))
        assert shown.licence and shown.licence.has_token
        told = [shown.model_dump_json(), repr(row), *(each.model_dump_json() for each in events)]
        assert TOKEN not in "".join((*told, repr(found), json.dumps(caplog.messages)))

    def test_are_an_admins_alone(self, db: Database) -> None:
        factories.make_host(db)
        anna = factories.make_user(db, "anna")
        with pytest.raises(VmgpuError, match="admin"):
            licensed_by(db, anna, token=TOKEN)
        with db.read() as session:
            assert show.hosts(session, session.exec(select(Host)).all(), to=anna)[0].licence is None


Read = Callable[..., Nap]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Watch a running VM so long after its boot; `says` is the guest's answer, or the error of asking."""

    def watched(vm: VMView, *, after: timedelta, says: str | Exception | None = None) -> Nap:
        def answer(door: guest.Door) -> str | None:
            if says is None:
                pytest.fail("the guest was asked")
            if isinstance(says, Exception):
                raise says
            return says or None

        monkeypatch.setattr(guest, "licence", answer)
        done = STEPS[VMState.running].run(vm, PlayedWorld(tmp_path, now=NOON + after))
        assert isinstance(done, Nap)
        return done

    return watched


def a_vgpu(**given: Any) -> VMView:
    return a_view(**{"ran_at": NOON, "licensing": LicenceView(token=TOKEN)} | given)


def said(done: Nap) -> ReasonCode | None:
    return done.because.code if done.because else None


class TestTheLicence:
    def test_is_read_after_the_boot_and_when_an_unlicensed_vgpu_slows_down_and_then_rarely(self, read: Read) -> None:
        vm, after, looks = a_vgpu(), timedelta(0), []
        for _ in range(5):
            done = read(vm, after=after, says=LICENSED)
            assert done.changes["licence"] == LICENSED and done.because is None and not done.news
            looks.append(after)
            assert done.seconds is not None
            vm, after = replace(vm, **done.changes), after + timedelta(seconds=done.seconds)
        assert looks == [timedelta(0), 2 * MINUTES, 25 * MINUTES, 25 * MINUTES + 6 * HOURS, 25 * MINUTES + 12 * HOURS]

    def test_is_not_read_in_between(self, read: Read) -> None:
        done = read(a_vgpu(licence=LICENSED, licence_at=NOON), after=MINUTES)
        assert (done.seconds, dict(done.changes)) == (60, {})

    def test_is_not_read_where_there_is_none_to_read(self, read: Read) -> None:
        assert read(a_vgpu(licensing=None), after=HOURS) == Nap(None)

    def test_is_not_missed_before_its_daemon_had_a_chance(self, read: Read) -> None:
        done = read(a_vgpu(), after=timedelta(0), says=UNLICENSED)
        assert (said(done), done.news, done.changes["licence"]) == (None, "", UNLICENSED)

    def test_is_missed_with_the_cure_and_told_once(self, read: Read) -> None:
        vm = a_vgpu(licence=UNLICENSED, licence_at=NOON)
        done = read(vm, after=2 * MINUTES, says=UNLICENSED)
        assert (said(done), done.news) == (ReasonCode.vgpu_unlicensed, "unlicensed")
        assert done.because and "443" in done.because.cure() and UNLICENSED in done.because.sentence()
        vm = replace(vm, **done.changes)
        later = read(vm, after=3 * MINUTES)
        assert (said(later), later.news) == (ReasonCode.vgpu_unlicensed, "")  # it stays to be read, and is no news
        again = read(vm, after=25 * MINUTES, says="Unlicensed (Restricted)")
        assert (said(again), again.news) == (ReasonCode.vgpu_unlicensed, "unlicensed")
        healed = read(replace(vm, **again.changes), after=10 * HOURS, says=LICENSED)
        assert (said(healed), healed.changes["licence"]) == (None, LICENSED)

    def test_without_settings_is_the_admins_to_cure(self, read: Read) -> None:
        vm = a_vgpu(licensing=LicenceView(), licence=UNLICENSED, licence_at=NOON)
        done = read(vm, after=2 * MINUTES, says=UNLICENSED)
        assert said(done) == ReasonCode.vgpu_licence_unset
        assert done.because and "vmgpu host set h1 --licence-token" in done.because.cure()

    def test_is_unknown_without_a_driver(self, read: Read) -> None:
        done = read(a_vgpu(), after=30 * MINUTES, says="")
        assert (said(done), done.changes["licence"]) == (None, None)

    def test_of_a_guest_that_does_not_answer_is_asked_again(self, read: Read) -> None:
        waiting = outcomes.reason(ReasonCode.waiting_ssh, address="192.0.2.7")
        for bad in (guest.NotYet(waiting, waiting), guest.CheckFailed(waiting)):
            assert read(a_vgpu(), after=MINUTES, says=bad) == Nap(300)

    def test_is_asked_of_no_guest_without_an_init(self, read: Read) -> None:
        vm = a_vgpu()
        assert read(replace(vm, image=replace(vm.image, has_init=False)), after=MINUTES).changes["licence"] is None


def test_a_missing_licence_is_an_event_and_shows_on_the_vm(db: Database, read: Read) -> None:
    vm = with_slice(db, "vgpu")
    with db.write() as session:
        row = session.get_one(VM, vm)
        row.state, row.ran_at, row.licence, row.licence_at = VMState.running, NOON, UNLICENSED, NOON
        row.claim_token = "ours"
    done = read(seen(db, vm), after=2 * MINUTES, says=UNLICENSED)
    with db.write() as session:
        outcomes.apply_vm(session, session.get_one(VM, vm), seen(db, vm), done)
    with db.read() as session:
        shown = show.vm(session, session.get_one(VM, vm))
        events = show.events(session, session.exec(select(Event).where(Event.kind == "unlicensed")).all())
    assert (shown.licence, shown.licence_at) == (UNLICENSED, NOON + 2 * MINUTES)
    assert shown.reason and shown.reason.code == "vgpu_licence_unset"
    assert [each.reason.code for each in events if each.reason] == ["vgpu_licence_unset"]
