"""A host over SSH: the pinned key on both ways in, and a whole VM through a real sshd."""

from __future__ import annotations

import io
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import paramiko
import pytest

from tests.hypervisor.live import INSTALLATION, NAT, SpecMaker, wait_address
from tests.hypervisor.sshd import Sshd, running
from vmgpu import guest, sshkeys
from vmgpu.errors import HostRefused, HostUnreachable
from vmgpu.hypervisor import HostRef, ImageRef, Power
from vmgpu.hypervisor.kvm import KvmHost
from vmgpu.hypervisor.remote import Tunnel, libvirt_uri

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBp7U1w0bXh0bXh0bXh0bXh0bXh0bXh0bXh0bXh0bXh0"


def a_ref(folder: Path, uri: str = "qemu+ssh://root@gpu1:2222/system", key: str | None = KEY) -> HostRef:
    return HostRef("h2", "gpu1", uri, INSTALLATION, NAT, "tcg", folder, host_key=key)


def test_this_machine_is_opened_as_it_is(tmp_path: Path) -> None:
    assert libvirt_uri(a_ref(tmp_path, "qemu:///system", None)) == "qemu:///system"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pinned", [KEY, f"gpu1 {KEY} a comment", f"[gpu1]:2222 {KEY}"])
def test_libvirt_gets_a_client_that_trusts_the_pinned_key_alone(tmp_path: Path, pinned: str) -> None:
    folder = tmp_path / "with a space"
    parts = urlsplit(libvirt_uri(a_ref(folder, "qemu+ssh://root@gpu1:2222/system?keyfile=/k%20ey", pinned)))
    assert (parts.scheme, parts.netloc, parts.path) == ("qemu+ssh", "root@gpu1:2222", "/system")
    query = parse_qs(parts.query)
    assert query["keyfile"] == ["/k ey"]
    client = Path(query["command"][0])
    assert client.stat().st_mode & 0o777 == 0o700
    assert client.parent == folder / "h2"  # other hosts have their own
    assert (client.parent / "known_hosts").read_text() == f"vmgpu-host {KEY}\n"
    shown = subprocess.run([client, "-G", "gpu1"], capture_output=True, text=True, check=True).stdout.splitlines()
    settings = dict(line.split(" ", 1) for line in shown if " " in line)
    assert settings["stricthostkeychecking"] == "true"
    assert settings["batchmode"] == "yes"
    assert settings["hostkeyalias"] == "vmgpu-host"
    assert settings["userknownhostsfile"].strip('"') == str(client.parent / "known_hosts")


@pytest.mark.parametrize(
    ("uri", "key", "words"),
    [
        ("qemu+ssh://root@gpu1/system?no_verify=1", KEY, "always verified"),
        ("qemu+ssh://root@gpu1/system?no_verify", KEY, "always verified"),
        ("qemu+tcp://gpu1/system", KEY, "not a host address"),
        ("qemu+ssh://root@gpu1/system", None, "no pinned host key"),
        ("qemu+ssh://root@gpu1/system", "ssh-ed25519", "no pinned host key"),
    ],
)
def test_nothing_is_opened_unverified(tmp_path: Path, uri: str, key: str | None, words: str) -> None:
    with pytest.raises(HostRefused, match=words):
        libvirt_uri(a_ref(tmp_path, uri, key))


class Wire:
    """An SSH login whose channels to guests time out; `host`: what the host itself says to a session."""

    def __init__(self, *, active: bool = True, host: Exception | None = None) -> None:
        self.active, self._host = active, host

    def is_active(self) -> bool:
        return self.active

    def close(self) -> None:
        self.active = False

    def open_channel(self, *_: Any, **__: Any) -> Any:
        raise paramiko.SSHException("Timeout opening channel.")

    def open_session(self, **_: Any) -> io.BytesIO:
        if self._host:
            raise self._host
        return io.BytesIO()


@pytest.mark.parametrize("host", [None, paramiko.ChannelException(1, "Administratively prohibited")])
def test_a_guest_that_drops_packets_is_not_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Exception | None
) -> None:
    wire, tunnel = Wire(host=host), Tunnel(a_ref(tmp_path))
    monkeypatch.setattr(tunnel._login, "transport", lambda: wire)
    with pytest.raises(TimeoutError, match=r"10\.0\.0\.9"):
        tunnel.dial("10.0.0.9", 22)
    assert wire.active
    door = guest.Door("10.0.0.9", 22, "vmgpu", sshkeys.make_pair("x").private, KEY, dial=tunnel.dial)
    with pytest.raises(guest.NotYet):
        guest.host_key_matches(door)


@pytest.mark.parametrize("wire", [Wire(active=False), Wire(host=paramiko.SSHException("Timeout opening channel."))])
def test_a_host_that_is_silent_itself_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    tunnel = Tunnel(a_ref(tmp_path))
    monkeypatch.setattr(tunnel._login, "transport", lambda: wire)
    with pytest.raises(HostUnreachable):
        tunnel.dial("10.0.0.9", 22)
    assert not wire.active  # the next try logs in again


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    folder = tmp_path_factory.mktemp("sshd")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "login")], check=True)
    with running(folder, authorized=folder / "login.pub") as server:
        yield server


def test_a_channel_reaches_what_only_the_host_reaches(sshd: Sshd, tmp_path: Path) -> None:
    tunnel = Tunnel(a_ref(tmp_path, f"{sshd.uri}?keyfile={sshd.folder / 'login'}", sshd.host_key))
    with socket.create_server(("127.0.0.1", 0)) as guest:
        port = guest.getsockname()[1]
        for _ in range(2):
            channel = tunnel.dial("127.0.0.1", port)
            met, _ = guest.accept()
            met.sendall(b"SSH-2.0-guest\r\n")
            assert channel.recv(100) == b"SSH-2.0-guest\r\n"
            met.close()
            channel.close()
    with pytest.raises(ConnectionRefusedError):
        tunnel.dial("127.0.0.1", port)
    tunnel.close()
    tunnel.close()


def test_another_host_key_is_refused_on_both_ways(sshd: Sshd, tmp_path: Path) -> None:
    ref = a_ref(tmp_path, f"{sshd.uri}?keyfile={sshd.folder / 'login'}", KEY)
    with pytest.raises(HostRefused, match="another host key"):
        Tunnel(ref).dial("127.0.0.1", 1)
    host = KvmHost(ref, on_change=lambda _vm: None)
    with pytest.raises(HostUnreachable):  # in ssh's words, or in libvirt's where ssh has ended before it could be read
        host.domains()
    host.close()


def test_a_host_that_is_away_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(HostUnreachable):
        Tunnel(a_ref(tmp_path, "qemu+ssh://root@127.0.0.1:1/system")).dial("10.0.0.1", 22)


@pytest.mark.libvirt
@pytest.mark.timeout(180)
def test_a_vm_lives_on_a_remote_host(
    uri: str, sshd: Sshd, make_spec: SpecMaker, master: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same machine, reached as if it were another: nothing of its file system is used."""
    ref = a_ref(tmp_path / "state", f"{sshd.uri}?keyfile={sshd.folder / 'login'}", sshd.host_key)
    host = KvmHost(ref, on_change=lambda _vm: None)
    assert host.boot_id() == host.boot_id() != ""
    assert host.survey().network == "vmgpu"
    image = ImageRef("tiny", "remote.qcow2", 64, has_init=False)
    said: list[int] = []
    host.ensure_image(image, master, progress=said.append)
    assert said[-1] == 100 and host.has_image(image)

    spec = replace(make_spec(), image=image)
    host.ensure_disk(spec)
    host.ensure_defined(spec)
    host.ensure_running(spec.id)
    address = wait_address(host, spec)
    channel: Any = None
    for _ in range(100):
        try:
            channel = host.dial(address, 22)
            break
        except ConnectionRefusedError:
            time.sleep(0.2)
    assert channel.recv(4) == b"SSH-"
    channel.close()
    assert b"tiny: ready" in host.console(spec.id)
    assert len(host.leftovers(spec.id)) == 5

    host.power_off(spec.id)
    target = tmp_path / "flat.qcow2"
    host.copy_flat(spec.id, target, progress=said.append)
    info = subprocess.run(["qemu-img", "info", target], capture_output=True, text=True, check=True).stdout
    assert "backing file" not in info and "virtual size: 1 GiB" in info
    subprocess.run(["qemu-img", "check", target], check=True, stdout=subprocess.DEVNULL)

    host.erase(spec.id)
    assert host.look(spec.id).power is Power.absent
    assert host.leftovers(spec.id) == ()
    host.drop_image(image)
    host.close()
