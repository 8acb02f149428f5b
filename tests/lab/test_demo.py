"""The demo's story against a real `vmgpu serve`, on a simulated host: nobody logs in there, all else is real."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from vmgpu.lab import demo
from vmgpu.lab.demo_api import Api
from vmgpu.lab.demo_service import Service, url_of
from vmgpu.lab.demo_story import Stage
from vmgpu.settings import Settings

URI = "fake://1xA100-40GB"
PLAY = """
import sys
from vmgpu.lab.demo import main
from vmgpu.lab.demo_story import Stage
stage = Stage(sys.argv[2], (), "base", None, patience=90, every=0.1)
sys.exit(main(once=sys.argv[1] == "once", gpu=None, stage=stage))
"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A port that is free, a folder for what stays, and another for what must not."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        monkeypatch.setenv("VMGPU_BIND", f"127.0.0.1:{any_port.getsockname()[1]}")
    monkeypatch.setenv("VMGPU_DATA_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "once"))
    (tmp_path / "once").mkdir()
    return tmp_path


@pytest.fixture
def service(place: Path) -> Iterator[Service]:
    """The service of the kept folder, as somebody started it before the demo."""
    service = Service(place / "kept", settings())
    service.start()
    yield service
    service.stop()


def settings() -> Settings:
    return Settings()


def stage(uri: str = URI, *, patience: float = 90) -> Stage:
    return Stage(uri, (), "base", None, patience=patience, every=0.1)


def left(place: Path) -> list[str]:
    return [path.name for path in (place / "once").iterdir()]


class Playing:
    """The demo in a process of its own, as a person at a terminal has it."""

    def __init__(self, how: str, uri: str = URI) -> None:
        self.heard = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", PLAY, how, uri],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=Path(demo.__file__).parents[2],
        )

    def until(self, word: str) -> str:
        """Read until this is said."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.heard += line
            if word in line:
                return line
        pytest.fail(f"{word!r} was not said:\n{self.heard}")

    def end(self, number: int = signal.SIGINT) -> int:
        """Press Ctrl-C and read to the end."""
        self._process.send_signal(number)
        self.heard += self._process.communicate()[0]
        return self._process.returncode


def test_the_story_is_seen_and_nothing_is_left(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(once=True, gpu=None, stage=stage()) == 0
    told = capsys.readouterr().out
    assert "s3 is pending at position 1: Both places for 3g.20gb" in told
    assert "1 fGPU is 3g.20gb on A100-40GB: 50 % of memory, 43 % of compute; 2 fit on a card" in told
    assert "demo/prepared:v1 is ready: private to student" in told
    assert "NOT SEEN" not in told
    assert len(re.findall(r"^ +\d+  .* s  seen$", told, re.MULTILINE)) == 12
    assert left(place) == []
    assert not (place / "kept").exists()


def test_it_goes_on_serving_and_is_found_again(place: Path) -> None:
    first = Playing("stay")
    link = re.search(r"http\S+/signin\S+", first.until("sign in"))
    assert link
    assert httpx.get(link[0], trust_env=False).status_code in (200, 303)
    first.until("As the admin")
    export = re.search(r"export (VMGPU_URL)=(\S+) (VMGPU_TOKEN)=\$\(cat (\S+)\)", first.heard)
    assert export
    as_told = {export[1]: export[2], export[3]: Path(export[4]).read_text().strip()}
    vmgpu = Path(sys.executable).with_name("vmgpu")
    listed = subprocess.run([vmgpu, "vm", "list"], env=os.environ | as_told, capture_output=True, text=True, check=True)
    assert "clone" in listed.stdout
    assert first.end() == 0
    assert "s1 (running), clone (running): they stay as they are" in first.heard
    assert f"rm -r {place / 'kept'}" in first.heard

    second = Playing("stay")
    second.until("sign in")
    assert "What an earlier demo left is released" in second.heard
    assert second.end(signal.SIGTERM) == 0
    assert "Traceback" not in first.heard + second.heard


@pytest.mark.parametrize(("said", "named"), [('{"status":"ok"}', "another vmgpu"), ("<html>", "another program")])
def test_a_taken_port_is_said_before_anything_is_made(
    said: str, named: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(said.encode())

        def log_message(self, *_: object) -> None: ...

    port = settings().port
    with HTTPServer(("127.0.0.1", port), Other) as other:
        listening = threading.Thread(target=other.serve_forever, args=[0.01])
        listening.start()
        assert demo.main(once=True, gpu=None, stage=stage()) == 1
        other.shutdown()
        listening.join()
    told = capsys.readouterr().out
    assert f"Port {port} is taken: {named} listens on 127.0.0.1:{port}" in told
    assert f"VMGPU_BIND=127.0.0.1:{port + 1}" in told
    assert left(place) == []


@pytest.mark.parametrize("bind", ["nowhere", "127.0.0.1:", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(
    bind: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VMGPU_BIND", bind)
    assert demo.main(once=True, gpu=None, stage=stage()) == 1
    assert "VMGPU_BIND" in capsys.readouterr().out
    assert left(place) == []


def test_a_vm_that_fails_is_told_and_leaves_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(once=True, gpu=None, stage=stage(f"{URI}?mood=cardless")) == 1
    told = capsys.readouterr().out
    assert "The guest does not show its card" in told
    assert "The end of its console" in told
    assert "s1 and s2 run" in told and "NOT SEEN" in told
    assert "Traceback" not in told
    assert left(place) == []


def test_a_step_that_takes_too_long_ends_the_story(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(once=True, gpu=None, stage=stage(f"{URI}?mood=slow", patience=1)) == 1
    assert "s1 and s2 running was not seen within 2 s" in capsys.readouterr().out
    assert left(place) == []


def test_ctrl_c_in_the_middle_leaves_nothing(place: Path) -> None:
    playing = Playing("once", f"{URI}?mood=slow")
    playing.until("s1 and s2 run")
    assert playing.end() == 130
    assert "All that was made is removed" in playing.heard
    assert "Traceback" not in playing.heard
    assert left(place) == []


def test_a_service_that_dies_is_said(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VMGPU_WORKERS", "none")
    assert demo.main(once=True, gpu=None, stage=stage()) == 1
    told = capsys.readouterr().out
    assert "VMGPU_WORKERS" in told
    assert left(place) == []


def test_names_that_are_somebody_elses_are_not_taken(
    service: Service, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A VM of another person on the card is not released: the demo says whose it is."""
    admin = Api(url_of(settings()), service.token())
    admin.post("hosts", body={"name": "local", "uri": URI}, wait=60)
    admin.put("gpu-units", "A100-40GB", body={"share": "0.5"})
    admin.post("flavors", body={"name": "half-a100", "vcpus": 1, "memory": "1g", "disk": "4g", "fgpu": "1"})
    admin.request(name="s1", flavor="half-a100", image="base")
    service.stop()
    assert demo.main(once=False, gpu=None, stage=stage()) == 1
    told = capsys.readouterr().out
    assert "s1 holds a piece of the emulated card" in told
    assert "vmgpu vm release s1" in told

    service.start()
    (vm,) = Api(url_of(settings()), service.token()).vms()
    assert (vm.owner, vm.name) == ("admin", "s1")
    assert vm.wanted == "running"


def test_a_card_that_is_not_there_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(once=True, gpu="0000:ff:1f.7", stage=stage()) == 1
    assert "There is no card at 0000:ff:1f.7" in capsys.readouterr().out
    assert left(place) == []
