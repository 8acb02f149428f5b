"""Become OpenSSH, with the host key pinned that vmgpu made for the VM."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vmgpu.cli.desk import Refused


def go(way: dict[str, Any], *, login: str | None, identity: str | None, command: Sequence[str]) -> None:
    """Run `ssh` in this process's place; it ends with ssh's exit code."""
    known = _pinned(way)
    arguments = ssh_arguments(way, known, login=login, identity=identity, command=command)
    sys.stdout.flush()
    try:
        os.execvp("ssh", arguments)  # noqa: S606 - a list, and no shell
    except FileNotFoundError:
        hint = "Install it: apt install openssh-client."
        raise Refused({"code": "setup", "message": "There is no ssh program here", "hint": hint}) from None


def ssh_arguments(
    way: dict[str, Any], known: Path, *, login: str | None, command: Sequence[str], identity: str | None = None
) -> list[str]:
    """The whole command line. What the caller's own ~/.ssh/config says of keys and agents still holds."""
    kind = way["host_key"].split()[0]
    options = {
        "UserKnownHostsFile": _file(known),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": way["alias"],
        "HostKeyAlgorithms": kind,
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
    }
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    key = ["-i", identity] if identity else []
    jump = ["-o", f"ProxyCommand={through(way, known)}"] if way["jump"] else []
    who = f"{login or way['login']}@{way['address']}"
    return ["ssh", *given, *key, *jump, "-p", str(way["port"]), "--", who, *command]


def through(way: dict[str, Any], known: Path) -> str:
    """The ProxyCommand that reaches the VM from its host; `-J` would take any key that the caller's files know."""
    options = {
        "UserKnownHostsFile": _file(known),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": way["jump_alias"],
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
    }
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}".replace("%", "%%"))]
    return shlex.join(["ssh", *given, "-W", "[%h]:%p", "--", f"ssh://{way['jump']}"])


def _file(path: Path) -> str:
    """A file as ssh's options take it: they know several in one line, and tokens like %h in each."""
    return '"' + str(path).replace("%", "%%") + '"'


def _pinned(way: dict[str, Any]) -> Path:
    """A file with this VM's host key, and its host's: ssh reads it after we are gone, and ~/.ssh stays as it is."""
    folder = Path.home() / ".cache" / "vmgpu" / "known_hosts"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / str(way["alias"])
    path.write_text("".join(f"{line}\n" for line in (way["known_hosts"], way["jump_known_hosts"]) if line))
    return path
