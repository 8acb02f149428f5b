"""The service as a process: it starts, does the work, and ends when told to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.slow

VMGPU = [sys.executable, "-c", "from vmgpu.cli import main; main()"]


def _environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VMGPU_")}
    return kept | {"VMGPU_DATA_DIR": str(folder), "VMGPU_LOG": "text"} | more


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _at_a_terminal(folder: Path) -> str:
    """What a start of the service writes to a terminal until it listens."""
    ours, theirs = os.openpty()
    process = subprocess.Popen([*VMGPU, "serve", "--bind", "127.0.0.1:0"], env=_environment(folder), stderr=theirs)
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # the terminal is gone when the process is
        while b"listening on" not in seen and (more := os.read(ours, 4096)):
            seen += more
    process.kill()
    process.wait()
    os.close(ours)
    return seen.decode()


def test_the_first_start_tells_a_person_where_the_token_lies(tmp_path: Path) -> None:
    first = _at_a_terminal(tmp_path)
    assert f"token lies in {tmp_path}/admin-token" in first and "vmgpu host add" in first
    assert "token" not in _at_a_terminal(tmp_path)


class Served:
    """A running `vmgpu serve`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [*VMGPU, "serve", "--bind", f"127.0.0.1:{self.port}"], env=_environment(folder), stderr=self.log
        )
        for _ in range(600):
            try:
                if httpx.get(f"{self.url}/healthz").status_code == 200:
                    return
            except httpx.ConnectError:
                assert self.process.poll() is None, self.said()
                time.sleep(0.05)
        raise AssertionError(self.said())

    def said(self) -> str:
        return (self.folder / "log").read_text()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=40)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    started = Served(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()
    started.log.close()


def test_the_whole_story_on_a_simulated_host(served: Served, run: Run) -> None:
    def vmgpu(*arguments: str) -> object:
        said = run(*arguments, "--json", VMGPU_URL=served.url, VMGPU_DATA_DIR=str(served.folder))
        assert said.code == 0, (arguments, said.err)
        return said.json

    vmgpu("host", "add", "h1", "fake://1xA100-40GB")
    vmgpu("gpu", "unit", "A100-40GB", "0.5")
    vmgpu("flavor", "add", "one", "--fgpu", "1")
    vmgpu("vm", "request", "--name", "s{n}", "--count", "2", "--flavor", "one", "--image", "base", "--wait")
    third = vmgpu("vm", "request", "--name", "s3", "--flavor", "one", "--image", "base")["items"][0]  # type: ignore[index]
    assert third["state"] == "pending" and third["position"] == 1
    assert "s1-" in vmgpu("vm", "console", "s1")["text"]  # type: ignore[index]
    vmgpu("vm", "release", "s1", "--wait")
    for _ in range(200):
        shown = vmgpu("vm", "show", "s3")
        if shown["state"] == "running":  # type: ignore[index]
            break
        time.sleep(0.1)
    assert shown["state"] == "running"  # type: ignore[index]
    assert httpx.get(f"{served.url}/readyz").status_code == 200
    token = (served.folder / "admin-token").read_text().strip()
    with httpx.stream("GET", f"{served.url}/live", headers={"authorization": f"Bearer {token}"}) as news:
        assert news.status_code == 200
        lines = news.iter_lines()
        assert next(lines) == "event: changed"
        # an open stream does not hold the end up: it is told to end, not waited for
        assert served.end(signal.SIGTERM) == 0, served.said()
        list(lines)
    assert "Cancel" not in served.said()
    assert "Traceback" not in served.said()


def test_a_second_one_is_refused_and_ctrl_c_ends_the_first(served: Served) -> None:
    second = subprocess.run(
        [*VMGPU, "serve", "--bind", "127.0.0.1:0"], env=_environment(served.folder), capture_output=True, text=True
    )
    assert second.returncode == 1
    assert f"Another vmgpu serve (process {served.process.pid}) works in {served.folder} already" in second.stderr
    other = served.folder / "other"
    taken = subprocess.run(
        [*VMGPU, "serve", "--bind", f"127.0.0.1:{served.port}"],
        env=_environment(other),
        capture_output=True,
        text=True,
    )
    assert taken.returncode == 1 and "the port is taken" in taken.stderr
    assert served.end(signal.SIGINT) == 0, served.said()
    # kill -9 or not: the lock went with the process
    assert Served(served.folder).end(signal.SIGTERM) == 0


def test_what_sqlite_cannot_do_is_refused(tmp_path: Path) -> None:
    for arguments in (["serve", "--no-worker"], ["worker"]):
        done = subprocess.run([*VMGPU, *arguments], env=_environment(tmp_path), capture_output=True, text=True)
        assert done.returncode == 1 and "On SQLite one process does everything" in done.stderr
    for bind in ("nonsense", "127.0.0.1:x", "127.0.0.1:99999"):
        done = subprocess.run(
            [*VMGPU, "serve", "--bind", bind], env=_environment(tmp_path), capture_output=True, text=True
        )
        assert done.returncode == 1 and "is no address to listen on" in done.stderr
    assert "Traceback" not in done.stderr
