"""What happens to a real host while the service runs: rows end true, a slice goes back once, all others go on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import libvirt
import pytest
from sqlmodel import Session, select

from tests.e2e import real_host
from tests.e2e.service import Service, answer
from tests.hypervisor.live import daemon_pid, start_daemon, stop_daemon, wait_for
from vmgpu.errors import ReasonCode
from vmgpu.hypervisor.volumes import FOLDER
from vmgpu.models import Event, Host, HostState, Slice, VMState, Wanted

pytestmark = [pytest.mark.libvirt, pytest.mark.timeout(240)]

FOREIGN = """
<domain type='qemu'>
  <name>{name}</name>
  <metadata>{mark}</metadata>
  <memory unit='MiB'>32</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices><controller type='usb' model='none'/><memballoon model='none'/></devices>
</domain>
"""
OTHERS_MARK = "<v:vm xmlns:v='urn:vmgpu:1' installation='of-somebody-else' build='1'/>"


Foreign = dict[str, tuple[str, bool, list[int]]]


class Place:
    """An installation with a real host of two halves and a simulated one, whose service runs."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.service = Service(folder, sync_every="2s", keep_gpu="4s", host_call_timeout="5s")
        self.service.take_in("tiny", image, init="none")
        self.key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        self.api = self.service.as_()
        self.service.start()
        self.service.until_ready()
        self.post("/keys", 201, keys=self.key.with_suffix(".pub").read_text())
        self.post("/hosts", 201, name="h1", uri="qemu:///system", emulate=["A100-40GB"])
        self.post("/hosts", 201, name="f1", uri="fake://A100-40GB")
        self.post("/flavors", 201, name="half", vcpus=1, memory="256m", disk="1g", profile="3g.20gb")

    def post(self, path: str, status: int, **body: Any) -> Any:
        return answer(self.api.post(path, json=body), status)

    def slices(self) -> list[str]:
        """The names of those on the real host that hold one."""
        with self.service.db.read() as session:
            ids = set(session.exec(select(Slice.vm_id)).all())
        return [name for name in ("s1", "s2", "q1") if self.service.vm(name).id in ids]

    def told(self, name: str) -> list[str]:
        """The codes of all that was said of a VM."""
        with self.service.db.read() as session:
            events = session.exec(select(Event).where(Event.vm_id == self.service.vm(name).id)).all()
        return [event.reason["code"] for event in events if event.reason]

    def host(self, session: Session) -> Host:
        return session.exec(select(Host).where(Host.name == "h1")).one()

    def until_host(self, state: HostState, *, because: ReasonCode | None = None, within: float = 60) -> None:
        def there(session: Session) -> bool:
            host = self.host(session)
            return host.state is state and (not because or (host.reason or {}).get("code") == because)

        self.service.until(there, f"h1 is {state} {because or ''}", within=within)

    def another_host_works(self) -> None:
        """A VM on the simulated host is made, and let go, meanwhile."""
        self.post("/vms", 202, name="f", flavor="half", image="base")
        self.service.until_vm("f", "running", within=30)
        self.post("/vms/f/release", 202)
        self.service.until_vm("f", "gone", within=30)


def as_it_is(found: Any) -> tuple[str, bool, list[int]]:
    """How a domain is defined, and whether and how it runs."""
    return found.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE), bool(found.isActive()), found.state()


@pytest.fixture(scope="module")
def foreign(before: frozenset[str]) -> Iterator[Foreign]:
    """Two domains that are not ours, as they were: one of nobody, one that another installation made."""
    was = {}
    with real_host.hand() as host:
        for name, mark in (("nobodys", ""), ("another-ones", OTHERS_MARK)):
            made = host.defineXML(FOREIGN.format(name=name, mark=mark))
            made.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED)  # so that it costs nothing
            was[made.UUIDString()] = as_it_is(made)
    yield was
    with real_host.hand() as host:
        for vm_id in was:
            found = host.lookupByUUIDString(vm_id)
            if found.isActive():
                found.destroy()
            found.undefine()


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path, before: frozenset[str], foreign: Foreign
) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("survives"), tiny)
    yield made
    made.api.close()
    made.service.close()
    real_host.clear(before | {"domain nobodys", "domain another-ones"})


@pytest.fixture(autouse=True)
def others(place: Place, before: frozenset[str], foreign: Foreign) -> Iterator[None]:
    """Whatever a test does to one: foreign domains are as they were, and nothing is there twice or unknown."""
    yield
    with real_host.hand() as host:
        assert {vm_id: as_it_is(host.lookupByUUIDString(vm_id)) for vm_id in foreign} == foreign
    traces = {line for line in real_host.traces() if any(word in line for word in ("nobodys", "another-ones"))}
    must_ignore = before | traces | {f"qemu {vm_id}" for vm_id in foreign}
    real_host.must_be_sound(place.service, must_ignore)
    with place.service.db.read() as session:
        host = session.exec(select(Host).where(Host.name == "h1")).first()
    assert host is None or host.orphans == []


@pytest.fixture
def neighbour(place: Place) -> Iterator[None]:
    """s2 runs on in the same QEMU, and its row never says anything else."""
    vm_id = place.service.vm("s2").id
    pid, said = real_host.qemu_pid(vm_id), place.told("s2")
    yield
    vm = place.service.vm("s2")
    assert (vm.state, vm.wanted) == (VMState.running, Wanted.running)
    assert (real_host.qemu_pid(vm_id), place.told("s2")) == (pid, said)
    assert "s2" in place.slices()


def test_two_run_and_one_waits(place: Place) -> None:
    place.post("/vms", 202, name="s{n}", count=2, flavor="half", image="tiny")
    for name in ("s1", "s2"):
        place.service.until_vm(name, "running", within=200)
    place.post("/vms", 202, name="q1", flavor="half", image="tiny")
    place.service.until(lambda _: place.service.vm("q1").reason, "q1 is told why it waits")
    assert place.slices() == ["s1", "s2"]


def test_libvirtd_is_away_and_comes_back(place: Place, neighbour: None) -> None:
    pid = real_host.qemu_pid(place.service.vm("s1").id)
    command = stop_daemon()
    try:
        place.until_host(HostState.unreachable, because=ReasonCode.host_unreachable)
        place.another_host_works()
        assert place.slices() == ["s1", "s2"]
    finally:
        start_daemon(command)
    place.until_host(HostState.ready)
    place.service.until_vm("s1", "running", within=10)
    assert real_host.qemu_pid(place.service.vm("s1").id) == pid


def test_libvirtd_answers_nobody_and_a_stop_waits_for_it(place: Place, neighbour: None) -> None:
    """Calls on the old connection end when keepalive gives it up; a new one hangs, and is given up by the worker."""
    daemon = daemon_pid()
    os.kill(daemon, signal.SIGSTOP)
    try:
        place.post("/vms/s1/stop", 202, slices="release")
        place.service.until(lambda _: place.service.vm("s1").state is VMState.stopping, "it begins to stop")
        place.another_host_works()
        place.until_host(HostState.unreachable, because=ReasonCode.call_hangs, within=100)
        place.another_host_works()
        assert place.service.vm("s1").state is VMState.stopping
        assert place.slices() == ["s1", "s2"]
    finally:
        os.kill(daemon, signal.SIGCONT)
    place.until_host(HostState.ready)
    place.service.until_vm("s1", "stopped")
    place.service.until_vm("q1", "running", within=200)
    assert place.slices() == ["s2", "q1"]


def test_destroyed_by_hand_is_a_stop_that_keeps_its_slice_for_a_while(place: Place, neighbour: None) -> None:
    real_host.destroy(place.service.vm("q1").id)
    place.service.until_vm("q1", "stopped", within=20)
    assert place.service.vm("q1").wanted is Wanted.stopped
    assert place.told("q1")[-1] == ReasonCode.stopped_by_guest


def test_libvirtd_dies_while_it_starts_a_guest(place: Place, neighbour: None) -> None:
    """The reply to the call is lost, and nobody knows how far it came."""
    vm_id = place.service.vm("q1").id
    place.post("/vms/q1/start", 202)
    wait_for(lambda: vm_id in real_host.qemus())
    start_daemon(stop_daemon())
    place.service.until_vm("q1", "running", within=200)
    assert real_host.qemus().count(vm_id) == 1
    assert place.slices() == ["s2", "q1"]


def test_a_guest_powers_itself_off_and_its_slice_goes_to_the_next(place: Place, neighbour: None) -> None:
    place.post("/vms/s1/start", 202)
    q1 = place.service.vm("q1")
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]
    options += ["-o", "ServerAliveInterval=3"]  # nobody says goodbye
    ssh = ["ssh", "-i", str(place.key), "-o", "IdentitiesOnly=yes", *options, f"root@{q1.address}", "poweroff -f"]
    said = subprocess.run(ssh, capture_output=True, text=True, timeout=60)
    assert "denied" not in said.stderr
    place.service.until_vm("q1", "stopped", within=30)
    assert place.service.vm("q1").wanted is Wanted.stopped
    place.service.until(lambda _: not place.service.vm("q1").holds, "its slice goes back", within=20)
    place.service.until_vm("s1", "running", within=200)
    assert place.slices() == ["s1", "s2"]


def test_undefined_by_hand_is_lost_and_its_disk_is_kept(place: Place, neighbour: None) -> None:
    vm_id = place.service.vm("s1").id
    real_host.destroy(vm_id, undefine=True)
    place.service.until_vm("s1", "lost", within=20)
    place.service.until(lambda _: place.slices() == ["s2"], "its slice goes back", within=20)
    assert place.told("s1")[-1] == ReasonCode.domain_gone
    assert Path(FOLDER, f"{vm_id}.qcow2").exists()
    place.post("/vms/s1/release", 202)
    place.service.until_vm("s1", "gone", within=30)
    assert not [line for line in real_host.traces() if vm_id in line]


def test_the_host_reboots_and_what_ran_is_started_again(place: Place, foreign: Foreign, tmp_path: Path) -> None:
    place.service.kill()
    with real_host.another_boot_id(tmp_path):
        real_host.reboot()
        with real_host.hand() as host:  # of the foreign ones, too, only the definitions are left
            foreign |= {vm_id: as_it_is(host.lookupByUUIDString(vm_id)) for vm_id in foreign}
        place.service.start()
        place.service.until(lambda _: "restarted_after_host" in place.told("s2"), "the reboot is seen", within=60)
        place.service.until_vm("s2", "running", within=200)
        assert place.slices() == ["s2"]
        assert place.service.vm("q1").state is VMState.stopped
        place.service.end()


def test_everything_is_released_and_nothing_is_left(place: Place, before: frozenset[str], foreign: Foreign) -> None:
    place.service.start()
    place.service.until_ready()
    for name in ("s2", "q1"):
        place.post(f"/vms/{name}/release", 202)
        place.service.until_vm(name, "gone", within=60)
    assert place.slices() == []
    for name in ("h1", "f1"):
        answer(place.api.delete(f"/hosts/{name}", params={"wait": 30}), 202)
    place.service.until(lambda s: not s.exec(select(Host)).all(), "the hosts are forgotten")
    left = {line for line in real_host.traces() - before if not line.startswith("qemu")}
    assert left == {"domain nobodys", "domain another-ones"}
    with pytest.raises(httpx.HTTPStatusError):
        place.api.get("/vms/s2").raise_for_status()
