"""A host reached over SSH: libvirt's address with the pinned host key, and channels to guests that only it reaches."""

from __future__ import annotations

import os
import shlex
import threading
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

import paramiko

from vmgpu.errors import HostUnreachable
from vmgpu.hypervisor import HostRef
from vmgpu.hypervisor.ssh_login import CONNECT_SECONDS, Login, our_keys, pinned, ssh_parts, still_there
from vmgpu.hypervisor.survey import is_local

GUEST_PORT = 22
_ALIAS = "vmgpu-host"  # the name our known_hosts file has the key under, whatever the host is called


def libvirt_uri(ref: HostRef) -> str:
    """The address that libvirt opens; for a remote host with an SSH client that trusts the pinned key only."""
    if is_local(ref.uri):
        return ref.uri
    parts = ssh_parts(ref.uri)
    client = _ssh_client(ref)
    wanted = {name: value for name, value in parse_qsl(parts.query) if name not in ("command", "no_tty")}
    query = urlencode({**wanted, "command": str(client), "no_tty": "1"}, quote_via=quote, safe="/")
    return parts._replace(query=query).geturl()


class Tunnel:
    """Channels to guests, all through one login."""

    def __init__(self, ref: HostRef) -> None:
        keys = our_keys(ref)
        self._login = Login(ref, keys.libvirt if keys else None)

    def dial(self, address: str, port: int) -> paramiko.Channel:
        """A channel to a guest; where the guest refuses it or is silent, an OSError, as from a socket."""
        transport = self._login.transport()
        try:
            return _channel(transport, address, port)
        except paramiko.ChannelException as error:
            raise ConnectionRefusedError(f"{address} port {port}: {error.text}") from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            if still_there(transport):  # a guest that drops packets leaves its channel open for as long
                raise TimeoutError(f"{address} port {port}: {error}") from error
            raise HostUnreachable(f"{self._login.name}: {error}") from error

    def permits(self, network: str) -> bool:
        """Whether the host lets this login reach guests in the range; asked with an address that no guest can have."""
        broadcast = str(ip_network(network)[-1])  # the kernel refuses to connect there at once: no wait for a guest
        try:
            _channel(self._login.transport(), broadcast, GUEST_PORT).close()
        except paramiko.ChannelException as error:
            return error.code != paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        except (OSError, EOFError, paramiko.SSHException):
            return True  # slow, not forbidden
        return True

    def close(self) -> None:
        """Log out."""
        self._login.close()


def _channel(transport: paramiko.Transport, address: str, port: int) -> paramiko.Channel:
    return transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=CONNECT_SECONDS)


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
    keys = our_keys(ref)
    if keys is not None:
        identity = folder / "libvirt_key"
        _write(identity, keys.libvirt, mode=0o600)
        named = str(identity).replace("%", "%%")
        options |= {"IdentityFile": f'"{named}"', "IdentitiesOnly": "yes", "IdentityAgent": "none"}
    words = ["exec", "ssh", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    _write(known, f"{_ALIAS} {pinned(ref)}\n", mode=0o600)
    _write(client, f'#!/bin/sh\n{shlex.join(words)} "$@"\n', mode=0o700)
    return client


def _write(path: Path, text: str, *, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fresh.touch(mode)
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)
