"""What is left is seen by the ids of the demo's own things; what others have is not looked at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmgpu.lab import demo_traces
from vmgpu.lab.demo_traces import Before

OURS, OTHERS = "3b1f0c9e-0000-4000-8000-000000000001", "77aa0c9e-0000-4000-8000-000000000002"


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What virsh says, by verb; the verbs that change something are noted under their own name."""
    said = {"list": OTHERS, "pool-list": "default\n", "net-list": "default\n"}

    def run(argv: list[str], *, doing: str) -> str:
        words = [word for word in argv if word not in ("virsh", "-q", "-c", "qemu:///system")]
        if words[0] not in ("list", "pool-list", "net-list"):
            said[" ".join(words)] = ""
        return said.get(words[0], "")

    monkeypatch.setattr(demo_traces, "run", run)
    monkeypatch.setattr(demo_traces, "FOLDER", str(tmp_path / "pool"))
    monkeypatch.setattr(demo_traces, "_NVRAM", tmp_path / "nvram")
    (tmp_path / "pool").mkdir()
    (tmp_path / "nvram").mkdir()
    return said


@pytest.fixture
def guest() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like our VM's."""
    play = "import time; print('here', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", play, "-uuid", OURS], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()  # before that /proc may not tell its arguments yet
    yield process
    process.kill()
    process.wait()


def test_nothing_of_others_is_taken_for_ours(said: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / f"pool/{OTHERS}.qcow2").touch()
    said["pool-list"] += "vmgpu\n"
    said["net-list"] += "vmgpu\n"
    assert demo_traces.left("qemu:///system", Before(pool=True, network=True), [OURS]) == []


def test_each_kind_of_trace_is_seen(said: dict[str, str], tmp_path: Path, guest: subprocess.Popen[bytes]) -> None:
    said["list"] = f"{OURS}\n{OTHERS}\n"
    said["pool-list"] += "vmgpu\n"
    said["net-list"] += "vmgpu\n"
    (tmp_path / f"pool/{OURS}.seed.iso").touch()
    (tmp_path / "nvram/s1-3b1f0c9e_VARS.fd").touch()
    assert demo_traces.left("qemu:///system", Before(pool=False, network=False), [OURS]) == [
        f"domain {OURS}",
        f"process {guest.pid} of VM {OURS}",
        f"file {tmp_path}/nvram/s1-3b1f0c9e_VARS.fd",
        f"file {tmp_path}/pool/{OURS}.seed.iso",
        "storage pool vmgpu",
        "network vmgpu",
    ]


def test_a_sweep_removes_only_what_is_ours(said: dict[str, str], tmp_path: Path) -> None:
    mine, other = tmp_path / f"pool/{OURS}.qcow2", tmp_path / f"pool/{OTHERS}.qcow2"
    mine.touch()
    other.touch()
    demo_traces.sweep("qemu:///system", Before(pool=True, network=False), [OURS])
    assert not mine.exists() and other.exists()
    changed = [verb for verb in said if verb not in ("list", "pool-list", "net-list")]
    assert changed == [f"destroy {OURS}", f"undefine {OURS} --nvram", "net-destroy vmgpu", "net-undefine vmgpu"]
