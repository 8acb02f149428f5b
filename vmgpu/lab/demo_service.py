"""`vmgpu serve` as the demo's child: started once its port is free, heard by its log, ended gracefully."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from vmgpu.errors import SetupError
from vmgpu.lab.demo_api import Problem
from vmgpu.service.people import TOKEN_FILE
from vmgpu.settings import Settings

LOG = "service.log"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  who listens everywhere also listens here


def program() -> Path:
    """The command line that belongs to this Python."""
    return Path(sys.executable).with_name("vmgpu")


def url_of(settings: Settings) -> str:
    """Where this machine reaches the service."""
    host = _ANYWHERE.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def must_be_free(settings: Settings) -> None:
    """Refuse a port on which somebody listens already, before minutes have been spent."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as knock:
        knock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            knock.bind((settings.host, settings.port))
            knock.listen()
        except OSError as bad:
            if bad.errno == errno.EADDRINUSE:
                raise SetupError(
                    f"Port {settings.port} is taken: {_who_listens(settings)} listens on {settings.bind}",
                    hint=f"End it, or take another port: VMGPU_BIND={settings.host}:{settings.port + 1} make demo",
                ) from None
            # anything else (a loopback that is still down, a name) may be mended by the time the service starts


class Service:
    """One `vmgpu serve` over its own folder, on SQLite."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder, self._settings = folder, settings
        self.log = folder / LOG
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, within: float = 120.0) -> None:
        """Start it and wait until it is ready."""
        must_be_free(self._settings)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != "VMGPU_DATABASE_URL"}
        environment |= {"VMGPU_DATA_DIR": str(self._folder), "VMGPU_BIND": self._settings.bind}
        # so that it ends with us even where we are killed and cannot end it
        leash = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*leash, str(program()), "serve"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us; we end it when its work is done
            )
        until = time.monotonic() + within
        while not self._is_ready():
            self.must_live()
            if time.monotonic() > until:
                raise Problem(f"The service is not ready after {within:.0f} s", hint=self._told())
            time.sleep(0.1)

    def token(self) -> str:
        """The first admin's token: from the file that the first start left, or as VMGPU_ADMIN_TOKEN gave it."""
        with suppress(OSError):
            return (self._folder / TOKEN_FILE).read_text().strip()
        if self._settings.admin_token:
            return self._settings.admin_token
        raise SetupError(
            f"{self._folder} has no {TOKEN_FILE}: this service was first started with VMGPU_ADMIN_TOKEN",
            hint="Set VMGPU_ADMIN_TOKEN as it was then, or take another folder: VMGPU_DATA_DIR.",
        )

    @property
    def started(self) -> bool:
        """Whether it was started, whatever became of it."""
        return self._process is not None

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def must_live(self) -> None:
        """Raise Problem, with its last words, where it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise Problem(f"The service ended by itself ({self._process.returncode})", hint=self._told())

    def stop(self, *, within: float = 60.0) -> None:
        """End it gracefully, by force if it will not; not running is fine."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self, lines: int) -> list[str]:
        """What it last warned of and what broke; of one that has ended, its last lines where nothing is marked so."""
        try:
            with self.log.open(errors="replace") as log:
                said = list(deque((line.rstrip() for line in log if line.strip()), maxlen=1000))
        except OSError:
            return []
        loud = [line for line in said if _is_loud(line)]
        return [_in_words(line) for line in (loud if loud or self.alive else said)[-lines:]]

    def _told(self) -> str:
        return f"Its log, {self.log}, ends: " + " / ".join(self.last_words(3) or ["(nothing)"])

    def _is_ready(self) -> bool:
        with suppress(httpx.HTTPError):
            # a slow machine's first answer may take its time, and a second question would not hasten it
            return httpx.get(f"{url_of(self._settings)}/readyz", timeout=30, trust_env=False).is_success
        return False


def _is_loud(line: str) -> bool:
    said = _fields(line)
    # what is not one of its own lines is a traceback, or the loader's
    return said is None or str(said.get("level", "")) in ("warning", "error", "critical")


def _in_words(line: str) -> str:
    said = _fields(line)
    if said is None:
        return line
    broke = str(said.get("exception", "")).splitlines()[-1:]
    return " ".join([str(said.get("level", "")), str(said.get("message", "")), *broke])


def _fields(line: str) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _who_listens(settings: Settings) -> str:
    try:
        answer = httpx.get(f"{url_of(settings)}/healthz", timeout=5, trust_env=False)
        if answer.json() == {"status": "ok"}:
            return "another vmgpu"
    except (httpx.HTTPError, ValueError):
        pass
    return "another program"
