"""Reads and writes below one root; every file that is opened is counted, so that a look stays cheap."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from .refusal import Refusal

_LIMIT = 2**20
_NUMBER = re.compile(r"[0-9]{1,20}|0x[0-9a-f]{1,16}")
# Not there, or not there yet: `placement_id` answers ENXIO until its VF holds a vGPU.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO)
_TROUBLES = 40


class Files:
    """The machine below `root`. Paths are relative to it and made of constants and matched words only."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.opened: list[str] = []
        self.troubles: list[str] = []
        self.doing = ""  # what a time-out names as the culprit

    @property
    def is_real(self) -> bool:
        """Whether this is the machine itself and not a tree that looks like one."""
        return self.root == Path("/")

    def bytes(self, path: str, limit: int = _LIMIT, *, quiet: bool = False) -> bytes | None:
        """The first `limit` bytes; None when there is no such file or it cannot be read."""
        self._opening(path)
        try:
            with (self.root / path).open("rb", buffering=0) as file:
                return _all(file.fileno(), limit)
        except OSError as error:
            if not quiet:
                self._trouble(path, error)
            return None

    def text(self, path: str, *, quiet: bool = False) -> str | None:
        """The stripped text; None as above. Firmware and drivers write what they like: nothing fails to decode."""
        content = self.bytes(path, quiet=quiet)
        return None if content is None else content.decode("utf-8", "replace").replace("\0", "").strip()

    def number(self, path: str) -> int | None:
        """A number, decimal or 0x…; None when there is none."""
        return number_of(self.text(path))

    def flag(self, path: str) -> bool | None:
        """A module parameter: Y, N, 1 or 0."""
        return {"y": True, "1": True, "n": False, "0": False}.get((self.text(path) or "").lower())

    def records(self, path: str, limit: int = 8 * _LIMIT) -> str:
        """A device that gives one record per read, as /dev/kmsg does, up to its end for now."""
        self._opening(path)
        found = bytearray()
        try:
            descriptor = os.open(str(self.root / path), os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            self._trouble(path, error)
            return ""
        try:
            while len(found) < limit:
                try:
                    piece = os.read(descriptor, 8192)
                except BlockingIOError:
                    break  # the end of the log, for now
                except BrokenPipeError:
                    continue  # records were overwritten while we read: the kernel has moved us on
                if not piece:
                    break
                found += piece
        except OSError as error:
            self._trouble(path, error)
        finally:
            os.close(descriptor)
        return found.decode("utf-8", "replace")

    def names(self, path: str, *, quiet: bool = False) -> tuple[str, ...]:
        """What a folder holds, sorted; nothing when it is absent."""
        self._opening(path)
        try:
            return tuple(sorted(each.name for each in (self.root / path).iterdir()))
        except OSError as error:
            if not quiet:
                self._trouble(path, error)
            return ()

    def target(self, path: str) -> str:
        """Where a link points, as written; "" when it is none. Opens nothing."""
        try:
            return str((self.root / path).readlink())
        except OSError:
            return ""

    def link(self, path: str) -> str | None:
        """The last name in a link's target: a driver, a group, a function."""
        return self.target(path).rstrip("/").rpartition("/")[2] or None

    def exists(self, path: str) -> bool:
        """Whether it is there. Opens nothing."""
        try:
            return (self.root / path).exists()
        except OSError:
            return False

    def write(self, path: str, text: str) -> None:
        """One write of one text, as sysfs wants it; never makes a file. The kernel's refusal is an OSError."""
        self.doing = f"writing {text!r} to {path}"
        descriptor = os.open(str(self.root / path), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, text.encode("ascii"))
        finally:
            os.close(descriptor)

    def may_write(self) -> None:
        """Refuse unless root changes the machine; a tree elsewhere has its own permissions."""
        if self.is_real and os.geteuid() != 0:
            raise Refusal("not_root", "Only root changes a host", hint="Run hostctl through sudo.")

    def _opening(self, path: str) -> None:
        self.doing = f"reading {path}"
        self.opened.append(path)

    def _trouble(self, path: str, error: OSError) -> None:
        if error.errno not in _ABSENT and len(self.troubles) < _TROUBLES:
            self.troubles.append(f"{path} cannot be read: {os.strerror(error.errno or 0)}")


def number_of(text: str | None) -> int | None:
    """A whole number in decimal or 0x… hex; None for anything else, -1 (the kernel's "unknown") included."""
    text = (text or "").strip().lower()
    return int(text, 0 if text.startswith("0x") else 10) if _NUMBER.fullmatch(text) else None


def _all(descriptor: int, limit: int) -> bytes:
    found = bytearray()
    while len(found) < limit:
        piece = os.read(descriptor, limit - len(found))
        if not piece:
            break
        found += piece
    return bytes(found)
