"""`vmgpu serve` as a process of its own, and the calls that benches make to it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from vmgpu.errors import SetupError

Found = TypeVar("Found")

_KEPT = ("VMGPU_ACCEL", "VMGPU_CACHE_DIR")  # how guests run here, and where their images lie
_LOOK = 0.005


class Serving:
    """One `vmgpu serve` on SQLite, over a data folder that outlives it."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder, self.token = folder, secrets.token_urlsafe(24)
        self.port = _free_port()
        self.log = folder.with_name(f"{folder.name}.log")
        theirs = {name: value for name, value in os.environ.items() if not name.startswith("VMGPU_") or name in _KEPT}
        self.environment = theirs | {
            "VMGPU_DATA_DIR": str(folder),
            "VMGPU_BIND": f"127.0.0.1:{self.port}",
            "VMGPU_ADMIN_TOKEN": self.token,
            "VMGPU_LOG": "text",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._http: httpx.Client | None = None

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process
        return self._process.pid

    def start(self) -> float:
        """Start it; the seconds until the first 200 on /healthz."""
        program = Path(sys.executable).with_name("vmgpu")
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([program, "serve"], env=self.environment, stdout=log, stderr=log)
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() - began > 60:
                self.stop()
                raise SetupError("vmgpu serve does not come up:\n" + self.log_end(), hint=f"Its log is {self.log}.")
            time.sleep(_LOOK)
        return time.monotonic() - began

    def stop(self) -> None:
        """End it, gracefully if it will."""
        if self._http:
            self._http.close()
            self._http = None
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def get(self, path: str) -> Any:
        """What lies at an address below /api/v1."""
        return self._call("GET", path)

    def items(self, path: str) -> list[dict[str, Any]]:
        """The list at an address."""
        found: list[dict[str, Any]] = self.get(path)["items"]
        return found

    def post(self, path: str, body: object = None) -> Any:
        """Ask for something."""
        return self._call("POST", path, json=body)

    def send(self, path: str, file: Path) -> Any:
        """Upload a file."""
        with file.open("rb") as stream:
            return self._call("POST", path, content=iter(lambda: stream.read(1 << 20), b""))

    def wait(self, what: str, look: Callable[[], Found | None], *, within: float = 600, every: float = 0.5) -> Found:
        """What `look` finds, as soon as it is something."""
        until = time.monotonic() + within
        while (found := look()) is None:
            if time.monotonic() > until:
                raise SetupError(f"{what}: not within {within:.0f} s\n{self.log_end()}", hint=f"The log: {self.log}.")
            time.sleep(every)
        return found

    def log_end(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:]) if self.log.exists() else ""

    def _call(self, method: str, path: str, **more: Any) -> Any:
        if self._http is None:
            self._http = httpx.Client(
                base_url=f"http://127.0.0.1:{self.port}/api/v1",
                headers={"Authorization": f"Bearer {self.token}"},
                timeout=330,
                trust_env=False,
            )
        answer = self._http.request(method, path, **more)
        if not answer.is_success:
            raise SetupError(f"{method} {path} was answered with {answer.status_code}: {answer.text[:500]}", hint="")
        return answer.json()

    def _healthy(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as line:
                line.settimeout(5)
                line.sendall(b"GET /healthz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
                return line.recv(64).split(b" ", 2)[1:2] == [b"200"]
        except OSError:
            return False


@contextmanager
def serving(folder: Path, **settings: str) -> Iterator[Serving]:
    """A service that runs for the time of a block."""
    service = Serving(folder, **settings)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
