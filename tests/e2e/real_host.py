"""The run's own host as somebody at its keyboard sees it: what is there, and what a hand can do."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import libvirt
from defusedxml import ElementTree
from sqlmodel import select

from tests.e2e.service import Service
from tests.hypervisor.live import start_daemon, stop_daemon
from vmgpu.hypervisor import domain
from vmgpu.hypervisor.volumes import FOLDER
from vmgpu.models import VM, Image, Slice, VMState

NVRAM = "/var/lib/libvirt/qemu/nvram"


@contextmanager
def hand() -> Iterator[Any]:
    """A connection that nobody else uses."""
    with closing(libvirt.open(os.environ["VMGPU_TEST_LIBVIRT"])) as connection:
        yield connection


def traces() -> frozenset[str]:
    """All that VMs, images and hosts may leave on a host, one line each."""
    with hand() as host:
        found = [f"domain {each.name()}" for each in host.listAllDomains()]
        found += [f"network {each.name()}" for each in host.listAllNetworks()]
        found += [f"pool {each.name()}" for each in host.listAllStoragePools()]
    found += [f"file {path}" for folder in (FOLDER, NVRAM) for path in Path(folder).glob("*")]
    found += [f"qemu {vm_id}" for vm_id in qemus()]
    return frozenset(found)


def qemus() -> list[str]:
    """The UUID of every QEMU that runs, once for each process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has just ended
        if "-uuid" in words:
            found.append(words[words.index("-uuid") + 1])
    return found


def qemu_pid(vm_id: str) -> int:
    """The one process that runs this VM."""
    (pid,) = (
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and f"-uuid\0{vm_id}\0".encode() in path.read_bytes()
    )
    return pid


def video_kib(vm_id: str) -> list[int]:
    """The video memory of each emulated card that the domain has."""
    with hand() as host:
        tree = ElementTree.fromstring(host.lookupByUUIDString(vm_id).XMLDesc())
    return [int(model.get("vram", 0)) for model in tree.findall("devices/video/model") if model.get("type") == "bochs"]


def destroy(vm_id: str, *, undefine: bool = False) -> None:
    """Take a VM's power, and its definition, behind the service's back."""
    with hand() as host:
        found = host.lookupByUUIDString(vm_id)
        if found.isActive():
            found.destroy()
        if undefine:
            found.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)


def must_be_sound(service: Service, before: frozenset[str]) -> None:
    """What is true at every moment, also in the middle of a step: nothing twice, nothing that no row knows."""
    with service.db.read() as session:
        vms = {vm.id: vm for vm in session.exec(select(VM).where(VM.state != VMState.gone)).all()}
        known_images = [image.id for image in session.exec(select(Image)).all()]
        cuts = session.exec(select(Slice)).all()
    with hand() as host:
        marks = {each.UUIDString(): domain.mark(each) for each in host.listAllDomains()}
    ours = {vm_id for vm_id, (installation, _) in marks.items() if installation == service.installation}
    assert ours <= set(vms), "a domain without a row"
    running = [vm_id for vm_id in qemus() if f"qemu {vm_id}" not in before]
    assert sorted(running) == sorted(set(running) & set(vms)), "a second QEMU, or one without a row"
    parts = (*vms, *(f"image-{each}" for each in known_images))
    files = {line for line in traces() - before if line.startswith("file")}
    assert {line for line in files if not any(part in line for part in parts)} == set(), "a file without a row"
    held = [(cut.gpu_id, cell) for cut in cuts for cell in range(cut.start, cut.start + cut.cells)]
    assert len(held) == len(set(held)), "a piece of a card is held twice"
    assert len({cut.vm_id for cut in cuts}) == len(cuts), "a VM holds two slices"
    assert {cut.vm_id for cut in cuts} <= set(vms), "a slice of nobody"


def reboot() -> None:
    """What a reboot does to a host: no process, bridge or file of the running system outlives it, only the disks do.

    The kernel's boot id stays: who reads it, must be shown another (`another_boot_id`).
    """
    with hand() as host:
        bridges = [each.bridgeName() for each in host.listAllNetworks() if each.isActive()]
    for vm_id in qemus():
        os.kill(qemu_pid(vm_id), signal.SIGKILL)
    command = stop_daemon()
    try:
        for pid_file in Path("/run/libvirt/network").glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
        for bridge in bridges:
            subprocess.run(["ip", "link", "delete", bridge], check=True)
        for folder in ("network", "qemu", "storage"):
            for path in Path("/run/libvirt", folder).rglob("*"):
                if path.is_file():
                    path.unlink()
    finally:
        start_daemon(command)  # whatever goes wrong here, the other tests keep their libvirtd


@contextmanager
def another_boot_id(folder: Path) -> Iterator[None]:
    """Until the block ends all programs here read another boot id."""
    shown = folder / "boot_id"
    shown.write_text(f"{uuid.uuid4()}\n")
    kernels = "/proc/sys/kernel/random/boot_id"
    subprocess.run(["mount", "--bind", str(shown), kernels], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", kernels], check=True)


def clear(before: frozenset[str]) -> None:
    """Remove the domains of a story that broke off, so that the next finds the host as it was."""
    with hand() as host:
        for found in host.listAllDomains():
            if f"domain {found.name()}" not in before:
                if found.isActive():
                    found.destroy()
                if found.isPersistent():
                    found.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)
