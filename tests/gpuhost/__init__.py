"""A GPU host made of a model: its /sys and /proc by FUSE, its NVML by a library, both from one process.

with gpu_host("h100", tmp_path) as host:
    run(hostctl, "--sysroot", host.root, env=host.environment())
    host.model.reboot()
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.gpuhost.refusal import Refused

__all__ = ["FakeHost", "Model", "Refused", "gpu_host", "why_not"]

_ROOM = Path(__file__).parents[2]
_HOSTS = Path(__file__).parent / "hosts"


def why_not() -> str:
    """Why no host can be faked on this machine; empty when it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be used: the fake GPU host's files need FUSE"
    if shutil.which("gcc") is None:
        return "gcc is missing: the fake GPU host's NVML is a small C library"
    try:
        import mfusepy  # noqa: F401  # fails also where libfuse is missing
    except (ImportError, OSError, AttributeError) as error:
        return f"mfusepy, of the development dependencies, does not load: {error}"
    return ""


class Model:
    """The levers of the host: what its hardware, its VMs and its bad days do."""

    def __init__(self, at: Path) -> None:
        self._at = at

    def reboot(self, *, power_cycle: bool = False) -> None:
        """Forget what a reboot forgets; a power cycle also revives dead cards."""
        self._ask("reboot", power_cycle=power_cycle)

    def start_vm(self, vm: str, devices: Sequence[str]) -> int:
        """QEMU opens VFs that carry a vGPU, mdevs by UUID, or functions on vfio-pci; returns its pid."""
        return int(self._ask("start_vm", vm=vm, devices=list(devices)))

    def end_vm(self, vm: str, *, crashed: bool = False) -> None:
        """QEMU is gone; after a crash its vGPUs stay listed but cannot be opened again."""
        self._ask("end_vm", vm=vm, crashed=crashed)

    def guest_ready(self, vm: str, driver: str, *, licensed: bool = True) -> None:
        """The guest's driver has loaded."""
        self._ask("guest_ready", vm=vm, driver=driver, licensed=licensed)

    def hold(self, address: str, command: str) -> int:
        """A process of the host opens a card; returns its pid."""
        return int(self._ask("hold", address=address, command=command))

    def let_go(self, pid: int) -> None:
        self._ask("let_go", pid=pid)

    def kill_card(self, address: str) -> None:
        """The card reads ff from now on."""
        self._ask("kill_card", address=address)

    def keep_mdev(self, uuid: str) -> None:
        """Define an mdev with autostart."""
        self._ask("keep_mdev", uuid=uuid)

    def set_mood(self, kind: str, **how: object) -> None:
        """A bad day, in the words of moods.Mood: path, times, errno, code."""
        self._ask("set_mood", kind=kind, **how)

    def clear_moods(self) -> None:
        """All is well; what hung goes on."""
        self._ask("clear_moods")

    def take(self, **step: object) -> None:
        """A step of describe.take, as somebody else on the host would do it."""
        self._ask("take", step=step)

    def state(self) -> dict[str, Any]:
        """The truth in short."""
        told: dict[str, Any] = self._ask("state")
        return told

    def _ask(self, verb: str, **how: object) -> Any:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self._at))
            line.sendall((json.dumps({"do": verb, "with": how}) + "\n").encode())
            answer = json.loads(line.makefile().readline())
        if "refused" in answer:
            raise Refused(answer["refused"], number=answer["errno"])
        if "wrong" in answer:
            raise ValueError(answer["wrong"])
        return answer["ok"]


@dataclass(frozen=True)
class FakeHost:
    """A running host: `root` is its file system, `model` drives it."""

    root: Path
    model: Model
    nvml: Path
    library: Path

    def environment(self, *, library: bool = True) -> dict[str, str]:
        """Where the real pynvml finds this host; without the library, as on a host without the driver."""
        found = {**os.environ, "VMGPU_FAKE_NVML": str(self.nvml)}
        if library:
            found["LD_LIBRARY_PATH"] = f"{self.library}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
        return found


@contextmanager
def gpu_host(
    description: str | Mapping[str, Any], folder: Path, *, mood: str | Mapping[str, Any] | None = None
) -> Iterator[FakeHost]:
    """A host by the name of its description, or by a description of one's own; it ends with the block."""
    from tests.gpuhost import library as nvml_library
    from tests.gpuhost import mount  # mfusepy may be missing: why_not() tells

    mount.unmount_leftovers()
    sockets = Path(mkdtemp(prefix="gpuhost-"))  # a socket's path has room for 107 characters only
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(mkdtemp(prefix="root-", dir=folder))
    told = root.with_suffix(".json")
    text = (_HOSTS / f"{description}.json").read_text() if isinstance(description, str) else json.dumps(description)
    told.write_text(text)
    command = [sys.executable, "-m", "tests.gpuhost", str(told), "--mount", str(root), "--until-eof"]
    command += ["--nvml", str(sockets / "nvml"), "--levers", str(sockets / "levers")]
    process = subprocess.Popen(command, cwd=_ROOM, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise RuntimeError("the fake GPU host did not start")
        host = FakeHost(root, Model(sockets / "levers"), sockets / "nvml", nvml_library.build())
        if mood:
            host.model.set_mood(**({"kind": mood} if isinstance(mood, str) else mood))
        yield host
    finally:
        mount.unmount(root)
        process.kill()  # also ends writes that hang
        process.communicate()
        shutil.rmtree(sockets, ignore_errors=True)
