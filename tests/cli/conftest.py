"""A real server on a loopback port, and the command line that calls it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests import factories
from vmgpu.api import create_app
from vmgpu.cli import _run
from vmgpu.db import Database
from vmgpu.settings import Settings


@dataclass
class Said:
    """What one command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


@dataclass
class Service:
    """One installation that answers at `url`."""

    db: Database
    settings: Settings
    url: str


Run = Callable[..., Said]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server of its own for each module of tests."""
    with serving(factories.make_settings(tmp_path_factory.mktemp("service"))) as made:
        yield made


@contextmanager
def serving(settings: Settings) -> Iterator[Service]:
    """A server on a database of its own, for as long as the block."""
    db = factories.make_database(settings)
    server = uvicorn.Server(uvicorn.Config(create_app(db, settings), port=0, log_config=None, ws="none"))
    started = threading.Event()
    server_started = server.startup

    async def startup(sockets: Any = None) -> None:
        await server_started(sockets)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    assert started.wait(30)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Service(db, settings, f"http://127.0.0.1:{port}")
    server.should_exit = True
    thread.join()
    db.close()


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run one command of vmgpu in this process."""
    monkeypatch.setenv("HOME", str(tmp_path))

    def go(*arguments: str, **environment: str) -> Said:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            capfd.readouterr()
            code = _run(list(arguments))
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return go


@pytest.fixture
def vmgpu(run: Run, service: Service, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same, as the admin of `service`."""
    monkeypatch.setenv("VMGPU_URL", service.url)
    monkeypatch.setenv("VMGPU_TOKEN", factories.ADMIN_TOKEN)
    return run
