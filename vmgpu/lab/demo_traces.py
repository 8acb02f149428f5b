"""What the demo's VMs and images leave on this machine's hypervisor, seen from outside the product."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vmgpu.errors import SetupError
from vmgpu.hypervisor.volumes import FOLDER, POOL
from vmgpu.lab.programs import run

NETWORK = "vmgpu"
_NVRAM = Path("/var/lib/libvirt/qemu/nvram")
_LOOKING = "Looking at what is left"


@dataclass(frozen=True)
class Before:
    """What was there already, and is somebody else's."""

    pool: bool
    network: bool


def before(uri: str) -> Before:
    """Look before anything is made."""
    return Before(POOL in _names(uri, "pool-list"), NETWORK in _names(uri, "net-list"))


def left(uri: str, was: Before, ids: Iterable[str]) -> list[str]:
    """Each thing that is still there, in words: domains, processes, files, our pool and network."""
    known = sorted(set(ids))
    domains = set(run(["virsh", "-c", uri, "list", "--all", "--uuid"], doing=_LOOKING).split())
    found = [f"domain {one}" for one in known if one in domains]
    found += [f"process {pid} of VM {one}" for one in known for pid in _processes(one)]
    found += [f"file {path}" for one in known for path in _files(one)]
    if not was.pool and POOL in _names(uri, "pool-list"):
        found.append(f"storage pool {POOL}")
    if not was.network and NETWORK in _names(uri, "net-list"):
        found.append(f"network {NETWORK}")
    return found


def sweep(uri: str, was: Before, ids: Iterable[str]) -> None:
    """Remove by hand what the service, for whatever reason, could not; nothing there is fine."""
    for one in sorted(set(ids)):
        _try(uri, "destroy", one)
        _try(uri, "undefine", one, "--nvram")
        for path in _files(one):
            with suppress(OSError):
                path.unlink()
    if not was.pool:
        for verb in ("pool-destroy", "pool-delete", "pool-undefine"):
            _try(uri, verb, POOL)
    if not was.network:
        for verb in ("net-destroy", "net-undefine"):
            _try(uri, verb, NETWORK)


def power_off_all(uri: str) -> list[str]:
    """Take the power from every guest of this libvirtd; the answer is their names."""
    names = run(["virsh", "-c", uri, "list", "--name"], doing="Listing the guests").split()
    for name in names:
        _try(uri, "destroy", name)
    return names


def _try(uri: str, *verb: str) -> None:
    with suppress(SetupError):
        run(["virsh", "-q", "-c", uri, *verb], doing="Removing what is left")


def _names(uri: str, verb: str) -> list[str]:
    return run(["virsh", "-c", uri, verb, "--all", "--name"], doing=_LOOKING).split()


def _files(one: str) -> list[Path]:
    """By the id in the name; NVRAM may also lie where libvirt itself would put it."""
    return sorted([*Path(FOLDER).glob(f"*{one}*"), *_NVRAM.glob(f"*{one[:8]}*")])


def _processes(one: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"-uuid" in words and one.encode() in words:
                found.append(int(folder.name))
    return found
