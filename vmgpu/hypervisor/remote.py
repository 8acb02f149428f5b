"""A host reached over SSH: libvirt's address with the pinned host key, and channels to guests that only it reaches."""

from __future__ import annotations

import os
import shlex
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import paramiko

from vmgpu.errors import HostRefused, HostUnreachable
from vmgpu.hypervisor import HostRef
from vmgpu.hypervisor.survey import is_local

CONNECT_SECONDS = 10
_ALIAS = "vmgpu-host"  # the name our known_hosts file has the key under, whatever the host is called


@dataclass(frozen=True)
class Account:
    """Where and as whom the SSH client logs in."""

    host: str
    port: int
    user: str | None
    keys: tuple[str, ...] = ()


def libvirt_uri(ref: HostRef) -> str:
    """The address that libvirt opens; for a remote host with an SSH client that trusts the pinned key only."""
    if is_local(ref.uri):
        return ref.uri
    parts = _ssh_parts(ref.uri)
    client = _ssh_client(ref)
    wanted = {name: value for name, value in parse_qsl(parts.query) if name not in ("command", "no_tty")}
    query = urlencode({**wanted, "command": str(client), "no_tty": "1"}, quote_via=quote, safe="/")
    return parts._replace(query=query).geturl()


class Tunnel:
    """One SSH login to a host, shared by all channels through it; logs in again when it was lost."""

    def __init__(self, ref: HostRef) -> None:
        self._ref = ref
        self._lock = threading.Lock()
        self._client: paramiko.SSHClient | None = None

    def dial(self, address: str, port: int) -> paramiko.Channel:
        """A channel to a guest; where the guest refuses it or is silent, an OSError, as from a socket."""
        transport = self._transport()
        try:
            return transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=CONNECT_SECONDS)
        except paramiko.ChannelException as error:
            raise ConnectionRefusedError(f"{address} port {port}: {error.text}") from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            if _answers(transport):
                raise TimeoutError(f"{address} port {port}: {error}") from error
            transport.close()  # a host that is only silent counts as logged in for minutes: the next try logs in anew
            raise HostUnreachable(f"{self._ref.name}: {error}") from error

    def close(self) -> None:
        """Log out."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _transport(self) -> paramiko.Transport:
        with self._lock:
            transport = self._client.get_transport() if self._client else None
            if transport is None or not transport.is_active():
                self._client = _log_in(self._ref)
                transport = self._client.get_transport()
        if transport is None:
            raise HostUnreachable(f"{self._ref.name}: the SSH login ended at once")
        return transport


def _answers(transport: paramiko.Transport) -> bool:
    """Whether the host itself still answers: a guest that drops packets leaves its channel open for as long."""
    if not transport.is_active():
        return False
    try:
        transport.open_session(timeout=CONNECT_SECONDS).close()
    except paramiko.ChannelException:
        return True  # no session for this account, or no more of them: an answer all the same
    except (OSError, EOFError, paramiko.SSHException):
        return False
    return True


def _log_in(ref: HostRef) -> paramiko.SSHClient:
    account = _account(ref.uri)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    kind, _, blob = _pinned(ref).partition(" ")
    known = account.host if account.port == 22 else f"[{account.host}]:{account.port}"
    line = paramiko.hostkeys.HostKeyEntry.from_line(f"{known} {kind} {blob}")
    if line is None or line.key is None:
        raise HostRefused(f"{ref.name}: the pinned host key is not a key", hint="Remove the host and add it again.")
    client.get_host_keys().add(known, kind, line.key)
    try:
        client.connect(
            account.host,
            account.port,
            account.user,
            key_filename=list(account.keys) or None,  # type: ignore[arg-type]  # it takes lists, its stubs do not say so
            timeout=CONNECT_SECONDS,
            banner_timeout=CONNECT_SECONDS,
            auth_timeout=CONNECT_SECONDS,
        )
    except paramiko.BadHostKeyException as error:
        client.close()
        raise HostRefused(
            f"{ref.name} shows another host key than the pinned one",
            hint="If the host was installed anew, remove it and add it again; else somebody stands in between.",
        ) from error
    except (OSError, EOFError, paramiko.SSHException) as error:
        client.close()
        raise HostUnreachable(
            f"{ref.name}: {error}", hint="Can this account log in there by key, without being asked?"
        ) from error
    transport = client.get_transport()
    if transport is not None:
        transport.set_keepalive(15)
    return client


def _account(uri: str) -> Account:
    """What the URI says, and where it is silent what the OpenSSH client's settings say: both logins are the same."""
    parts = _ssh_parts(uri)
    host = parts.hostname or ""
    settings = Path("~/.ssh/config").expanduser()
    said: dict[str, object] = {}
    with suppress(OSError, paramiko.ConfigParseError):
        said = dict(paramiko.SSHConfig.from_path(str(settings)).lookup(host))
    keyfile = dict(parse_qsl(parts.query)).get("keyfile")
    listed = said.get("identityfile", [])
    keys = [keyfile] if keyfile else [str(key) for key in listed] if isinstance(listed, list) else []
    return Account(
        str(said.get("hostname", host)),
        parts.port or int(str(said.get("port", 22))),
        parts.username or (str(said["user"]) if "user" in said else None),
        tuple(key for key in keys if Path(key).expanduser().exists()),
    )


def _ssh_parts(uri: str) -> SplitResult:
    parts = urlsplit(uri)
    if parts.scheme != "qemu+ssh" or not parts.hostname:
        raise HostRefused(
            f"{uri} is not a host address",
            hint="Use qemu:///system for this machine, qemu+ssh://USER@HOST/system else.",
        )
    if "no_verify" in dict(parse_qsl(parts.query, keep_blank_values=True)):
        raise HostRefused(f"{uri}: host keys are always verified", hint="Leave no_verify out; the key is pinned.")
    return parts


def _pinned(ref: HostRef) -> str:
    """The pinned key as `type base64`, from that form or from a known_hosts line."""
    words = (ref.host_key or "").split()
    kinds = [at for at, word in enumerate(words) if word.startswith(("ssh-", "ecdsa-", "sk-"))]
    if not kinds or kinds[0] + 1 >= len(words):
        raise HostRefused(f"{ref.name} has no pinned host key", hint="Remove the host and add it again.")
    return " ".join(words[kinds[0] : kinds[0] + 2])


def _ssh_client(ref: HostRef) -> Path:
    """OpenSSH with our known_hosts file: libvirt can name a program, but no option, for its ssh transport."""
    folder = ref.state_dir / ref.id
    folder.mkdir(parents=True, exist_ok=True)
    known, client = folder / "known_hosts", folder / "ssh"
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f'"{known}"',
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": _ALIAS,
        "UpdateHostKeys": "no",
        "CheckHostIP": "no",
        "ConnectTimeout": str(CONNECT_SECONDS),
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "4",
    }
    words = ["exec", "ssh", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    _write(known, f"{_ALIAS} {_pinned(ref)}\n", mode=0o600)
    _write(client, f'#!/bin/sh\n{shlex.join(words)} "$@"\n', mode=0o700)
    return client


def _write(path: Path, text: str, *, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fresh.touch(mode)
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)
