"""The tree as a mounted file system: FUSE asks, the model answers."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path

import mfusepy

from tests.gpuhost.host import Host
from tests.gpuhost.nodes import File, Folder, Link, Node, find
from tests.gpuhost.refusal import Refused

NAME = "vmgpu-gpuhost"  # what /proc/mounts calls it
_ATTRIBUTE_BYTES = 4096


class Tree(mfusepy.Operations):  # type: ignore[misc]
    """The host's files. What a file holds is settled when it is opened, as sysfs does it at the first read."""

    use_ns = True

    def __init__(self, host: Host, root: Folder, ready: Callable[[], None]) -> None:
        self._host = host
        self._root = root
        self._ready = ready
        self._numbers = count(1)
        self._found: dict[str, Node | None] = {}
        self._found_at = -1
        self._open: dict[int, bytes | int] = {}  # content, or the errno that reading gives

    def init(self, path: str) -> None:
        self._ready()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        with self._host.lock:
            node = self._node(path)
            size = _ATTRIBUTE_BYTES
            if isinstance(node, File) and node.executable:
                size = len(node.content())
        if isinstance(node, File):
            mode = stat.S_IFREG | node.mode
        elif isinstance(node, Link):
            mode, size = stat.S_IFLNK | 0o777, len(node.target)
        else:
            mode, size = stat.S_IFDIR | 0o755, 0
        return {"st_mode": mode, "st_size": size, "st_nlink": 1, "st_uid": os.getuid(), "st_gid": os.getgid()}

    def readlink(self, path: str) -> str:
        with self._host.lock:
            node = self._node(path)
        if not isinstance(node, Link):
            raise _error(errno.EINVAL)
        return node.target

    def readdir(self, path: str, fh: int) -> list[str]:
        with self._host.lock:
            node = self._node(path)
            if not isinstance(node, Folder):
                raise _error(errno.ENOTDIR)
            names = [name for name in node.entries() if not self._missing(f"{path.rstrip('/')}/{name}")]
        return [".", "..", *names]

    def open(self, path: str, flags: int) -> int:
        with self._host.lock:
            node = self._node(path)
            if not isinstance(node, File):
                raise _error(errno.EISDIR)
            wanted = flags & os.O_ACCMODE
            if wanted != os.O_RDONLY and node.write is None:
                raise _error(errno.EACCES)
            number = next(self._numbers)
            try:
                self._open[number] = b"" if wanted == os.O_WRONLY else node.content()
            except Refused as refused:
                self._open[number] = refused.errno
        return number

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        content = self._open[fh]
        if isinstance(content, int):
            raise _error(content)
        return content[offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        with self._host.lock:
            self._suffer(path)
            node = self._node(path)
            if not isinstance(node, File) or node.write is None:
                raise _error(errno.EACCES)
            try:
                node.write(data.decode(errors="replace"))
            except Refused as refused:
                raise _error(refused.errno) from refused
            finally:
                self._host.version += 1
        return len(data)

    def release(self, path: str, fh: int) -> int:
        self._open.pop(fh, None)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return 0  # a shell's `>` truncates first; attributes do not mind

    def create(self, path: str, mode: int, fi: int | None = None) -> int:
        raise _error(errno.EACCES)

    def _node(self, path: str) -> Node:
        if self._found_at != self._host.version:
            self._found, self._found_at = {}, self._host.version
        if path not in self._found:
            self._found[path] = find(self._root, path)
        node = self._found[path]
        if node is None or self._missing(path):
            raise _error(errno.ENOENT)
        return node

    def _missing(self, path: str) -> bool:
        return self._host.moods.seen("missing", path) is not None

    def _suffer(self, path: str) -> None:
        """Moods of writing: refuse, or never answer until the mood is lifted."""
        refuse = self._host.moods.strikes("refuse", path)
        if refuse:
            raise _error(refuse.errno)
        hang = self._host.moods.strikes("hang", path)
        while hang and self._host.moods.holds(hang):
            self._host.changed.wait()


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def mount(tree: Tree, at: Path) -> None:
    """Serve until unmounted. Attributes are never cached, so that files may come and go; names are asked again
    after a second, which only saves questions: a name that has gone fails at its attributes."""
    mfusepy.FUSE(
        tree,
        str(at),
        foreground=True,
        fsname=NAME,
        direct_io=True,
        attr_timeout=0,
        entry_timeout=1,
        negative_timeout=0,
    )


def unmount(at: Path) -> None:
    """Take the tree away even while somebody looks at it or its server is dead."""
    program = ["umount", "--lazy"] if os.geteuid() == 0 else ["fusermount", "-uz"]
    subprocess.run([*program, str(at)], capture_output=True, check=False, timeout=10)


def unmount_leftovers() -> None:
    """Trees whose server was killed with its test."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, at, *_ = line.split()
        if source != NAME:
            continue
        try:
            Path(at).stat()
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                unmount(Path(at))
