"""The service's side: whatever a host says or does not say becomes a result, a refusal or an unreachable host."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest

from vmgpu.errors import HostRefused, HostUnreachable
from vmgpu.hypervisor import hostctl_client, hostctl_zip
from vmgpu.hypervisor.hostctl_client import HostCtl, HostCtlRefused, LocalHostCtl, SshHostCtl
from vmgpu.hypervisor.ssh_login import Login

PF = "0000:41:00.0"
FINE = b'{"ok":true,"result":{"a":1}}\n'


@dataclass
class Said:
    """What a host answers to one command; `status` None: the connection ends without one."""

    out: bytes = b""
    err: bytes = b""
    status: int | None = 0
    hangs: bool = False


class Host(paramiko.ServerInterface):
    """An SSH server that answers what it is told, or refuses sessions."""

    def __init__(self, answer: Callable[[str, bytes], Said], *, sessions: bool = True) -> None:
        self._answer, self._sessions = answer, sessions
        self.asked: list[tuple[str, bytes]] = []
        self.over = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "none"

    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED if self._sessions else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._run, args=(channel, command.decode()), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, command: str) -> None:
        line = b""
        while piece := channel.recv(65536):
            line += piece
        self.asked.append((command, line))
        said = self._answer(command, line)
        try:
            channel.sendall_stderr(said.err)
            channel.sendall(said.out)
            if said.hangs:
                self.over.wait(30)
            if said.status is not None:
                channel.send_exit_status(said.status)
            channel.close()
        except (OSError, EOFError, paramiko.SSHException):
            return  # the client has heard enough


class Kept(Login):
    """A login that is there already, and is not made again."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self.name, self._transport = "gpu1", transport

    def transport(self) -> paramiko.Transport:
        return self._transport

    def close(self) -> None:
        self._transport.close()


Connect = Callable[[Host], SshHostCtl]


@pytest.fixture
def connect() -> Iterator[Connect]:
    opened: list[paramiko.Transport] = []
    hosts: list[Host] = []
    key = paramiko.ECDSAKey.generate()

    def open_to(host: Host) -> SshHostCtl:
        ours, theirs = socket.socketpair()
        server = paramiko.Transport(theirs)
        server.add_server_key(key)
        server.start_server(event=threading.Event(), server=host)
        transport = paramiko.Transport(ours)
        transport.start_client(timeout=10)
        transport.auth_none("root")
        opened.extend((transport, server))
        hosts.append(host)
        return SshHostCtl(Kept(transport))

    yield open_to
    for host in hosts:
        host.over.set()
    for each in opened:
        each.close()


def always(said: Said) -> Callable[[str, bytes], Said]:
    return lambda command, line: said


def test_a_verb_over_ssh(connect: Connect) -> None:
    host = Host(always(Said(FINE)))
    ctl: HostCtl = connect(host)
    assert ctl.call("vgpu", {"action": "clear", "address": PF}) == {"a": 1}
    assert ctl.call("facts") == {"a": 1}
    assert host.asked == [
        ("vgpu", b'{"action": "clear", "address": "0000:41:00.0"}\n'),
        ("facts", b"{}\n"),
    ]


def test_the_zipapp_itself_over_ssh(connect: Connect, tmp_path: Path) -> None:
    app = tmp_path / "hostctl.pyz"
    app.write_bytes(hostctl_zip.build())

    def run(command: str, line: bytes) -> Said:
        ran = subprocess.run(
            [sys.executable, "-I", app],
            input=line,
            capture_output=True,
            check=False,
            env={**os.environ, "SSH_ORIGINAL_COMMAND": command},
        )
        return Said(ran.stdout, ran.stderr, ran.returncode)

    ctl = connect(Host(run))
    assert ctl.call("version")["build"] == hostctl_zip.VERSION
    with pytest.raises(HostCtlRefused, match=r"gpu1: There is no function 00ff:41:00\.0") as caught:
        ctl.call("reset", {"address": "00ff:41:00.0"})
    assert caught.value.said == "not_found"


def test_a_refusal_keeps_its_code_and_hint(connect: Connect) -> None:
    error = {"code": "refused", "message": "Type 5", "hint": "The card is full.", "errno": 5}
    ctl = connect(Host(always(Said(json.dumps({"ok": False, "error": error}).encode() + b"\n", status=1))))
    with pytest.raises(HostCtlRefused) as caught:
        ctl.call("vgpu")
    no = caught.value
    assert (no.message, no.hint, no.said, no.errno, no.retry) == (
        "gpu1: Type 5",
        "The card is full.",
        "refused",
        5,
        False,
    )


@pytest.mark.parametrize(
    "said",
    [
        b"hello\n",
        b"\n",
        b"[]\n",
        b'{"ok":true}\n',
        b'{"ok":1,"result":{}}\n',
        b'{"ok":true,"result":[]}\n',
        b'{"ok":false,"error":"x"}\n',
        b"\xff\xfe\n",
        b"[" * 200_000 + b"\n",
        FINE.replace(b"\n", b" junk\n"),
    ],
)
def test_garbage_is_a_host_to_be_set_right(connect: Connect, said: bytes) -> None:
    with pytest.raises(HostCtlRefused) as caught:
        connect(Host(always(Said(said)))).call("facts")
    assert "Install hostctl" in caught.value.hint and len(caught.value.message) < 500


def test_a_flood_is_cut_off(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostctl_client, "LIMIT", 100_000)
    with pytest.raises(HostCtlRefused, match="more than 100000 bytes"):
        connect(Host(always(Said(b"x" * 400_000)))).call("facts")


@pytest.mark.parametrize("said", [Said(FINE[:9]), Said(FINE[:-1]), Said(FINE[:9], status=None), Said(b"", status=None)])
def test_half_an_answer_is_asked_again(connect: Connect, said: Said) -> None:
    with pytest.raises(HostUnreachable, match="broke off") as caught:
        connect(Host(always(said))).call("facts")
    assert caught.value.retry


def test_no_answer_says_why(connect: Connect) -> None:
    ctl = connect(Host(always(Said(err=b"sudo: a password is required\n", status=1))))
    with pytest.raises(HostCtlRefused, match="sudo: a password is required") as caught:
        ctl.call("facts")
    assert "sudo -n" in caught.value.hint


def test_silence_ends(connect: Connect) -> None:
    started = time.monotonic()
    with pytest.raises(HostUnreachable, match="did not answer within 0 s"):
        connect(Host(always(Said(hangs=True)))).call("facts", timeout=0.3)
    assert time.monotonic() - started < 3
    # an answer that is whole counts, whatever the command does after it
    assert connect(Host(always(Said(FINE, hangs=True)))).call("facts", timeout=3) == {"a": 1}


def test_much_noise_before_an_answer(connect: Connect) -> None:
    assert connect(Host(always(Said(FINE, err=b"warning\n" * 50_000)))).call("facts", timeout=20) == {"a": 1}


def test_sessions_refused_and_connections_lost(connect: Connect) -> None:
    with pytest.raises(HostRefused, match="no session"):
        connect(Host(always(Said()), sessions=False)).call("facts")
    ctl = connect(Host(always(Said())))
    ctl._login.close()
    with pytest.raises(HostUnreachable, match="gpu1: SSH session not active"):
        ctl.call("facts")


def test_the_machine_itself(tmp_path: Path) -> None:
    ctl: HostCtl = LocalHostCtl(tmp_path)
    assert ctl.call("facts")["pci"] == []
    with pytest.raises(HostCtlRefused, match="this host: There is no function") as caught:
        ctl.call("reset", {"address": PF})
    assert caught.value.said == "not_found"
    with pytest.raises(HostCtlRefused) as caught:
        ctl.call("reset", {"address": "../x"})
    assert caught.value.said == "bad_argument"


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("import sys; sys.exit('no such module')", HostCtlRefused, "no such module"),
        ("print('hello')", HostCtlRefused, "answered something else: hello"),
        ("import sys; sys.stdout.write('{')", HostUnreachable, "broke off after 1 bytes"),
        ("import time; time.sleep(60)", HostUnreachable, "did not answer within 1 s"),
        ("import os; os.close(1); os.close(2); import time; time.sleep(60)", HostCtlRefused, "without an answer"),
    ],
)
def test_a_child_that_misbehaves(tmp_path: Path, code: str, error: type[Exception], words: str) -> None:
    ctl = LocalHostCtl(tmp_path)
    ctl._command = [sys.executable, "-I", "-S", "-c", code]
    started = time.monotonic()
    with pytest.raises(error, match=words):
        ctl.call("facts", timeout=1)
    assert time.monotonic() - started < 10


def test_a_child_that_is_done_but_does_not_end(tmp_path: Path) -> None:
    ctl = LocalHostCtl(tmp_path)
    code = f"import sys, time; sys.stdout.write({FINE.decode()!r}); sys.stdout.flush(); time.sleep(60)"
    ctl._command = [sys.executable, "-I", "-S", "-c", code]
    assert ctl.call("facts", timeout=10) == {"a": 1}


def test_arguments_that_are_no_json_never_leave(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="float"):
        LocalHostCtl(tmp_path).call("facts", {"x": float("nan")})
