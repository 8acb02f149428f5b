"""An SSH login to a host: as whom, with which key, trusting the pinned host key alone; kept, made anew when lost."""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

import paramiko

from vmgpu.errors import HostRefused, HostUnreachable
from vmgpu.hypervisor import HostKeys, HostRef
from vmgpu.hypervisor.host_setup import ACCOUNT

CONNECT_SECONDS = 10


class NotLetIn(HostUnreachable):
    """The host answers, and does not take our key."""


@dataclass(frozen=True)
class Account:
    """Where and as whom the SSH client logs in."""

    host: str
    port: int
    user: str | None
    keys: tuple[str, ...] = ()


def our_keys(ref: HostRef) -> HostKeys | None:
    """The installation's keys, where the host is one that `vmgpu host setup` made ready for them."""
    parts = urlsplit(ref.uri)
    ours = parts.scheme == "qemu+ssh" and parts.username == ACCOUNT and "keyfile" not in dict(parse_qsl(parts.query))
    return ref.keys if ours else None


class Login:
    """One login, shared by all channels through it. `key`: the private key; else those that OpenSSH would take."""

    def __init__(self, ref: HostRef, key: str | None = None) -> None:
        self.name = ref.name
        self._ref, self._key = ref, key
        self._lock = threading.Lock()
        self._client: paramiko.SSHClient | None = None

    def transport(self) -> paramiko.Transport:
        """The login as it is, or a new one."""
        with self._lock:
            transport = self._client.get_transport() if self._client else None
            if transport is None or not transport.is_active():
                self._client = _log_in(self._ref, self._key)
                transport = self._client.get_transport()
        if transport is None:
            raise HostUnreachable(f"{self.name}: the SSH login ended at once")
        return transport

    def close(self) -> None:
        """Log out."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


def still_there(transport: paramiko.Transport) -> bool:
    """Whether the host itself still answers; a silent one, still logged in, is logged out for the next try."""
    if _answers(transport):
        return True
    transport.close()
    return False


def _answers(transport: paramiko.Transport) -> bool:
    """Whether it opens a session, or refuses to."""
    if not transport.is_active():
        return False
    try:
        transport.open_session(timeout=CONNECT_SECONDS).close()
    except paramiko.ChannelException:
        return True  # no session for this account, or no more of them: an answer all the same
    except (OSError, EOFError, paramiko.SSHException):
        return False
    return True


def _log_in(ref: HostRef, key: str | None) -> paramiko.SSHClient:
    account = _account(ref.uri)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    kind, _, blob = pinned(ref).partition(" ")
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
            pkey=paramiko.Ed25519Key(file_obj=io.StringIO(key)) if key else None,
            key_filename=[] if key else list(account.keys) or None,  # type: ignore[arg-type]  # its stubs know no lists
            allow_agent=not key,
            look_for_keys=not key,
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
    except paramiko.AuthenticationException as error:
        client.close()
        hint = f"Let our key in: vmgpu host setup {ref.name}." if key else "Can this account log in there by key alone?"
        raise NotLetIn(f"{ref.name} does not let {account.user or 'us'} in: {error}", hint=hint) from error
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
    parts = ssh_parts(uri)
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


def ssh_parts(uri: str) -> SplitResult:
    parts = urlsplit(uri)
    if parts.scheme != "qemu+ssh" or not parts.hostname:
        raise HostRefused(
            f"{uri} is not a host address",
            hint="Use qemu:///system for this machine, qemu+ssh://USER@HOST/system else.",
        )
    if "no_verify" in dict(parse_qsl(parts.query, keep_blank_values=True)):
        raise HostRefused(f"{uri}: host keys are always verified", hint="Leave no_verify out; the key is pinned.")
    return parts


def pinned(ref: HostRef) -> str:
    """The pinned key as `type base64`, from that form or from a known_hosts line."""
    words = (ref.host_key or "").split()
    kinds = [at for at, word in enumerate(words) if word.startswith(("ssh-", "ecdsa-", "sk-"))]
    if not kinds or kinds[0] + 1 >= len(words):
        raise HostRefused(f"{ref.name} has no pinned host key", hint="Remove the host and add it again.")
    return " ".join(words[kinds[0] : kinds[0] + 2])
