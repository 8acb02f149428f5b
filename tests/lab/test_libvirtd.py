"""A libvirtd of the run's own: where it is used, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vmgpu.errors import SetupError
from vmgpu.lab import kvm, libvirtd, namespace

RUN = [sys.executable, "-m", "vmgpu.lab.namespace", "--"]
root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are root's")


def test_run_without_a_command_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert namespace.main(["--"]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_running_libvirtd_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libvirtd, "_answers_here", lambda: True)
    assert libvirtd.ensure_libvirtd(tmp_path) == "qemu:///system"
    assert list(tmp_path.iterdir()) == []


def test_a_network_namespace_with_the_machines_mounts_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(libvirtd, "_answers_here", lambda: False)
    monkeypatch.setattr(libvirtd, "need_root", lambda _: None)
    monkeypatch.setattr(libvirtd, "need_programs", lambda *_, **__: None)
    monkeypatch.setattr(libvirtd, "_with_init", lambda kind: kind == "mnt")
    with pytest.raises(SetupError) as refusal:
        libvirtd.ensure_libvirtd(tmp_path)
    assert "unshare --net --mount" in refusal.value.hint


def test_a_stranger_with_an_old_number_is_not_ended(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as stranger:
        (tmp_path / "libvirtd.pid").write_text(str(stranger.pid))
        libvirtd.stop(tmp_path)
        assert stranger.poll() is None
        stranger.kill()


def test_whether_kvm_runs_guests_is_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    monkeypatch.setattr(kvm, "_DEVICE", tmp_path)
    monkeypatch.setattr(kvm, "_qemu_version", lambda: "QEMU 1")
    monkeypatch.setattr(kvm, "guest_comes_alive", lambda *_, **__: bool(asked.append(1)))
    memory = tmp_path / "deep" / "kvm.json"
    assert not kvm.kvm_works(memory)
    assert not kvm.kvm_works(memory)
    assert len(asked) == 1
    monkeypatch.setattr(kvm, "_qemu_version", lambda: "QEMU 2")
    kvm.kvm_works(memory)
    assert len(asked) == 2


@root
@pytest.mark.libvirt
def test_the_commands_exit_code_comes_back_and_its_libvirtd_is_empty() -> None:
    script = 'test "$VMGPU_TEST_LIBVIRT" = qemu:///system && test -z "$(virsh -q list --all)" && exit 7'
    assert subprocess.run([*RUN, "sh", "-c", script], check=False).returncode == 7


@root
@pytest.mark.libvirt
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_run_that_is_killed(how: signal.Signals, tmp_path: Path) -> None:
    said = tmp_path / "state"
    script = f'echo "$VMGPU_TEST_LIBVIRT_STATE" > {said}.new && mv {said}.new {said} && exec sleep 600'
    with subprocess.Popen([*RUN, "sh", "-c", script]) as running:
        deadline = time.monotonic() + 60
        while not said.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.send_signal(how)
    state = said.read_text().strip()
    deadline = time.monotonic() + 10
    while left := _who_mentions(state):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _who_mentions(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


@root
@pytest.mark.libvirt
def test_daemons_end_and_start_again_over_the_same_folders() -> None:
    script = """
from pathlib import Path
import os
from vmgpu.lab import libvirtd
state = Path(os.environ["VMGPU_TEST_LIBVIRT_STATE"])
libvirtd.stop(state)
assert not libvirtd._answers_here()
libvirtd.start_daemons(state)
assert libvirtd._answers_here()
assert libvirtd.ensure_libvirtd(state) == "qemu:///system"
"""
    subprocess.run([*RUN, sys.executable, "-c", script], check=True)
