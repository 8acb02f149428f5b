"""A real SSH server on loopback, for the user who runs the tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Sshd:
    """Where it listens, and the host key that it shows."""

    port: int
    folder: Path
    host_key: str

    @property
    def uri(self) -> str:
        return f"qemu+ssh://root@127.0.0.1:{self.port}/system"


@contextmanager
def running(folder: Path, *, authorized: Path, **more: str) -> Iterator[Sshd]:
    """The server; `authorized` are the keys that it lets in, read at each login, `more` its other options."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs sshd and root")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host")], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "Port": str(port),
        "ListenAddress": "127.0.0.1",
        "HostKey": str(folder / "host"),
        "AuthorizedKeysFile": str(authorized),
        "StrictModes": "no",
        "PidFile": "none",
        "UsePAM": "no",
        "PermitRootLogin": "prohibit-password",
        **more,
    }
    (folder / "conf").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([program, "-D", "-f", str(folder / "conf")], stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                with socket.socket() as knock:
                    if knock.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield Sshd(port, folder, " ".join((folder / "host.pub").read_text().split()[:2]))
        finally:
            server.terminate()
