"""The demo's own key, and OpenSSH with it: the host key that vmgpu made must answer, nothing else is trusted."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections import defaultdict
from pathlib import Path

from vmgpu.lab.demo_api import Problem
from vmgpu.lab.programs import need_programs, run
from vmgpu.service.shapes import ReachOut

_NO_CONNECTION = 255  # ssh's own exit code; every other one is the command's
_TRIES = 3

# One line a fact, "word value"; all that the story wants to know of a guest in one login.
LOOK = """\
echo "host $(hostname)"; echo "cpus $(nproc)"; echo "machine $(cat /etc/machine-id)"
lspci -d 1234:1111 | sed 's/^/card /'
sudo -n dmidecode -t 11 2>/dev/null | sed -n 's/^[[:space:]]*String [0-9]*: /says /p'
sudo -n cat /etc/ssh/ssh_host_*_key.pub | cut -d' ' -f1,2 | sed 's/^/hostkey /'
[ -f handout.txt ] && sed 's/^/handout /' handout.txt
true
"""


class Keyring:
    """A key pair in the demo's folder, and the file of pinned host keys beside it."""

    def __init__(self, folder: Path) -> None:
        self.key, self.known = folder / "demo_ed25519", folder / "known_hosts"

    def public(self) -> str:
        """The public half; the pair is made at the first call."""
        if not self.key.exists():
            need_programs(("ssh-keygen", "ssh"), doing="Making a key for the demo")
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "vmgpu demo", "-f", str(self.key)]
            run(command, doing="Making a key for the demo")
        return self.key.with_name(f"{self.key.name}.pub").read_text().strip()

    def pin(self, way: ReachOut) -> None:
        """Note this VM's host key; what was noted of another VM stays."""
        kept = self.known.read_text().splitlines() if self.known.exists() else []
        others = [line for line in kept if not line.startswith(f"{way.alias} ")]
        self.known.write_text("\n".join([*others, way.known_hosts]) + "\n")

    def line(self, way: ReachOut) -> list[str]:
        """The command that opens a shell in the VM."""
        options = ["-o", f"UserKnownHostsFile={self.known}", "-o", f"HostKeyAlias={way.alias}"]
        options += ["-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-i", str(self.key)]
        return ["ssh", *options, "-p", str(way.port), f"{way.login}@{way.address}"]

    def spoken(self, way: ReachOut) -> str:
        """The same, to be pasted into a shell."""
        return shlex.join(self.line(way))

    def ask(self, way: ReachOut, command: str, *, within: float) -> str:
        """Run a command in the VM and return what it printed; a connection that breaks is tried again."""
        self.pin(way)
        name, *rest = self.line(way)
        # of the caller's own settings nothing counts: this must work, or not, for everybody alike
        line = [name, "-F", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=60", *rest, command]
        for attempt in range(1, _TRIES + 1):
            try:
                done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=within, check=False)
            except subprocess.TimeoutExpired:
                raise Problem(f"{way.vm} did not answer over SSH within {within:.0f} s") from None
            if done.returncode != _NO_CONNECTION or attempt == _TRIES:
                break
            time.sleep(3 * attempt)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
            raise Problem(
                f"SSH into {way.vm} ended with {done.returncode}: {' / '.join(said) or 'it said nothing'}",
                hint=f"Try it by hand: {self.spoken(way)}",
            )
        return done.stdout.decode(errors="replace")


def facts_in(said: str) -> dict[str, list[str]]:
    """What LOOK printed: the values of each word, in order."""
    facts: dict[str, list[str]] = defaultdict(list)
    for line in said.splitlines():
        word, _, value = line.partition(" ")
        facts[word].append(value)
    return facts
