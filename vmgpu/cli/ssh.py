"""Run OpenSSH, with the host key pinned that vmgpu made for the VM."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from vmgpu.cli import say
from vmgpu.cli.desk import Refused

_FAILED = 255  # ssh's own exit code, beside those of what it ran
_KEPT = 4096  # bytes of what was said last


def go(way: dict[str, Any], *, name: str, login: str | None, identity: str | None, command: Sequence[str]) -> int:
    """Run `ssh` and answer its exit code; where the VM let no key of the caller's in, say which it lets in."""
    known = _pinned(way)
    arguments = ssh_arguments(way, known, login=login, identity=identity, command=command)
    sys.stdout.flush()
    try:
        ssh = subprocess.Popen(arguments, stderr=subprocess.PIPE)
    except FileNotFoundError:
        hint = "Install it: apt install openssh-client."
        raise Refused({"code": "setup", "message": "There is no ssh program here", "hint": hint}) from None
    said = bytearray()
    passing = threading.Thread(target=_pass_on, args=(ssh.stderr, said), daemon=True)
    passing.start()
    code = _ended(ssh)
    passing.join(1)  # no longer: a connection that ssh keeps for the next call keeps its end open
    if code == _FAILED and f"@{way['address']}: Permission denied (".encode() in said:
        say.hint(
            f"{name} lets in the keys its members had when it was built. Name yours with -i FILE; "
            "a key added later needs a reset or a new VM."
        )
    return code


def _pass_on(source: IO[bytes], said: bytearray) -> None:
    """Standard error as it comes, and its end for us."""
    while more := os.read(source.fileno(), 65536):
        sys.stderr.buffer.write(more)
        sys.stderr.buffer.flush()
        said += more
        del said[:-_KEPT]


def _ended(ssh: subprocess.Popen[bytes]) -> int:
    """Wait as if ssh were in our place: what is sent to us is for it, and where it stops we stop."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        os.kill(ssh.pid, number)

    ours = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    # a terminal sends these to both
    ours |= {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        while os.WIFSTOPPED(status := os.waitpid(ssh.pid, os.WUNTRACED)[1]):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(ssh.pid, signal.SIGCONT)
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
    code = os.waitstatus_to_exitcode(status)
    ssh.returncode = code
    return code if code >= 0 else 128 - code


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
