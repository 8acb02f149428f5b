"""What the tests on a real libvirtd share."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import libvirt

from vmgpu.hypervisor import Network, NetworkRef, VMSpec
from vmgpu.hypervisor.kvm import KvmHost

INSTALLATION = "8d7c3f5e-test"
NAT = NetworkRef(Network.nat, "vmgpu")

SpecMaker = Callable[..., VMSpec]


def silent(_percent: int) -> None:
    pass


def build(host: KvmHost, spec: VMSpec) -> None:
    host.ensure_disk(spec)
    host.ensure_defined(spec)


def boot(host: KvmHost, spec: VMSpec) -> str:
    build(host, spec)
    host.ensure_running(spec.id)
    return wait_address(host, spec)


def wait_for(what: Callable[[], object], within: float = 30) -> None:
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def pool_names() -> set[str]:
    with closing(libvirt.open("qemu:///system")) as connection:
        return set(connection.storagePoolLookupByName("vmgpu").listVolumes())


def daemon_pid() -> int:
    with socket.socket(socket.AF_UNIX) as knock:
        knock.connect("/run/libvirt/libvirt-sock")
        return int(struct.unpack("3i", knock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def stop_daemon() -> list[str]:
    """End libvirtd, its guests run on; the command that starts it again."""
    pid = daemon_pid()
    command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: is_over(pid))
    return command


def is_over(pid: int) -> bool:
    """Whether a process has ended; one that nobody has asked for its end yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is read
        return True


def start_daemon(command: list[str]) -> None:
    subprocess.run(command, check=True)
    with socket.socket(socket.AF_UNIX) as knock:
        wait_for(lambda: knock.connect_ex("/run/libvirt/libvirt-sock") == 0)


def wait_address(host: KvmHost, spec: VMSpec, within: float = 60) -> str:
    """The guest's address, once it has one."""
    deadline = time.monotonic() + within
    while (address := host.address(spec.id, spec.mac, spec.network)) is None:
        assert time.monotonic() < deadline, host.console(spec.id)
        time.sleep(0.2)
    return address
