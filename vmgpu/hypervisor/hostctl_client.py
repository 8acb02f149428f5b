"""The service's side of hostctl: a verb goes to a host, its answer comes back, a refusal as an error of ours."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import paramiko

from vmgpu.errors import HostRefused, HostUnreachable
from vmgpu.hypervisor.ssh_login import Login, still_there

LIMIT = 8 * 2**20  # a host with hundreds of functions says less than one of these
# Beyond what each verb allows itself: then the host is silent, not slow.
SECONDS = {"facts": 30.0, "vfs": 130.0}
_SECONDS = 70.0
_CONNECT_SECONDS = 10.0
_ENDING_SECONDS = 2.0
_SHOWN = 300
_INSTALL = "Install hostctl on the host again: vmgpu host setup."
# The package beside this module, started without the service: nothing of vmgpu is imported.
_START = "import sys; sys.path.append(sys.argv.pop(1)); from hostctl.__main__ import main; sys.exit(main())"


class HostCtlRefused(HostRefused):
    """hostctl said no: `said` is its code, `errno` the kernel's where there was one."""

    def __init__(self, message: str, *, hint: str = "", said: str = "failed", errno: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.said = said
        self.errno = errno


class HostCtl(Protocol):
    """What needs root on one host, in few verbs."""

    def call(
        self, verb: str, arguments: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """The verb's result; HostCtlRefused when the host said no, HostUnreachable when it said nothing."""


class LocalHostCtl:
    """hostctl as a child of the service, for the machine it runs on, or for a tree that looks like one."""

    def __init__(self, sysroot: Path = Path("/"), *, name: str = "this host") -> None:
        self._name = name
        self._command = [sys.executable, "-I", "-c", _START, str(Path(__file__).parent)]
        self._root = [] if sysroot == Path("/") else ["--sysroot", str(sysroot.absolute())]

    def call(
        self, verb: str, arguments: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Run it once; a child that does not end is killed, with what it started."""
        seconds = _allowed(verb, timeout)
        try:
            child = subprocess.Popen(
                [*self._command, verb, *self._root],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise HostCtlRefused(f"{self._name}: hostctl does not start: {error}") from error
        heard = _Heard(self._name, verb)
        try:
            _talk(child, _line(arguments), heard, seconds)
        finally:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # in a driver that hangs not even a kill is heard
                child.wait(5)
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        return heard.result(ended=True)


class SshHostCtl:
    """hostctl on another machine: the account's forced command, with the verb as what we ask to run."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._name = login.name

    def call(
        self, verb: str, arguments: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Run it once, on a channel of its own."""
        heard = _Heard(self._name, verb)
        ends = time.monotonic() + _allowed(verb, timeout)
        transport = self._login.transport()
        channel = None
        try:
            channel = transport.open_session(timeout=_CONNECT_SECONDS)
            channel.settimeout(_CONNECT_SECONDS)
            channel.exec_command(verb)
            channel.sendall(_line(arguments))
            channel.shutdown_write()
            ended = _listen(channel, heard, ends)
        except paramiko.ChannelException as error:
            raise HostRefused(
                f"{self._name}: SSH gives no session for hostctl: {error.text}",
                hint="Is hostctl the forced command of this key?",
            ) from error
        except HostUnreachable:
            still_there(transport)  # where only the verb hangs, others go on through this login
            raise
        except (OSError, EOFError, paramiko.SSHException) as error:
            still_there(transport)
            raise HostUnreachable(f"{self._name}: {error or 'the SSH connection was lost'}") from error
        finally:
            if channel is not None:
                channel.close()
        return heard.result(ended=ended)


class _Heard:
    """What has come back so far, and what it means."""

    def __init__(self, name: str, verb: str) -> None:
        self._name = name
        self._verb = verb
        self._line = bytearray()
        self._noise = bytearray()

    def add(self, piece: bytes) -> bool:
        """Whether more is wanted."""
        line, newline, _ = piece.partition(b"\n")
        self._line += line + newline
        if len(self._line) > LIMIT:
            raise HostCtlRefused(f"{self._name}: hostctl {self._verb} answered more than {LIMIT} bytes", hint=_INSTALL)
        return not newline

    def complain(self, piece: bytes) -> None:
        """Standard error: sudo, Python, or the journal line of a tree."""
        self._noise = (self._noise + piece)[-4096:]

    def late(self, seconds: float) -> HostUnreachable:
        """What silence means."""
        return HostUnreachable(
            f"{self._name}: hostctl {self._verb} did not answer within {seconds:.0f} s",
            hint="Look at the host's load and its kernel log; whether it was done is unknown.",
        )

    def result(self, *, ended: bool) -> dict[str, Any]:
        """The result of a whole answer; `ended`: the command ran to its end, so that no answer is an answer."""
        if not self._line.endswith(b"\n"):
            raise self._broken_off(ended=ended)
        try:
            answer = json.loads(self._line)
        except (ValueError, RecursionError) as error:
            raise HostCtlRefused(
                f"{self._name}: hostctl {self._verb} answered something else: {_shown(self._line)}", hint=_INSTALL
            ) from error
        if isinstance(answer, dict) and answer.get("ok") is True and isinstance(answer.get("result"), dict):
            return dict(answer["result"])
        if isinstance(answer, dict) and answer.get("ok") is False and isinstance(answer.get("error"), dict):
            raise self._refused(answer["error"])
        raise HostCtlRefused(
            f"{self._name}: hostctl {self._verb} answered in another form: {_shown(self._line)}", hint=_INSTALL
        )

    def _refused(self, error: Mapping[str, Any]) -> HostCtlRefused:
        number = error.get("errno")
        return HostCtlRefused(
            f"{self._name}: {str(error.get('message') or error.get('code') or 'refused')[:2000]}",
            hint=str(error.get("hint") or "")[:2000],
            said=str(error.get("code") or "failed"),
            errno=number if isinstance(number, int) else None,
        )

    def _broken_off(self, *, ended: bool) -> HostRefused | HostUnreachable:
        if self._line or not ended:
            return HostUnreachable(
                f"{self._name}: the answer of hostctl {self._verb} broke off after {len(self._line)} bytes",
                hint="Whether it was done is unknown; it is asked again.",
            )
        return HostCtlRefused(
            f"{self._name}: hostctl {self._verb} ended without an answer: {_shown(self._noise) or 'it said nothing'}",
            hint="Is it installed at /usr/local/lib/vmgpu/hostctl.pyz, and may this account run it by sudo -n?"
            " vmgpu host setup makes both so.",
        )


def _allowed(verb: str, timeout: float | None) -> float:
    return SECONDS.get(verb, _SECONDS) if timeout is None else timeout


def _line(arguments: Mapping[str, Any] | None) -> bytes:
    return json.dumps(dict(arguments or {}), allow_nan=False).encode("ascii") + b"\n"


def _shown(content: bytes | bytearray) -> str:
    return " ".join(content.decode("utf-8", "replace").split())[:_SHOWN]


def _talk(child: subprocess.Popen[bytes], line: bytes, heard: _Heard, seconds: float) -> None:
    """Give a child its line and listen until its first line, its end or the time-out."""
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None  # noqa: S101 - all are pipes
    ends = time.monotonic() + seconds
    with suppress(BrokenPipeError):  # it refused without reading
        child.stdin.write(line)
        child.stdin.close()
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        selector.register(child.stderr, selectors.EVENT_READ)
        while selector.get_map():
            left = ends - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise heard.late(seconds)
            for key, _ in ready:
                piece = os.read(key.fd, 65536)
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.fileobj is child.stderr:
                    heard.complain(piece)
                elif not heard.add(piece):
                    return  # a thread in a hung driver may keep the pipe open for ever


def _listen(channel: paramiko.Channel, heard: _Heard, ends: float) -> bool:
    """Read until the first line or the end; whether the command itself has ended (and not the connection)."""
    started = time.monotonic()
    while True:
        left = ends - time.monotonic()
        if left <= 0:
            raise heard.late(ends - started)
        while channel.recv_stderr_ready():
            heard.complain(channel.recv_stderr(65536))
        channel.settimeout(min(left, 1.0))  # a host that only complains fills the other stream
        try:
            piece = channel.recv(65536)
        except TimeoutError:
            continue
        if not piece:
            break
        if not heard.add(piece):
            return True
    while channel.recv_stderr_ready():
        heard.complain(channel.recv_stderr(65536))
    # how it ended may come a moment after its last word; a lost connection sets the event as well
    return channel.status_event.wait(_ENDING_SECONDS) and channel.recv_exit_status() >= 0
