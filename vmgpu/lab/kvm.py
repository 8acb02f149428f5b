"""Finds out whether KVM really runs a guest here: a device node that opens proves nothing under nested hypervisors."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from pathlib import Path

from vmgpu.lab.cache import cache_dir
from vmgpu.lab.programs import run
from vmgpu.lab.tiny import ensure_kernel

_DEVICE = Path("/dev/kvm")
_SIGN_OF_LIFE = b"tiny: init"


def kvm_works(memory: Path | None = None, *, within: float = 15.0) -> bool:
    """True if a guest's kernel reaches its init under KVM; asked once per kernel and QEMU, then remembered."""
    memory = memory or cache_dir() / "kvm.json"
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return False
    key = f"{os.uname().release} / {_qemu_version()}"
    answers = _read(memory)
    if key not in answers:
        answers[key] = guest_comes_alive("kvm", within=within)
        memory.parent.mkdir(parents=True, exist_ok=True)
        fresh = memory.with_name(f".{memory.name}.{os.getpid()}")
        fresh.write_text(json.dumps(answers, indent=2) + "\n")
        fresh.replace(memory)
    return answers[key]


def guest_comes_alive(accel: str, *, within: float) -> bool:
    """Boot the tiny guest's kernel directly and see whether its init speaks in time."""
    vmlinuz, initrd = ensure_kernel()
    command = [
        "qemu-system-x86_64", "-machine", f"q35,accel={accel}", "-cpu", "max", "-m", "256",
        "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
        "-kernel", str(vmlinuz), "-initrd", str(initrd), "-append", "console=ttyS0 panic=-1",
    ]  # fmt: skip
    guest = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        return _says(guest, _SIGN_OF_LIFE, within)
    finally:
        guest.kill()
        guest.wait()
        if guest.stdout:
            guest.stdout.close()


def _says(guest: subprocess.Popen[bytes], wanted: bytes, within: float) -> bool:
    assert guest.stdout is not None  # noqa: S101  for the type checker: asked for a pipe above
    deadline, heard = time.monotonic() + within, b""
    with selectors.DefaultSelector() as ready:
        ready.register(guest.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not ready.select(left):
                return False
            piece = os.read(guest.stdout.fileno(), 65536)
            heard += piece
            if wanted in heard:
                return True
            if not piece:
                return False
    return False


def _qemu_version() -> str:
    return run(["qemu-system-x86_64", "--version"], doing="Asking QEMU its version").splitlines()[0]


def _read(memory: Path) -> dict[str, bool]:
    try:
        return dict(json.loads(memory.read_text()))
    except (OSError, ValueError):
        return {}
