"""Runs a command in network, mount and process namespaces of its own, with a libvirtd that dies with it.

`python -m vmgpu.lab.namespace -- COMMAND`
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from vmgpu.errors import SetupError, VmgpuError
from vmgpu.lab import libvirtd
from vmgpu.lab.kvm import kvm_works
from vmgpu.lab.programs import need_root, run

# Not /tmp: on Debian 13 that is memory, and guests' disks lie here.
_BASE = Path("/var/tmp")  # noqa: S108  the name below it is made by mkdtemp
_PREFIX = "vmgpu-lab-"
INSIDE = "VMGPU_TEST_LIBVIRT_STATE"  # what the command's environment has, and no other's
_NEW_MOUNTS, _NEW_PROCESSES, _NEW_NETWORK = 0x00020000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1


def run_inside(command: Sequence[str]) -> int:
    """Run `command` with a private libvirtd at qemu:///system and return its exit code; nothing outlives it."""
    need_root("Making namespaces")
    with suppress(SetupError):
        kvm_works()  # from here, where there may be a network to build the guest that answers it
    _sweep()
    state = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_BASE))
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _supervise(state, command)
        finally:
            shutil.rmtree(state, ignore_errors=True)


def _sweep() -> None:
    """Remove what a run left that was killed too hard to do it itself: a folder whose lock nobody holds."""
    for state in _BASE.glob(f"{_PREFIX}*"):
        with suppress(OSError), (state / "lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(state, ignore_errors=True)


def _supervise(state: Path, command: Sequence[str]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    _unshare(_NEW_PROCESSES)  # takes effect for the child: it becomes process 1, and all end when it ends
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _process_one(state, command, parent)
        except VmgpuError as error:
            print(f"error: {error.message}\n{error.hint}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _pass_signals_to(child)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _process_one(state: Path, command: Sequence[str], parent: int) -> int:
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if not os.path.exists(f"/proc/{parent}"):  # noqa: PTH110  it died before the line above
        return 1
    _unshare(_NEW_MOUNTS | _NEW_NETWORK)
    run(["mount", "--make-rprivate", "/"], doing="Separating the mounts")
    run(["mount", "-t", "proc", "proc", "/proc"], doing="Showing this namespace's processes")
    libvirtd.start_private(state)
    environment = os.environ | {"VMGPU_TEST_LIBVIRT": libvirtd.URI, INSIDE: str(state)}
    try:
        running = subprocess.Popen(command, env=environment)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    _pass_signals_to(running.pid)
    # Process 1 inherits every orphan; libvirt takes a QEMU that nobody collects for one that still runs.
    while True:
        pid, status = os.wait()
        if pid == running.pid:
            running.returncode = code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _pass_signals_to(pid: int) -> None:
    def forward(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    # Ctrl-C reaches the command from the terminal itself; it decides, and we wait for what it says.
    signal.signal(signal.SIGINT, lambda *_: None)


def _unshare(flags: int) -> None:
    if _libc().unshare(flags):
        problem = os.strerror(ctypes.get_errno())
        raise SetupError(
            f"This machine gives out no namespaces: {problem}",
            hint="In a container, grant it CAP_SYS_ADMIN; the libvirt tests need it.",
        )


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> int:
    """Run a command with a libvirtd of its own."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command:
        print("usage: python -m vmgpu.lab.namespace -- COMMAND [ARGUMENT...]", file=sys.stderr)
        return 2
    try:
        return run_inside(command)
    except VmgpuError as error:
        print(f"error: {error.message}\n{error.hint}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
