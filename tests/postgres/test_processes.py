"""Several `vmgpu serve` and `vmgpu worker` on one database: one leads, a claim has one holder, each word is heard."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlmodel import select

from tests.factories import ADMIN_TOKEN, admin, make_flavor, make_host, make_image, make_settings, make_vm
from tests.postgres.conftest import Server
from vmgpu.db import LEADING, Change, Database
from vmgpu.hypervisor import HostRef, Network, NetworkRef
from vmgpu.hypervisor.fake import FakeAdmin, fake_admin
from vmgpu.models import VM

ROOT = Path(__file__).parent.parent.parent
HOLD = 3


class Site:
    """Processes of one installation, each known to the database by its name."""

    def __init__(self, server: Server, database: str, folder: Path) -> None:
        self.server, self.database, self.folder = server, database, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.clients: dict[str, httpx.Client] = {}

    def start(self, name: str, *arguments: str, **more: str) -> None:
        """Start one; a serve answers on a loopback port of its own."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("VMGPU_")} | {
            "VMGPU_DATABASE_URL": self.server.url(self.database, application_name=name),
            "VMGPU_DATA_DIR": str(self.folder / "data"),
            "VMGPU_ADMIN_TOKEN": ADMIN_TOKEN,
            "VMGPU_CLAIM_HOLD": f"{HOLD}s",
            "VMGPU_SYNC_EVERY": "1s",
            "VMGPU_LOG": "text",
            **more,
        }
        if arguments[0] == "serve":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                env["VMGPU_BIND"] = f"127.0.0.1:{free.getsockname()[1]}"
            headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
            self.clients[name] = httpx.Client(
                base_url=f"http://{env['VMGPU_BIND']}/api/v1",
                headers=headers,
                timeout=60,
                limits=httpx.Limits(max_connections=100),
            )
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-c", "from vmgpu.cli import main; main()", *arguments]
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=ROOT)

    def answers(self, name: str) -> None:
        """Wait until a serve answers."""
        self.until(lambda: self._up(name))

    def leader(self) -> str:
        """The name of the process that leads; empty while none does."""
        held = self.server.run(
            f"""SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)
                WHERE locktype = 'advisory' AND objid = {LEADING} AND granted"""  # noqa: S608
        )
        assert len(held) <= 1
        return str(held[0][0]) if held else ""

    def kill(self, name: str) -> None:
        """As `kill -9` does."""
        self.processes[name].kill()
        self.processes[name].wait()

    def until(self, true: Callable[[], bool], seconds: float = 180) -> None:
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                logs = [f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log"))]
                rows = "SELECT 'vm', name, state, wanted, reason::text FROM vm UNION ALL "
                rows += "SELECT 'host', name, state, coalesce(claim_token, 'free'), reason::text FROM host"
                logs += [str(row) for row in self.server.run(rows, self.database)]
                raise AssertionError("\n".join(logs))
            time.sleep(0.05)

    def hand(self) -> FakeAdmin:
        """A hand at host h1; what is read there needs no installation."""
        net = NetworkRef(Network.nat, "vmgpu")
        return fake_admin(HostRef("", "h1", "fake://A100-40GB", "", net, "auto", self.folder / "data" / "fake"))

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _up(self, name: str) -> bool:
        try:
            return self.clients[name].get("/../../healthz").status_code == 200
        except httpx.TransportError:
            return False


def vms(client: httpx.Client) -> list[dict[str, Any]]:
    answer = client.get("/vms")
    answer.raise_for_status()
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def in_state(client: httpx.Client, state: str) -> list[dict[str, Any]]:
    return [vm for vm in vms(client) if vm["state"] == state]


def ask(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.is_success, answer.text
    return answer.json()


def prepare(client: httpx.Client) -> None:
    """One simulated host, one card, and a flavor that takes half of it."""
    ask(client, "/hosts", name="h1", uri="fake://A100-40GB")
    ask(client, "/flavors", name="half", vcpus=1, memory="1g", disk="2g", profile="3g.20gb")


class TestSeveral:
    @pytest.fixture
    def site(self, server: Server, empty: str, tmp_path: Path) -> Iterator[Site]:
        """Two of each, started at the same moment on an empty database."""
        made = Site(server, empty, tmp_path)
        for name in ("serve-1", "serve-2"):
            made.start(name, "serve")
        for name in ("worker-1", "worker-2"):
            made.start(name, "worker")
        try:
            for name in ("serve-1", "serve-2"):
                made.answers(name)
            made.until(lambda: bool(made.leader()))
            yield made
        finally:
            made.close()

    def test_40_requests_for_2_slices(self, site: Site) -> None:
        """At the same instant: exactly 2 run, 38 wait in order. Then the leader is killed, and another one leads."""
        clients = list(site.clients.values())
        prepare(clients[0])
        at_once = threading.Barrier(40)

        def one(number: int) -> Any:
            at_once.wait()
            return ask(clients[number % 2], "/vms", name=f"n{number}", flavor="half", image="base")

        with ThreadPoolExecutor(40) as pool:
            made = list(pool.map(one, range(40)))
        assert len(made) == 40
        site.until(lambda: len(in_state(clients[1], "running")) == 2)
        time.sleep(1)
        for client in clients:
            waiting = in_state(client, "pending")
            assert len(in_state(client, "running")) == 2
            assert sorted(vm["position"] for vm in waiting) == list(range(1, 39))
            assert {vm["reason"]["code"] for vm in waiting} == {"no_slice_free"}
        db = Database(site.server.url(site.database))
        with db.read() as session:
            by_ticket = [
                vm.name for vm in session.exec(select(VM).where(VM.state == "pending").order_by(VM.ticket)).all()
            ]  # type: ignore[arg-type]
            tickets = session.exec(select(VM.ticket)).all()
        db.close()
        assert sorted(tickets) == list(range(1, 41))
        assert [vm["name"] for vm in sorted(waiting, key=lambda vm: vm["position"])] == by_ticket
        hand = site.hand()
        assert (hand.counts()["cut"], hand.counts()["started"], hand.counts()["double_carve"]) == (2, 2, 0)

        leader = site.leader()
        site.kill(leader)
        alive = next(client for name, client in site.clients.items() if name != leader)
        first = in_state(alive, "running")[0]["name"]
        ask(alive, f"/vms/{first}/release")
        site.until(lambda: site.leader() not in ("", leader))
        site.until(lambda: by_ticket[0] in [vm["name"] for vm in in_state(alive, "running")])
        assert len(in_state(alive, "running")) == 2
        assert sorted(vm["position"] for vm in in_state(alive, "pending")) == list(range(1, 38))
        counts = hand.counts()
        hand.close()
        assert (counts["cut"], counts["freed"], counts["double_carve"]) == (3, 1, 0)


class TestAWorker:
    @pytest.fixture
    def site(self, server: Server, database: str, tmp_path: Path) -> Iterator[Site]:
        made = Site(server, database, tmp_path)
        made.start("serve", "serve", "--no-worker")
        try:
            made.answers("serve")
            yield made
        finally:
            made.close()

    @pytest.mark.parametrize("point", ["vm.carving.worked", "vm.building.worked", "place.applied"])
    def test_that_is_killed_loses_its_claims_to_another(self, site: Site, point: str) -> None:
        site.start("first", "worker", VMGPU_CRASH_AT=point)
        client = site.clients["serve"]
        site.until(lambda: bool(site.leader()))
        prepare(client)
        begun = time.monotonic()
        ask(client, "/vms", name="s1", flavor="half", image="base")
        site.until(lambda: site.processes["first"].poll() is not None)
        assert site.processes["first"].wait() == -signal.SIGKILL
        (left,) = vms(client)
        assert left["state"] == point.split(".")[1].replace("applied", "carving")
        site.start("second", "worker")
        site.until(lambda: in_state(client, "running") != [])
        if point.startswith("vm."):
            assert time.monotonic() - begun > HOLD, "nobody may know before that the first is dead"
        with_hand = site.hand()
        counts, seen = with_hand.counts(), with_hand.everything()
        with_hand.close()
        assert (counts["cut"], counts["defined"], counts["started"]) == (1, 1, 1)
        assert counts["disk_made"] - counts["disk_dropped"] == len(seen.disks) == 1
        assert len(seen.cuts) == len(seen.domains) == 1

    def test_hears_at_once_what_another_process_wrote(self, site: Site) -> None:
        """No loop has to come round: a request is placed, and a released VM goes, within a moment."""
        site.start("worker", "worker")
        client = site.clients["serve"]
        prepare(client)
        ask(client, "/vms", name="s0", flavor="half", image="base")
        site.until(lambda: in_state(client, "running") != [])
        ask(client, "/vms/s0/release")
        site.until(lambda: in_state(client, "gone") != [] or vms(client) == [])
        db = Database(site.server.url(site.database))
        with db.read() as session:
            (vm,) = session.exec(select(VM)).all()
        db.close()
        waited = (vm.gone_at - vm.state_since) if vm.gone_at else None
        assert waited is not None and waited.total_seconds() < 2


class TestNews:
    def test_is_heard_by_other_processes(self, server: Server, database: str) -> None:
        heard: list[frozenset[Change]] = []
        here, there = Database(server.url(database)), Database(server.url(database))
        here.listen(heard.append)
        _wait(lambda: heard == [frozenset({("*", "*")})])  # whatever was said before it listened
        make_flavor(there, "small")
        _wait(lambda: any(table == "flavor" for changes in heard for table, _ in changes))
        count = len(heard)
        make_flavor(here, "large")
        _wait(lambda: len(heard) > count)
        time.sleep(0.3)
        assert len(heard) == count + 1, "one's own words are not heard twice"
        for db in (here, there):
            db.close()

    def test_that_was_missed_is_made_good(self, server: Server, database: str) -> None:
        """The listening connection breaks: once it is back, everything is looked at again."""
        heard: list[frozenset[Change]] = []
        here = Database(server.url(database, application_name="listener"))
        here.listen(heard.append)
        _wait(lambda: len(heard) == 1)
        server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listener'")
        _wait(lambda: heard.count(frozenset({("*", "*")})) == 2)
        here.close()

    def test_of_very_much_is_said_shortly(self, server: Server, database: str, tmp_path: Path) -> None:
        """A payload has 8000 bytes; a write of thousands of rows says that everything changed."""
        heard: list[frozenset[Change]] = []
        here, there = Database(server.url(database)), Database(server.url(database))
        here.listen(heard.append)
        _wait(lambda: len(heard) == 1)
        me = admin(there)
        make_image(there)
        make_host(there)
        with there.write() as session:
            pass
        vm = make_vm(there, me, "first")
        with there.write() as session:
            fields = vm.model_dump(exclude={"id", "name"})
            session.add_all([VM(name=f"v{number}", **fields) for number in range(400)])
        _wait(lambda: heard[-1] == frozenset({("*", "*")}))
        for db in (here, there):
            db.close()


def test_a_database_that_is_away_is_said_so(server: Server, tmp_path: Path) -> None:
    from vmgpu.errors import Unavailable

    settings = make_settings(tmp_path, database_url="postgresql://vmgpu@127.0.0.1:1/none?connect_timeout=2")
    db = Database(settings.url)
    with pytest.raises(Unavailable), db.read() as session:
        session.exec(select(VM)).all()
    with pytest.raises(Unavailable), db.write() as session:
        session.exec(select(VM)).all()
    db.close()


def _wait(true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
