"""The files of a host's pool: images, disks on top of them, seeds, consoles, and what is left of a VM."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import libvirt
from defusedxml import ElementTree

from vmgpu import render
from vmgpu.errors import HostRefused, ReasonCode, reason
from vmgpu.hypervisor import ImageRef, Progress, VMSpec, transfer
from vmgpu.hypervisor.connection import maybe
from vmgpu.hypervisor.domain import CONSOLE, DISK, FLAT, SEED

POOL = "vmgpu"
FOLDER = "/var/lib/libvirt/images/vmgpu"

_MIB, _GIB = 2**20, 2**30
_QCOW2 = b"QFI\xfb"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# An empty volume beside a copied image says that the copy is whole, and in which format: libvirt cannot rename.
_WHOLE = ".whole-"
_IMAGE = "image-"  # how ImageRef.volume begins
_FORMATS = ("qcow2", "raw")
_PRIVATE = "0600"  # libvirt hands a file to QEMU's account for as long as its domain runs


@dataclass(frozen=True)
class PoolFacts:
    """The pool as it is."""

    total_gib: int
    free_gib: int
    written_mib: Mapping[str, int]
    name: str


class Pool:
    """Our pool on one open connection."""

    def __init__(self, connection: Any, *, host: str, local: bool, locks: Path) -> None:
        self._connection, self._host, self._local, self._locks = connection, host, local, locks
        self._pool = _ready(connection)

    def facts(self) -> PoolFacts:
        """How large the pool's file system is and what is free."""
        with suppress(OSError):
            if self._local:
                stat = os.statvfs(FOLDER)
                total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
                files = [path for path in Path(FOLDER).iterdir() if _grows(path.name)]
                written = {path.name: path.stat().st_blocks * 512 for path in files}
                return PoolFacts(total // _GIB, free // _GIB, _by_vm(written), POOL)
        self._reread()
        _state, capacity, _allocation, available = self._pool.info()
        infos = {v.name(): maybe(v.info) for v in self._pool.listAllVolumes(0) if _grows(v.name())}
        return PoolFacts(
            capacity // _GIB, available // _GIB, _by_vm({name: info[2] for name, info in infos.items() if info}), POOL
        )

    # images

    def has_image(self, image: ImageRef) -> bool:
        """Whether a whole copy lies here."""
        return self._image_format(image) is not None and self._find(_plain(image.volume)) is not None

    def put_image(self, image: ImageRef, source: Path, *, progress: Progress) -> None:
        """Copy the file in, read it back, and only then call it whole."""
        with transfer.alone(self._locks / f"{_plain(image.volume)}.lock"):
            if self.has_image(image):
                return
            with _opened(source) as stream:
                self._forget_image(image)
                size = os.fstat(stream.fileno()).st_size
                volume = self._make(image.volume, capacity=size, format="raw")
                format = "qcow2" if stream.read(4) == _QCOW2 else "raw"
                stream.seek(0)
                sent = transfer.upload(volume, stream, size, transfer.Meter(progress, size, end=70))
            found = transfer.checksum(volume, transfer.Meter(progress, size, start=70), local=self._local)
            if found != sent:
                volume.delete(0)
                raise HostRefused(
                    f"The copy of {image.volume} differs from its master",
                    hint="Check the disks of the host and of this machine.",
                )
            self._make(f"{image.volume}{_WHOLE}{format}", capacity=0, format="raw")
            progress(100)

    def drop_image(self, image: ImageRef) -> None:
        """Remove the copy, unless a disk stands on it."""
        path = f"{FOLDER}/{_plain(image.volume)}"
        for volume in self._pool.listAllVolumes(0):
            if volume.name().endswith(DISK) and _backing(volume) == path:
                raise HostRefused(
                    f"The disk {volume.name()} stands on image {image.volume}",
                    hint="Release the VMs that use it first.",
                )
        self._forget_image(image)

    # disks

    def make_disk(self, spec: VMSpec) -> None:
        """An overlay on the image; one that is there is kept, one that was never finished is made anew."""
        name = f"{spec.id}{DISK}"
        found = self._find(name)
        if found is not None:
            if _finished(found):
                return
            found.delete(0)
        format = self._image_format(spec.image)
        if format is None:
            gone = reason(ReasonCode.image_not_on_host, image=spec.image.volume, host=self._host)
            raise HostRefused(gone.sentence(), hint=gone.cure(), reason=gone)
        self._make(
            name,
            capacity=max(spec.disk_gib * _GIB, spec.image.virtual_mib * _MIB),
            format="qcow2",
            backing=f"{FOLDER}/{_plain(spec.image.volume)}",
            backing_format=format,
        )

    def drop_disk(self, vm_id: str) -> None:
        """Remove the disk; none there is fine."""
        self._drop(f"{vm_id}{DISK}")

    def has_disk(self, vm_id: str) -> bool:
        """Whether a finished disk lies here."""
        found = self._find(f"{vm_id}{DISK}")
        return found is not None and _finished(found)

    def see_room(self, vm_id: str, target: Path) -> None:
        """Raises HostRefused where a flat copy of the disk finds no room at `target`, or, fetched from afar, here."""
        disk = self._find(f"{vm_id}{DISK}")
        if disk is None:
            return  # the copy itself tells that
        _type, capacity, needed = disk.info()
        base = maybe(self._connection.storageVolLookupByPath, _backing(disk) or "")
        needed = min(capacity, needed + (base.info()[2] if base is not None else 0))
        places = [("the image store of vmgpu", shutil.disk_usage(target.parent).free)]
        if not self._local:
            self._reread()
            places.append((f"the pool of host {self._host}", self._pool.info()[3]))
        for where, free in places:
            if free < needed:
                short = reason(
                    ReasonCode.no_room_for_copy, needed_mib=needed // _MIB, free_mib=free // _MIB, where=where
                )
                raise HostRefused(short.sentence(), hint=short.cure(), reason=short)

    def copy_flat(self, vm_id: str, target: Path, *, progress: Progress) -> None:
        """Copy the disk and all it stands on into one qcow2 file of this machine; whole or not there."""
        disk = self._find(f"{vm_id}{DISK}")
        if disk is None:
            raise HostRefused("The VM has no disk on this host", hint="Reset the VM for a fresh disk.")
        part = target.with_name(f"{target.name}.part")
        source = Path(disk.path())
        try:
            if self._local and os.access(source, os.R_OK):
                transfer.convert(source, part, progress=progress)
            else:
                self._fetch_flat(vm_id, disk, part, progress=progress)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)  # it may be as large as the disk, and a capture that failed is not tried again
        progress(100)

    # seed and console

    def put_seed(self, vm_id: str, content: bytes) -> None:
        """Write the seed; an earlier one is replaced. It holds private keys: nobody else may read it."""
        name = f"{vm_id}{SEED}"
        self._drop(name)
        volume = self._make(name, capacity=len(content), format="raw")
        transfer.upload(volume, BytesIO(content), len(content), transfer.Meter(_silent, len(content)))

    def make_console(self, vm_id: str) -> None:
        """An empty log, made here so that the pool knows it: libvirt's log daemon then appends to it."""
        if self._find(f"{vm_id}{CONSOLE}") is None:
            self._make(f"{vm_id}{CONSOLE}", capacity=0, format="raw")

    def console(self, vm_id: str, limit: int) -> bytes:
        """The log's end."""
        volume = self._find(f"{vm_id}{CONSOLE}")
        if volume is None:
            return b""
        _type, size, _allocation = volume.info()
        parts: list[bytes] = []
        transfer.download(volume, parts.append, offset=max(0, size - limit))
        return b"".join(parts)[-limit:]

    # what is left of a VM

    def files(self, vm_id: str) -> tuple[str, ...]:
        """The names of all its files, also of those that libvirt was not told of (rotated logs, NVRAM)."""
        if not self._listable():
            self._reread()
        known = {name for name in self._pool.listVolumes() if name.startswith(f"{vm_id}.")}
        if not self._listable():
            return tuple(sorted(known))
        return tuple(sorted(path.name for path in Path(FOLDER).glob(f"{vm_id}.*")))

    def sweep(self, vm_id: str) -> None:
        """Remove all its files; nothing there is fine."""
        if not self._listable():
            self._reread()
        for name in self._pool.listVolumes():
            if name.startswith(f"{vm_id}."):
                self._drop(name)
        if self._listable():
            for path in Path(FOLDER).glob(f"{vm_id}.*"):
                path.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Remove the pool where it is empty: what lies in it is a VM's, or another installation's."""
        self._reread()
        if self._pool.listVolumes():
            return
        self._pool.destroy()
        with suppress(libvirt.libvirtError):  # a folder that still holds something stays
            self._pool.delete(0)
        self._pool.undefine()

    # helpers

    def _find(self, name: str) -> Any | None:
        volume = maybe(self._pool.storageVolLookupByName, name)
        if volume is not None and maybe(volume.info) is None:  # its file was removed behind libvirt's back
            maybe(volume.delete, 0)
            return None
        return volume

    def _drop(self, name: str) -> None:
        volume = self._find(name)
        if volume is not None:
            maybe(volume.delete, 0)

    def _make(self, name: str, *, capacity: int, format: str, backing: str = "", backing_format: str = "") -> Any:
        return self._pool.createXML(
            _xml(name, capacity=capacity, format=format, backing=backing, backing_format=backing_format), 0
        )

    def _image_format(self, image: ImageRef) -> str | None:
        for format in _FORMATS:
            if self._find(f"{_plain(image.volume)}{_WHOLE}{format}") is not None:
                return format
        return None

    def _forget_image(self, image: ImageRef) -> None:
        for format in _FORMATS:
            self._drop(f"{_plain(image.volume)}{_WHOLE}{format}")
        self._drop(image.volume)

    def _fetch_flat(self, vm_id: str, disk: Any, part: Path, *, progress: Progress) -> None:
        """Have the host flatten the disk beside it, fetch that, remove it."""
        name = f"{vm_id}{FLAT}"
        self._drop(name)
        _type, capacity, _allocation = disk.info()
        flat = self._pool.createXMLFrom(_xml(name, capacity=capacity, format="qcow2"), disk, 0)
        progress(30)
        _type, _capacity, size = flat.info()
        with part.open("wb") as file:
            transfer.download(flat, file.write, meter=transfer.Meter(progress, size, start=30))
        flat.delete(0)

    def _listable(self) -> bool:
        return self._local and os.access(FOLDER, os.R_OK | os.W_OK | os.X_OK)

    def _reread(self) -> None:
        """Have libvirt look at the folder; it refuses while it makes another volume, which is soon over."""
        for _ in range(20):
            with suppress(libvirt.libvirtError):
                self._pool.refresh(0)
                return
            time.sleep(0.1)


def _opened(master: Path) -> BinaryIO:
    try:
        return master.open("rb")
    except OSError as error:
        raise HostRefused(
            f"The master {master} cannot be read here: {error.strerror}",
            hint="Import or capture the image again; several processes of vmgpu need one and the same VMGPU_DATA_DIR.",
        ) from error


def _ready(connection: Any) -> Any:
    pool = maybe(connection.storagePoolLookupByName, POOL)
    if pool is None:
        try:
            pool = connection.storagePoolDefineXML(render.xml("libvirt/pool.xml.j2", name=POOL, path=FOLDER), 0)
        except libvirt.libvirtError:
            pool = maybe(connection.storagePoolLookupByName, POOL)  # another worker was faster
            if pool is None:
                raise
    if not pool.isActive():
        try:
            pool.create(libvirt.VIR_STORAGE_POOL_CREATE_WITH_BUILD)
        except libvirt.libvirtError:
            if not pool.isActive():
                raise
    return pool


def _xml(name: str, *, capacity: int, format: str, backing: str = "", backing_format: str = "") -> str:
    return render.xml(
        "libvirt/volume.xml.j2",
        name=name,
        capacity=capacity,
        format=format,
        mode=_PRIVATE,
        backing=backing,
        backing_format=backing_format,
    )


def _finished(volume: Any) -> bool:
    """False for what a host that died while making a disk leaves: no size, or neither base nor content."""
    tree = ElementTree.fromstring(volume.XMLDesc(0))
    format = tree.find("target/format")
    if format is None or format.get("type") != "qcow2" or int(tree.findtext("capacity") or 0) == 0:
        return False
    return bool(tree.findtext("backingStore/path")) or int(tree.findtext("allocation") or 0) > _MIB


def _backing(volume: Any) -> str | None:
    description = maybe(volume.XMLDesc, 0)
    return ElementTree.fromstring(description).findtext("backingStore/path") if description else None


def _grows(name: str) -> bool:
    """Whether a file is a VM's disk or an image: what a placement promises room to."""
    return name.endswith(DISK) or (name.startswith(_IMAGE) and _WHOLE not in name)


def _by_vm(written: Mapping[str, int]) -> dict[str, int]:
    """A VM's id, or an image's file → MiB, of file name → bytes."""
    return {
        name if name.startswith(_IMAGE) else name.removesuffix(DISK): size // _MIB for name, size in written.items()
    }


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise HostRefused(f"{name!r} is not a file name we give to images")
    return name


def _silent(_percent: int) -> None:
    pass
