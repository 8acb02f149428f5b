"""A text that changes when a host boots; libvirt itself knows none."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import libvirt

from vmgpu.hypervisor import here

# Wiped by every boot: a file that is still there was laid since. All installations share the one mark.
_FOLDER = "/run/vmgpu-boot"
_POOL = "vmgpu-boot"


def boot_id(connection: Any, root: Path | None, *, folder: str = _FOLDER) -> str:
    """The kernel's own boot id on this machine; on another a mark that we lay into its /run, by libvirt alone.

    "" is unknown: the host lets us lay no mark.
    """
    if root is not None:
        return here.boot_id(root)
    try:
        return _mark(connection, folder)
    except libvirt.libvirtError:
        if connection.isAlive():
            return ""
        raise


def _mark(connection: Any, folder: str) -> str:
    pool = _pool(connection, folder)
    pool.refresh(0)
    marks = sorted(pool.listVolumes())
    if not marks:
        pool.createXML(f"<volume><name>{uuid4()}</name><capacity>0</capacity></volume>", 0)
        pool.refresh(0)
        marks = sorted(pool.listVolumes())
    # Two that laid one at the same instant both read the first by name from here on.
    return str(marks[0])


def _pool(connection: Any, folder: str) -> Any:
    """A transient pool: libvirtd's restart forgets the pool, not the file."""
    with contextlib.suppress(libvirt.libvirtError):
        return connection.storagePoolLookupByName(_POOL)
    described = f"<pool type='dir'><name>{_POOL}</name><target><path>{folder}</path></target></pool>"
    try:
        return connection.storagePoolCreateXML(described, libvirt.VIR_STORAGE_POOL_CREATE_WITH_BUILD)
    except libvirt.libvirtError:
        return connection.storagePoolLookupByName(_POOL)  # another of us was first
