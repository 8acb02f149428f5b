"""Bytes to and from a host's pool, with progress: uploads, downloads, checksums and flat copies."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from vmgpu.errors import HostRefused
from vmgpu.hypervisor import Progress

_CHUNK = 256 * 1024 - 128  # a stream packet of libvirt's protocol holds a little less than 256 KiB
_PERCENT = re.compile(rb"\(([0-9]+)(?:\.[0-9]+)?/100%\)")


class Meter:
    """Turns bytes into whole percents between two marks, each told once."""

    def __init__(self, progress: Progress, total: int, *, start: int = 0, end: int = 100) -> None:
        self._progress, self._total, self._start, self._span = progress, max(total, 1), start, end - start
        self._done, self._told = 0, -1

    def add(self, count: int) -> None:
        """So many more bytes are done."""
        self._done += count
        percent = self._start + min(self._done, self._total) * self._span // self._total
        if percent != self._told:
            self._told = percent
            self._progress(percent)


def upload(volume: Any, source: BinaryIO, size: int, meter: Meter) -> str:
    """Send `size` bytes into the volume; the SHA-256 of what was sent."""
    digest = hashlib.sha256()
    with _stream(volume) as stream:
        volume.upload(stream, 0, size, 0)
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            sent = 0
            while sent < len(chunk):
                sent += stream.send(chunk[sent:] if sent else chunk)
            meter.add(len(chunk))
    return digest.hexdigest()


def download(volume: Any, take: Callable[[bytes], object], *, offset: int = 0, meter: Meter | None = None) -> None:
    """Hand over the volume's bytes from `offset` on."""
    with _stream(volume) as stream:
        volume.download(stream, offset, 0, 0)
        while chunk := stream.recv(_CHUNK):
            take(chunk)
            if meter:
                meter.add(len(chunk))


def checksum(volume: Any, meter: Meter, *, local: bool) -> str:
    """The SHA-256 of what the host has now; read as a file where it is one of this machine's."""
    digest = hashlib.sha256()
    path = Path(volume.path())
    if not (local and os.access(path, os.R_OK)):
        download(volume, digest.update, meter=meter)
        return digest.hexdigest()
    with path.open("rb") as stored:
        while chunk := stored.read(1024 * 1024):
            digest.update(chunk)
            meter.add(len(chunk))
    return digest.hexdigest()


def convert(source: Path, target: Path, *, progress: Progress) -> None:
    """Copy a qcow2 disk and all it stands on into one file, by qemu-img."""
    # A qemu-img that outlives us would go on writing: it dies with this thread, and never holds our next try's file.
    target.unlink(missing_ok=True)
    command = ["setpriv", "--pdeathsig", "KILL", "qemu-img", "convert", "-p", "-f", "qcow2", "-O", "qcow2"]
    with subprocess.Popen(
        [*command, str(source), str(target)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as copy:
        assert copy.stdout is not None  # noqa: S101  (for mypy: a pipe was asked for)
        said, told = b"", -1
        while chunk := os.read(copy.stdout.fileno(), 4096):
            said = (said + chunk)[-4096:]
            for percent in map(int, _PERCENT.findall(chunk)):
                if percent > told:
                    told = percent
                    progress(percent)
    if copy.returncode != 0:
        words = _PERCENT.sub(b"", said).decode(errors="replace").split()
        raise HostRefused(f"qemu-img convert ended with {copy.returncode}: {' '.join(words)}")


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a file's lock: no other thread or process of this machine does the same meanwhile."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _stream(volume: Any) -> Iterator[Any]:
    stream = volume.connect().newStream(0)
    try:
        yield stream
    except BaseException:
        with contextlib.suppress(Exception):
            stream.abort()
        raise
    stream.finish()
