"""One installation whose service is a process of its own, that tests start, kill and start again."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from sqlmodel import Session, col
from sqlmodel import select as pick

from tests.factories import ADMIN_TOKEN, admin, make_database, make_settings
from vmgpu import machines
from vmgpu.db import setting
from vmgpu.models import VM, Image, VMState
from vmgpu.service import images

REPOSITORY = Path(__file__).parents[2]


class Service:
    """The installation in a folder. Its rows can be read, and wishes written, also while nobody serves."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            bind = f"127.0.0.1:{free.getsockname()[1]}"
        said = {"data_dir": str(folder), "admin_token": ADMIN_TOKEN, "bind": bind, "accel": "tcg", "log": "text"}
        said |= settings
        self.environment = {f"VMGPU_{name.upper()}": value for name, value in said.items()}
        self.settings = make_settings(folder, **{name: value for name, value in said.items() if name != "data_dir"})
        self.db = make_database(self.settings)
        self.me = admin(self.db)
        self.pid: int | None = None
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )

    # its process

    def start(self, point: str = "") -> None:
        """Start it; with a point it kills itself there."""
        assert self.pid is None, "it is running"
        assert self._zygote.stdin
        self._zygote.stdin.write(json.dumps({**self.environment, "VMGPU_CRASH_AT": point}) + "\n")
        self._zygote.stdin.flush()
        self.pid = int(self._told(120, "no process was forked"))

    def dies_at(self, point: str, *, within: float = 120) -> None:
        """Start it and see it killed at this point: nothing but the point does that."""
        self.start(point)
        assert self._ended(within, f"it does not come to {point}") == -signal.SIGKILL, self.log()

    def kill(self) -> None:
        """kill -9, wherever it is just now."""
        assert self.pid
        os.kill(self.pid, signal.SIGKILL)
        assert self._ended(10, "it does not die") == -signal.SIGKILL, self.log()

    def end(self) -> None:
        """As by `systemctl stop`."""
        assert self.pid
        os.kill(self.pid, signal.SIGTERM)
        assert self._ended(60, "it does not end") == 0, self.log()

    def close(self) -> None:
        """End everything."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        assert self._zygote.stdin and self._zygote.stdout
        self._zygote.stdin.close()
        self._zygote.wait(10)
        self._zygote.stdout.close()
        self.db.close()

    def log(self, lines: int = 60) -> str:
        """The end of what it said."""
        path = self.folder / "serve.log"
        return "\n".join(path.read_text().splitlines()[-lines:]) if path.exists() else ""

    def _ended(self, within: float, otherwise: str) -> int:
        code = int(self._told(within, otherwise))
        self.pid = None
        return code

    def _told(self, within: float, otherwise: str) -> str:
        assert self._zygote.stdout
        ready, _, _ = select.select([self._zygote.stdout], [], [], within)
        assert ready, f"{otherwise} after {within:.0f} s\n{self.log()}"
        return self._zygote.stdout.readline()

    # its rows

    @property
    def installation(self) -> str:
        """The id that its domains carry."""
        with self.db.read() as session:
            return setting(session, "installation") or ""

    def vm(self, name: str) -> VM:
        """The newest VM of this name, also when it is gone."""
        with self.db.read() as session:
            return session.exec(pick(VM).where(VM.name == name).order_by(col(VM.ticket).desc())).first() or VM()

    def until(self, true: Callable[[Session], object], what: str, *, within: float = 120) -> float:
        """Wait for rows to be like this; the seconds that it took."""
        begun = time.monotonic()
        while True:
            with self.db.read() as session:
                if true(session):
                    return time.monotonic() - begun
                if time.monotonic() > begun + within:
                    vms = [(vm.name, vm.state.value, vm.reason) for vm in session.exec(pick(VM)).all()]
                    raise AssertionError(f"not within {within:.0f} s: {what}; {vms}\n{self.log()}")
            time.sleep(0.1)

    def until_vm(self, name: str, state: str, *, within: float = 120) -> float:
        """Wait until this VM has come to rest in a state, with every wish fulfilled."""

        def there(session: Session) -> bool:
            vm = session.exec(pick(VM).where(VM.name == name).order_by(col(VM.ticket).desc())).first()
            assert vm, f"no VM {name}"
            if vm.state is not VMState(state) or vm.capture_as or (vm.claim_token and state != "pending"):
                return False
            return state != "running" or (vm.built, vm.booted) == (vm.build, vm.boots)

        return self.until(there, f"{name} is {state}", within=within)

    def take_in(self, name: str, file: Path, **labels: str) -> Image:
        """Import an image, as REST does."""
        incoming = images.begin(
            self.db, self.settings, self.me, name=name, format="qcow2", filename=file.name, labels=labels
        )
        incoming.part.write_bytes(file.read_bytes())
        return images.finish(self.db, self.settings, self.me, incoming, sha256=machines.digest(incoming.part))

    # its answers

    def as_(self, token: str = ADMIN_TOKEN) -> httpx.Client:
        """A client of its API with this person's token."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"http://{self.settings.bind}/api/v1", headers=headers, timeout=150)

    def until_ready(self, within: float = 60) -> None:
        """Wait until it answers that it works."""
        deadline = time.monotonic() + within
        while True:
            try:
                if httpx.get(f"http://{self.settings.bind}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)


def answer(response: httpx.Response, status: int) -> Any:
    """The JSON of an answer that must have this status."""
    assert response.status_code == status, response.text
    return response.json() if response.content else None
