"""SSH into guests: is the pinned host key there, is cloud-init done, is the card there. One attempt per call."""

from __future__ import annotations

import io
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import paramiko

from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.guest.facts import (
    Card,
    CardWant,
    CloudInit,
    EmulatedCard,
    PciCard,
    Trouble,
    Unfinished,
    look_at_card,
    look_at_cloud_init,
    look_at_licence,
    parts_of,
    says_no_seed,
)

__all__ = ["Card", "CardWant", "CheckFailed", "Checked", "CloudInit", "Door", "EmulatedCard", "NotYet", "PciCard"]
__all__ += ["Ran", "check", "host_key_matches", "licence", "run", "says_no_seed"]


def _straight(address: str, port: int) -> Any:
    return None


@dataclass(frozen=True)
class Door:
    """How a guest is entered. `host_key` is the line we pinned; `dial` gives a socket where we cannot connect."""

    address: str
    port: int
    user: str
    private_key: str = field(repr=False)
    host_key: str
    dial: Callable[[str, int], Any] = _straight
    connect_seconds: float = 5.0


@dataclass(frozen=True)
class Ran:
    """How a script ended: its exit status, and what it printed on both its outputs."""

    code: int
    text: str


@dataclass(frozen=True)
class Checked:
    """A guest that is ready. `card`: what was proved of it, `detail` in words; `warnings` do not stop its use."""

    card: str
    cloud_init: str
    warnings: tuple[str, ...] = ()
    detail: str = ""


class NotYet(Exception):
    """The guest is not ready: try again. `reason` says what is waited for, `verdict` what to say when time is up."""

    def __init__(self, why: Reason, verdict: Reason) -> None:
        super().__init__(verdict.sentence())
        self.reason = why
        self.verdict = verdict


class CheckFailed(Exception):
    """The guest is wrong, and waiting will not mend it."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.sentence())
        self.reason = why


def host_key_matches(door: Door, *, timeout: float = 60) -> bool:
    """Whether whoever answers at the door holds the pinned host key; no login. NotYet when nobody answers.

    An emulated guest of an emulated host takes half a minute for its keys.
    """
    try:
        with _met(door, time.monotonic() + timeout):
            return True
    except CheckFailed:
        return False


def run(door: Door, script: str, *, arguments: tuple[str, ...] = (), timeout: float = 60) -> Ran:
    """Run a shell script in the guest, sent over stdin. NotYet when there is no login or it did not end in time.

    `arguments` are plain words; whatever else a script needs, it gets in its text's own way, never on a command line.
    """
    deadline = time.monotonic() + timeout
    with _entered(door, deadline) as transport:
        return _send(door, transport, script, arguments, deadline)


def check(door: Door, want: CardWant | None, *, timeout: float = 240, sysroot: str = "") -> Checked:
    """See, in one SSH session, that cloud-init is done and the card is there; waits for cloud-init inside the guest.

    NotYet: no answer, no login, cloud-init still runs. CheckFailed: another machine, no seed, an error, a wrong card.
    """
    deadline = time.monotonic() + timeout
    with _entered(door, deadline) as transport:
        spare = 130 if isinstance(want, PciCard) else 30  # what looking at the card may take, after the wait
        wait = max(1, round(_left(deadline) - spare))
        arguments = (str(wait), _kind(want), "yes" if isinstance(want, PciCard) and want.cuda else "no")
        ran = _send(door, transport, _probe(), (*arguments, sysroot) if sysroot else arguments, deadline)
    try:
        parts = parts_of(ran.text)
        cloud_init, warnings = look_at_cloud_init(parts)
        card, detail, more = look_at_card(parts, want)
    except Trouble as trouble:
        raise CheckFailed(trouble.reason) from None
    except Unfinished:
        raise NotYet(*[reason(ReasonCode.waiting_cloud_init)] * 2) from None
    return Checked(card=card, cloud_init=cloud_init, warnings=(*warnings, *more), detail=detail)


def licence(door: Door, *, timeout: float = 40) -> str | None:
    """What the guest's driver says of its vGPU's licence; None where it says nothing. NotYet when nobody answers."""
    return look_at_licence(run(door, _LICENCE, timeout=timeout).text)


@contextmanager
def _met(door: Door, deadline: float) -> Iterator[paramiko.Transport]:
    """A connection to the holder of the pinned key. Its thread and socket are gone when the block ends."""
    pinned = door.host_key.split()[1]
    with _connected(door, deadline) as sock:
        transport = None
        try:
            transport = paramiko.Transport(sock)
            transport.set_log_channel(_WIRE)
            transport.banner_timeout = transport.handshake_timeout = _left(deadline)
            transport.start_client(timeout=_left(deadline))
            if not transport.initial_kex_done:
                raise TimeoutError
            if transport.get_remote_server_key().get_base64() != pinned:
                raise CheckFailed(reason(ReasonCode.ssh_wrong_host_key, address=door.address))
            yield transport
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise _no_answer(door, _words(error)) from error
        finally:
            if transport:
                transport.packetizer.complete_handshake()  # else paramiko's timer thread outlives a broken exchange
                transport.close()
                if transport.is_alive():
                    transport.join(5)


@contextmanager
def _entered(door: Door, deadline: float) -> Iterator[paramiko.Transport]:
    key = _key(door.private_key)
    with _met(door, deadline) as transport:
        transport.auth_timeout = _left(deadline)
        try:
            transport.auth_publickey(door.user, key)
        except paramiko.AuthenticationException:
            if not transport.is_active() or time.monotonic() >= deadline:
                raise _no_answer(door, "the connection ended during the login") from None
            # Not final: until cloud-init has made our account, and while /run/nologin stands, sshd says no.
            refused = reason(ReasonCode.ssh_key_refused, address=door.address)
            raise NotYet(refused, refused) from None
        yield transport


@contextmanager
def _connected(door: Door, deadline: float) -> Iterator[Any]:
    try:
        sock = door.dial(door.address, door.port) or socket.create_connection(
            (door.address, door.port), timeout=min(door.connect_seconds, _left(deadline))
        )
    except OSError as error:
        raise _no_answer(door, _words(error)) from error
    try:
        yield sock
    finally:
        sock.close()


def _send(door: Door, transport: paramiko.Transport, script: str, arguments: tuple[str, ...], deadline: float) -> Ran:
    command = " ".join(("sh -s --", *(_plain(word) for word in arguments)))
    with transport.open_session(timeout=_left(deadline)) as channel:
        channel.set_combine_stderr(True)
        channel.settimeout(_left(deadline))
        channel.exec_command(command)
        channel.sendall(script.encode())
        channel.shutdown_write()
        try:
            output = b"".join(_received(channel, deadline))
        except TimeoutError:
            raise _no_answer(door, "the script did not end in time") from None
        channel.status_event.wait(_left(deadline))
        if channel.exit_status < 0:
            raise _no_answer(door, "the connection ended before the script did")
        return Ran(channel.exit_status, output.decode(errors="replace"))


def _received(channel: paramiko.Channel, deadline: float) -> Iterator[bytes]:
    # All is read, so that the script can end, but no more is kept than an honest answer needs.
    kept = 0
    while chunk := channel.recv(65536):
        if kept < _MOST_OUTPUT:
            yield chunk
            kept += len(chunk)
        if time.monotonic() >= deadline:
            raise TimeoutError
        channel.settimeout(_left(deadline))


def _kind(want: CardWant | None) -> str:
    if want is None:
        return "none"
    if isinstance(want, EmulatedCard):
        return "emulated"
    return "nvidia" if any(id_.lower().startswith("10de:") for id_ in want.pci_ids) else "pci"


def _no_answer(door: Door, detail: str) -> NotYet:
    return NotYet(
        reason(ReasonCode.waiting_ssh, address=door.address),
        reason(ReasonCode.ssh_no_answer, address=door.address, detail=detail),
    )


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "nothing answers"
    if isinstance(error, EOFError):
        return "the connection was closed at once"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__


def _plain(word: str) -> str:
    # The only text that a guest's login shell reads: no quoting is needed for what this lets through.
    if not re.fullmatch("[A-Za-z0-9._/@:+-]+", word):
        raise ValueError(f"{word!r} is no plain word")
    return word


def _left(deadline: float) -> float:
    return max(0.05, deadline - time.monotonic())


@lru_cache(maxsize=8)
def _key(private: str) -> paramiko.Ed25519Key:
    return paramiko.Ed25519Key.from_private_key(io.StringIO(private))


@lru_cache(maxsize=1)
def _probe() -> str:
    return Path(__file__).with_name("probe.sh").read_text()


_LICENCE = "LC_ALL=C timeout 30 nvidia-smi -q 2>/dev/null </dev/null\n"
_MOST_OUTPUT = 1024 * 1024
# A guest that is still booting drops connections; paramiko would log each as an error with its traceback.
_WIRE = "vmgpu.guest.wire"
logging.getLogger(_WIRE).setLevel(logging.CRITICAL + 1)
