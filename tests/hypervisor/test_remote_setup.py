"""A host as `vmgpu host setup` leaves it, behind a real sshd: two keys, each good for one thing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path

import paramiko
import pytest

from tests.hypervisor.live import INSTALLATION, NAT
from tests.hypervisor.sshd import Sshd, running
from vmgpu import sshkeys
from vmgpu.errors import HostUnreachable
from vmgpu.hypervisor import HostKeys, HostRef, Network, NetworkRef, host_setup, hostctl_zip, ssh_login
from vmgpu.hypervisor.hostctl_client import HostCtlRefused, SshHostCtl
from vmgpu.hypervisor.kvm import KvmHost
from vmgpu.hypervisor.remote import Tunnel
from vmgpu.hypervisor.ssh_login import Login, NotLetIn

GUESTS = IPv4Network("127.77.0.0/22")  # loopback answers for all of it


@dataclass(frozen=True)
class SetUp:
    """The server, what lies on the host, and our side of the keys."""

    sshd: Sshd
    folder: Path
    public: host_setup.PublicKeys
    private: HostKeys

    def permit(self, network: IPv4Network) -> None:
        lines = host_setup.authorized_keys(self.public, network)
        (self.folder / "authorized_keys").write_text(lines.replace(host_setup.FOLDER, str(self.folder)))

    def ref(self, folder: Path, keys: HostKeys | None = None) -> HostRef:
        key = self.sshd.host_key
        found = HostRef("h3", "gpu1", self.sshd.uri, INSTALLATION, NAT, "tcg", folder, host_key=key)
        return replace(found, keys=keys or self.private)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SetUp]:
    monkeypatch.setattr(ssh_login, "ACCOUNT", "root")  # no account is made for a test
    folder, tree = tmp_path / "host", tmp_path / "tree"
    (folder / "bin").mkdir(parents=True)
    tree.mkdir()
    programs = {
        "libvirt": host_setup.gate().encode(),
        "hostctl.pyz": hostctl_zip.build(),
        "bin/sudo": f'#!/bin/sh\n[ "$1" = -n ] && [ $# = 2 ] && exec "$2" --sysroot {tree}\n'.encode(),
    }
    for name, content in programs.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755)
    pairs = [sshkeys.make_pair(name) for name in ("libvirt", "hostctl")]
    public = host_setup.PublicKeys(*(pair.public for pair in pairs))
    path = f"PATH={folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    with running(folder, authorized=folder / "authorized_keys", SetEnv=path) as server:
        made = SetUp(server, folder, public, HostKeys(*(pair.private for pair in pairs)))
        made.permit(GUESTS)
        yield made


def asked(ref: HostRef, key: str, command: str | None) -> tuple[int, bytes]:
    """How a command ends with one of the keys, and what it says; None: a shell."""
    login = Login(ref, key)
    channel = login.transport().open_session(timeout=10)
    channel.set_combine_stderr(True)
    if command is None:
        channel.invoke_shell()
    else:
        channel.exec_command(command)
    channel.shutdown_write()
    said = b""
    while piece := channel.recv(65536):
        said += piece
    ended = channel.recv_exit_status()
    login.close()
    return ended, said


def test_hostctl_answers_on_its_own_key(there: SetUp, tmp_path: Path) -> None:
    login = Login(there.ref(tmp_path), there.private.hostctl)
    ctl = SshHostCtl(login)
    assert ctl.call("version")["build"] == hostctl_zip.VERSION
    assert ctl.call("facts")["pci"] == []
    with pytest.raises(HostCtlRefused) as caught:
        ctl.call("id; id")
    assert caught.value.said == "unknown_verb"
    login.transport().close()
    assert ctl.call("facts")["pci"] == []  # it logs in again
    login.close()


@pytest.mark.parametrize("command", [None, "id", "sh -c 'virt-ssh-helper 'qemu:///system''; id", "hostctl", ""])
def test_the_libvirt_key_gives_no_shell(there: SetUp, tmp_path: Path, command: str | None) -> None:
    ref = there.ref(tmp_path)
    if command is None:
        with pytest.raises(paramiko.SSHException):  # no terminal, no shell
            login = Login(ref, there.private.libvirt)
            login.transport().open_session(timeout=10).get_pty()
        login.close()
    ended, said = asked(ref, there.private.libvirt, command)
    assert ended == 126 and b"nothing else" in said and b"uid=" not in said


@pytest.mark.parametrize("command", [None, "id", "version --sysroot /tmp", "--sysroot"])
def test_the_hostctl_key_gives_no_shell(there: SetUp, tmp_path: Path, command: str | None) -> None:
    ended, said = asked(there.ref(tmp_path), there.private.hostctl, command)
    assert ended == 2 and b"unknown_verb" in said and b"uid=" not in said


def test_channels_lead_to_guests_port_22_alone(there: SetUp, tmp_path: Path) -> None:
    tunnel = Tunnel(there.ref(tmp_path))
    with socket.create_server(("127.77.0.5", 22)) as guest, socket.create_server(("127.77.0.5", 0)) as other:
        channel = tunnel.dial("127.77.0.5", 22)
        met, _ = guest.accept()
        met.sendall(b"SSH-2.0-guest\r\n")
        assert channel.recv(100) == b"SSH-2.0-guest\r\n"
        met.close()
        channel.close()
        for address, port in (("127.77.0.5", other.getsockname()[1]), ("127.0.0.1", there.sshd.port)):
            with pytest.raises(ConnectionRefusedError, match="rohibited"):
                tunnel.dial(address, port)
    with pytest.raises(ConnectionRefusedError, match="rohibited"):
        tunnel.dial("127.77.0.1", 22)  # the gateway is the host
    assert tunnel.permits(str(GUESTS))
    assert not tunnel.permits("127.78.0.0/22")
    with pytest.raises(paramiko.SSHException, match="denied"):
        tunnel._login.transport().request_port_forward("127.0.0.1", 0)
    tunnel.close()
    login = Login(there.ref(tmp_path), there.private.hostctl)
    with pytest.raises(paramiko.ChannelException):
        login.transport().open_channel("direct-tcpip", ("127.77.0.5", 22), ("127.0.0.1", 0), timeout=10)
    login.close()


def test_a_key_that_the_host_does_not_know_is_said(there: SetUp, tmp_path: Path) -> None:
    ours = HostKeys(sshkeys.make_pair().private, sshkeys.make_pair().private)
    login = Login(there.ref(tmp_path, ours), ours.hostctl)
    with pytest.raises(NotLetIn) as caught:
        login.transport()
    assert "vmgpu host setup gpu1" in caught.value.hint


def test_guests_on_a_bridge_are_not_reached_through_the_host(there: SetUp, tmp_path: Path) -> None:
    host = KvmHost(replace(there.ref(tmp_path), network=NetworkRef(Network.bridge, "br0")), on_change=lambda _vm: None)
    assert host.dial("127.0.0.1", 1) is None
    host.close()


@pytest.mark.libvirt
def test_a_survey_through_both_commands(uri: str, there: SetUp, tmp_path: Path) -> None:
    host = KvmHost(there.ref(tmp_path / "state"), on_change=lambda _vm: None)
    facts = host.survey()
    assert facts.network == "vmgpu" and facts.memory_mib
    said = [each for each in facts.warnings if "vmgpu host setup" in each]
    assert len(said) == 1 and facts.network_range in said[0]  # this range was not permitted
    host.close()

    there.permit(IPv4Network(facts.network_range))
    assert not [each for each in host.survey().warnings if "vmgpu host setup" in each]
    (there.folder / "hostctl.pyz").unlink()
    facts = host.survey()
    assert facts.memory_mib
    assert [each for each in facts.warnings if "hostctl" in each and "vmgpu host setup gpu1 --run" in each]
    host.close()


@pytest.mark.libvirt
def test_libvirt_does_not_come_in_with_the_other_key(uri: str, there: SetUp, tmp_path: Path) -> None:
    swapped = HostKeys(there.private.hostctl, there.private.libvirt)
    host = KvmHost(there.ref(tmp_path / "state", swapped), on_change=lambda _vm: None)
    with pytest.raises(HostUnreachable):
        host.domains()
    host.close()
