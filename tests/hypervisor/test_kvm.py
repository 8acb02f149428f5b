"""VMs on a real libvirtd with real QEMU, and every way their host can get in between."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import libvirt
import pytest

from tests.hypervisor.conftest import INSTALLATION, SpecMaker, wait_address
from vmgpu.errors import HostRefused, HostUnreachable
from vmgpu.hypervisor import (
    DomainSeen,
    Emulated,
    HostRef,
    ImageRef,
    Network,
    NetworkRef,
    Power,
    VMSpec,
    domain,
    transfer,
    volumes,
)
from vmgpu.hypervisor.kvm import KvmHost

pytestmark = [pytest.mark.libvirt, pytest.mark.timeout(180)]


def silent(_percent: int) -> None:
    pass


def build(host: KvmHost, spec: VMSpec) -> None:
    host.ensure_disk(spec)
    host.ensure_defined(spec)


def boot(host: KvmHost, spec: VMSpec) -> str:
    build(host, spec)
    host.ensure_running(spec.id)
    return wait_address(host, spec)


def wait_for(what: Callable[[], object], within: float = 30) -> None:
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def pool_names() -> set[str]:
    with closing(libvirt.open("qemu:///system")) as connection:
        return set(connection.storagePoolLookupByName("vmgpu").listVolumes())


def daemon_pid() -> int:
    with socket.socket(socket.AF_UNIX) as knock:
        knock.connect("/run/libvirt/libvirt-sock")
        return int(struct.unpack("3i", knock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def stop_daemon() -> list[str]:
    """End libvirtd, its guests run on; the command that starts it again."""
    pid = daemon_pid()
    command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    os.kill(pid, signal.SIGKILL)
    stat = Path(f"/proc/{pid}/stat")
    wait_for(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")
    return command


def start_daemon(command: list[str]) -> None:
    subprocess.run(command, check=True)
    with socket.socket(socket.AF_UNIX) as knock:
        wait_for(lambda: knock.connect_ex("/run/libvirt/libvirt-sock") == 0)


def test_a_vm_boots_speaks_stops_and_leaves_nothing(host: KvmHost, make_spec: SpecMaker, told: list[str]) -> None:
    spec = make_spec(devices=(Emulated(64, "A100-40GB 3g.20gb (emulated)"),))
    before = pool_names()
    address = boot(host, spec)
    with socket.create_connection((address, 22), 20) as guest:
        assert guest.recv(4) == b"SSH-"
    assert b"tiny: seed on /dev/vdb" in host.console(spec.id)
    assert host.look(spec.id) == DomainSeen(spec.id, spec.name, Power.running, "", INSTALLATION, 1)
    assert spec.id in told
    assert host.dial(address, 22) is None
    assert {name.split(".", 1)[-1] for name in host.leftovers(spec.id) if not name.startswith("domain")} == {
        "qcow2",
        "seed.iso",
        "console.log",
        "nvram.fd",
    }

    host.shutdown(spec.id)
    wait_for(lambda: host.look(spec.id).power is Power.off)
    assert host.look(spec.id).why == "shutdown"
    host.shutdown(spec.id)
    host.power_off(spec.id)

    host.erase(spec.id)
    host.erase(spec.id)
    assert host.look(spec.id).power is Power.absent
    assert host.leftovers(spec.id) == ()
    assert pool_names() == before
    assert not list(Path(volumes.FOLDER).glob(f"{spec.id}*"))
    assert not [path for path in Path("/var/lib/libvirt/qemu").rglob("*") if spec.name in path.name]


def test_disk_seed_and_domain_are_made_in_a_moment(host: KvmHost, make_spec: SpecMaker) -> None:
    """All but the start of QEMU, which costs what it costs; the best of three, since the machine has other work."""
    costs = []
    for _ in range(3):
        spec = make_spec()
        started = time.monotonic()
        build(host, spec)
        costs.append(time.monotonic() - started)
    assert min(costs) < 0.3


def test_a_disk_removed_behind_libvirts_back_is_gone(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    host.ensure_disk(spec)
    Path(volumes.FOLDER, f"{spec.id}.qcow2").unlink()
    assert not host.has_disk(spec.id)
    host.ensure_disk(spec)
    assert host.has_disk(spec.id)


def test_everything_may_be_repeated(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    for _ in range(2):
        build(host, spec)
        host.ensure_running(spec.id)
    first = host.look(spec.id)
    build(host, replace(spec, title="Running is left alone", build=2))
    assert host.look(spec.id) == first
    assert [each.id for each in host.domains()].count(spec.id) == 1
    host.power_off(spec.id)
    assert host.look(spec.id).why == "destroyed"
    host.undefine(spec.id)
    host.undefine(spec.id)
    assert host.has_disk(spec.id)
    host.drop_disk(spec.id)
    host.drop_disk(spec.id)
    assert not host.has_disk(spec.id)


def test_an_off_domain_is_defined_anew_and_keeps_its_nvram(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    host.ensure_running(spec.id)
    host.power_off(spec.id)
    nvram = Path(volumes.FOLDER, f"{spec.id}.nvram.fd")
    nvram.write_bytes(b"remembered" + nvram.read_bytes()[10:])
    host.ensure_defined(replace(spec, name=f"{spec.name}-renamed", build=2, memory_mib=128))
    assert host.look(spec.id) == DomainSeen(spec.id, f"{spec.name}-renamed", Power.off, "unknown", INSTALLATION, 2)
    assert nvram.read_bytes().startswith(b"remembered")


def test_the_seed_is_nobody_elses_to_read(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    seed = Path(volumes.FOLDER, f"{spec.id}.seed.iso")
    assert seed.stat().st_mode & 0o777 == 0o600
    host.ensure_running(spec.id)
    assert seed.stat().st_mode & 0o777 == 0o600


def test_a_disk_is_as_large_as_asked_and_never_smaller_than_its_image(host: KvmHost, make_spec: SpecMaker) -> None:
    large, small = make_spec(disk_gib=3), make_spec(disk_gib=0)
    for spec, gib in ((large, "3 GiB"), (small, "64 MiB")):
        host.ensure_disk(spec)
        told = subprocess.run(
            ["qemu-img", "info", f"{volumes.FOLDER}/{spec.id}.qcow2"], capture_output=True, text=True, check=True
        ).stdout
        assert f"virtual size: {gib}" in told
        assert "backing file format: qcow2" in told


@pytest.mark.parametrize("left", ["", "qemu-img create -f qcow2 {} 1G"])
def test_a_disk_that_was_never_finished_is_made_anew(host: KvmHost, make_spec: SpecMaker, left: str) -> None:
    spec = make_spec()
    path = Path(volumes.FOLDER, f"{spec.id}.qcow2")
    if left:
        subprocess.run(left.format(path).split(), check=True, stdout=subprocess.DEVNULL)
    else:
        path.touch()
    with closing(libvirt.open("qemu:///system")) as connection:
        connection.storagePoolLookupByName("vmgpu").refresh()
    assert not host.has_disk(spec.id)
    host.ensure_disk(spec)
    assert host.has_disk(spec.id)


def test_a_half_copied_image_is_not_there_and_is_copied_again(
    host: KvmHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = tmp_path / "master.raw"
    master.write_bytes(os.urandom(3 * 1024 * 1024))
    image = ImageRef("i", f"half-{uuid.uuid4()}.raw", 3)

    class Killed(BaseException):
        pass

    def die(percent: int) -> None:
        if percent > 30:
            raise Killed

    with pytest.raises(Killed):
        host.ensure_image(image, master, progress=die)
    assert image.volume in pool_names()
    assert not host.has_image(image)

    # the copy arrived, but not as it was sent
    with monkeypatch.context() as broken:
        broken.setattr(transfer, "checksum", lambda *_args, **_more: "other")
        with pytest.raises(HostRefused, match="differs"):
            host.ensure_image(image, master, progress=silent)
    assert not host.has_image(image)

    said: list[int] = []
    host.ensure_image(image, master, progress=said.append)
    assert host.has_image(image)
    assert said == sorted(said) and said[-1] == 100 and len(said) > 5
    assert Path(volumes.FOLDER, image.volume).read_bytes() == master.read_bytes()
    host.drop_image(image)
    host.drop_image(image)
    assert not [name for name in pool_names() if name.startswith(image.volume)]


def test_two_who_copy_one_image_at_once_copy_it_once(ref: HostRef, tmp_path: Path) -> None:
    master = tmp_path / "master.raw"
    master.write_bytes(os.urandom(4 * 1024 * 1024))
    image = ImageRef("i", f"both-{uuid.uuid4()}.raw", 4)
    said: list[list[int]] = [[], []]
    hosts = [KvmHost(ref, on_change=lambda _vm: None) for _ in said]
    threads = [
        threading.Thread(target=host.ensure_image, args=(image, master), kwargs={"progress": heard.append})
        for host, heard in zip(hosts, said, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(bool, said)) == [False, True]
    assert hosts[0].has_image(image)
    hosts[0].drop_image(image)
    for host in hosts:
        host.close()


def test_an_image_under_a_disk_stays(host: KvmHost, make_spec: SpecMaker, image: ImageRef) -> None:
    spec = make_spec()
    host.ensure_disk(spec)
    with pytest.raises(HostRefused, match="stands on image"):
        host.drop_image(image)
    assert host.has_image(image)


def test_a_disk_without_its_image_is_refused(host: KvmHost, make_spec: SpecMaker) -> None:
    with pytest.raises(HostRefused, match="not on the host"):
        host.ensure_disk(make_spec(image=ImageRef("x", "nowhere.qcow2", 1)))
    with pytest.raises(HostRefused, match="not a file name"):
        host.has_image(ImageRef("x", "../nowhere", 1))


def test_another_installations_domain_is_never_touched(ref: HostRef, host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    host.ensure_running(spec.id)
    other = KvmHost(replace(ref, installation="another"), on_change=lambda _vm: None)
    for verb in ("shutdown", "power_off", "undefine", "erase", "ensure_running", "drop_disk"):
        with pytest.raises(HostRefused, match="not ours"):
            getattr(other, verb)(spec.id)
    with pytest.raises(HostRefused, match="not ours"):
        other.ensure_defined(replace(spec, installation="another"))
    assert other.look(spec.id).installation == INSTALLATION
    other.close()
    assert host.look(spec.id).power is Power.running
    assert host.has_disk(spec.id)


def test_a_domain_undefined_by_hand_is_absent_and_erased(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    host.ensure_running(spec.id)
    with closing(libvirt.open("qemu:///system")) as connection:
        connection.lookupByUUIDString(spec.id).undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM)
    assert host.look(spec.id).power is Power.running  # until its power goes
    host.erase(spec.id)
    assert host.leftovers(spec.id) == ()
    with pytest.raises(HostRefused, match="not defined"):
        host.ensure_running(spec.id)


def test_rotated_console_logs_go_too(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    Path(volumes.FOLDER, f"{spec.id}.console.log.0").write_text("older")
    assert f"{spec.id}.console.log.0" in host.leftovers(spec.id)
    host.erase(spec.id)
    assert host.leftovers(spec.id) == ()


def test_the_console_is_its_end(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    assert host.console(spec.id) == b""
    build(host, spec)
    Path(volumes.FOLDER, f"{spec.id}.console.log").write_bytes(b"0123456789" * 100_000)
    assert host.console(spec.id, limit=5) == b"56789"
    assert len(host.console(spec.id)) == 256 * 1024


def test_a_disk_is_copied_into_one_file(host: KvmHost, make_spec: SpecMaker, tmp_path: Path, master: Path) -> None:
    spec = make_spec()
    build(host, spec)
    said: list[int] = []
    target = tmp_path / "flat.qcow2"
    (tmp_path / "flat.qcow2.part").write_text("of an earlier try")
    host.ensure_running(spec.id)
    with pytest.raises(HostRefused, match="running"):
        host.copy_flat(spec.id, target, progress=silent)
    host.power_off(spec.id)
    host.copy_flat(spec.id, target, progress=said.append)
    assert said[-1] == 100 and said == sorted(said)
    assert [path.name for path in tmp_path.glob("flat*")] == ["flat.qcow2"]
    info = subprocess.run(["qemu-img", "info", target], capture_output=True, text=True, check=True).stdout
    assert "backing file" not in info and "virtual size: 1 GiB" in info
    host.drop_disk(spec.id)
    with pytest.raises(HostRefused, match="no disk"):
        host.copy_flat(spec.id, target, progress=silent)


def test_a_copy_that_fails_says_why_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"not a disk")
    with pytest.raises(HostRefused, match="not in qcow2 format"):
        transfer.convert(tmp_path / "broken", tmp_path / "flat", progress=silent)
    assert not (tmp_path / "flat").exists()


def test_libvirtd_restarts_under_a_running_vm(host: KvmHost, make_spec: SpecMaker, told: list[str]) -> None:
    spec = make_spec()
    boot(host, spec)
    command = stop_daemon()
    try:
        with pytest.raises(HostUnreachable):
            host.look(spec.id)
        with pytest.raises(HostUnreachable):
            host.ensure_running(spec.id)
    finally:
        start_daemon(command)
    assert host.look(spec.id) == DomainSeen(spec.id, spec.name, Power.running, "", INSTALLATION, 1)
    host.ensure_running(spec.id)
    assert host.has_image(spec.image)
    time.sleep(1)  # a domain that ends while the new libvirtd still takes its guests over ends without an event
    told.clear()
    host.power_off(spec.id)
    wait_for(lambda: spec.id in told)


def test_libvirtd_dies_during_a_wait(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    host.ensure_running(spec.id)
    outcome: list[object] = []

    def wait() -> None:
        try:
            outcome.append(host.wait_guest(spec.id, 60))
        except HostUnreachable as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)
    start_daemon(stop_daemon())
    waiting.join(1)
    # Either it met the daemon's absence, or it found the new one and waits on there, until the guest goes.
    host.power_off(spec.id)
    waiting.join(10)
    assert not waiting.is_alive()
    assert outcome[0] is False or isinstance(outcome[0], HostUnreachable)


def test_waiting_for_the_agent_is_an_event(
    host: KvmHost, make_spec: SpecMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec()
    assert host.wait_guest(spec.id, 5) is False  # no such domain: nothing to wait for
    build(host, spec)
    assert host.wait_guest(spec.id, 5) is False  # off
    host.ensure_running(spec.id)
    started = time.monotonic()
    assert host.wait_guest(spec.id, 0.5) is False  # the tiny guest has no agent
    assert 0.4 < time.monotonic() - started < 3
    assert host.address(spec.id, spec.mac, NetworkRef(Network.bridge, "br0")) is None

    threading.Timer(0.5, host.power_off, (spec.id,)).start()
    started = time.monotonic()
    assert host.wait_guest(spec.id, 60) is False  # powered off meanwhile
    assert time.monotonic() - started < 10

    host.ensure_running(spec.id)
    connected = False
    monkeypatch.setattr(domain, "agent_connected", lambda _domain: connected)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(host.wait_guest(spec.id, 60)))
    waiting.start()
    time.sleep(0.5)
    connected = True
    for heard in host._link._waiting[spec.id]:  # what the agent's event does
        heard.set()
    waiting.join(5)
    assert answers == [True]


def test_a_vm_that_will_not_start_is_refused_in_libvirts_words(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    host.drop_disk(spec.id)
    with pytest.raises(HostRefused, match="qcow2"):
        host.ensure_running(spec.id)
    assert host.look(spec.id).power is Power.off


def test_a_survey_makes_pool_and_network_ready_without_autostart(host: KvmHost) -> None:
    facts = host.survey()
    assert (facts.pool, facts.network) == ("vmgpu", "vmgpu")
    assert facts.network_range.endswith("/22")
    assert facts.disk_total_gib >= facts.disk_free_gib > 0
    assert facts.boot_id == host.boot_id()
    with closing(libvirt.open("qemu:///system")) as connection:
        assert not connection.networkLookupByName("vmgpu").autostart()
        connection.networkLookupByName("vmgpu").destroy()
        connection.storagePoolLookupByName("vmgpu").destroy()
    assert host.survey().network_range == facts.network_range
    with closing(libvirt.open("qemu:///system")) as connection:
        assert connection.networkLookupByName("vmgpu").isActive()
        assert connection.storagePoolLookupByName("vmgpu").isActive()


def test_leaving_a_host_takes_what_is_nobodys_use(host: KvmHost, make_spec: SpecMaker) -> None:
    spec = make_spec()
    build(host, spec)
    host.withdraw()
    assert host.has_disk(spec.id) and host.has_image(spec.image)
    host.undefine(spec.id)
    host.withdraw()
    assert host.has_disk(spec.id) and host.has_image(spec.image)
    host.erase(spec.id)
    host.withdraw()
    host.withdraw()
    with closing(libvirt.open("qemu:///system")) as connection:
        assert "vmgpu" not in [each.name() for each in connection.listAllNetworks() + connection.listAllStoragePools()]
    assert not Path(volumes.FOLDER).exists()


def test_leaving_a_host_keeps_what_others_made(host: KvmHost) -> None:
    host.survey()
    stranger = Path(volumes.FOLDER, "somebodys.iso")
    stranger.touch()
    with closing(libvirt.open("qemu:///system")) as connection:
        connection.networkLookupByName("vmgpu").destroy()
        connection.networkLookupByName("vmgpu").undefine()
        connection.networkDefineXML("<network><name>vmgpu</name></network>")
        host.withdraw()
        assert connection.storagePoolLookupByName("vmgpu").isActive()
        connection.networkLookupByName("vmgpu").undefine()
    stranger.unlink()


@pytest.fixture
def link_name() -> Iterator[str]:
    name = "vmt0"
    subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
    yield name
    subprocess.run(["ip", "link", "del", name], check=True)


def test_a_new_network_keeps_clear_of_addresses_and_routes(ref: HostRef, host: KvmHost, link_name: str) -> None:
    assert host.survey().network_range == "192.168.128.0/22"
    subprocess.run(["ip", "addr", "add", "192.168.132.7/24", "dev", link_name], check=True)
    subprocess.run(["ip", "link", "set", link_name, "up"], check=True)
    subprocess.run(["ip", "route", "add", "192.168.136.0/21", "dev", link_name], check=True)
    opened = KvmHost(replace(ref, network=NetworkRef(Network.nat, "vmgpu-second")), on_change=lambda _vm: None)
    try:
        found = opened.survey().network_range
    finally:
        opened.close()
        with closing(libvirt.open("qemu:///system")) as connection:
            network = connection.networkLookupByName("vmgpu-second")
            network.destroy()
            network.undefine()
    assert found == "192.168.144.0/22"


def test_a_bridge_must_exist(ref: HostRef, host: KvmHost, make_spec: SpecMaker, link_name: str) -> None:
    subprocess.run(["ip", "link", "set", link_name, "up"], check=True)
    bridged = KvmHost(replace(ref, network=NetworkRef(Network.bridge, link_name)), on_change=lambda _vm: None)
    assert (bridged.survey().network, bridged.survey().network_range) == (link_name, "")
    spec = make_spec(network=NetworkRef(Network.bridge, link_name))
    build(bridged, spec)
    bridged.ensure_running(spec.id)
    bridged.erase(spec.id)
    bridged.close()
    for name in ("nobridge0", "lo", "a/b", "a" * 16):
        with pytest.raises(HostRefused):
            host.ensure_defined(replace(spec, network=NetworkRef(Network.bridge, name)))


def test_many_at_once(host: KvmHost, make_spec: SpecMaker) -> None:
    specs = [make_spec(memory_mib=64) for _ in range(6)]
    errors: list[BaseException] = []

    def live(spec: VMSpec) -> None:
        try:
            build(host, spec)
            host.ensure_running(spec.id)
            host.erase(spec.id)
            assert host.leftovers(spec.id) == ()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=(spec,)) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
