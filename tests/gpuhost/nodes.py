"""Folders, files and links whose content is made when somebody looks."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.gpuhost.refusal import Refused


@dataclass(frozen=True)
class File:
    """`read` is None for files that are only written, `write` for those only read. An attribute file of sysfs
    says it has 4096 bytes, whatever it holds."""

    read: Callable[[], str | bytes] | None = None
    write: Callable[[str], object] | None = None
    executable: bool = False

    @property
    def mode(self) -> int:
        readable = 0o444 if self.read else 0
        return readable | (0o200 if self.write else 0) | (0o111 if self.executable else 0)

    def content(self) -> bytes:
        if self.read is None:
            raise Refused("write-only", number=errno.EIO)
        told = self.read()
        return told.encode() if isinstance(told, str) else told


@dataclass(frozen=True)
class Link:
    """A symbolic link; targets are relative, so that they hold below any mount point."""

    target: str


@dataclass(frozen=True)
class Folder:
    """A directory; its entries are asked for at each look. `one` answers for a single name where all cost time."""

    entries: Callable[[], Mapping[str, Node]]
    one: Callable[[str], Node | None] | None = None

    def entry(self, name: str) -> Node | None:
        return self.one(name) if self.one else self.entries().get(name)


Node = File | Link | Folder


def told(value: object) -> File:
    """A read-only attribute with a final newline."""
    return File(lambda: f"{value}\n")


def folder(entries: Mapping[str, Node]) -> Folder:
    """A directory that stays as it is."""
    return Folder(lambda: entries)


def find(root: Folder, path: str) -> Node | None:
    """The node at a path that has no links inside, as the kernel resolves them before it asks."""
    node: Node | None = root
    for part in path.strip("/").split("/"):
        if not part:
            continue
        if not isinstance(node, Folder):
            return None
        node = node.entry(part)
    return node


def nest(flat: Mapping[str, Node]) -> Folder:
    """A tree from paths."""
    inner: dict[str, dict[str, Node]] = {}
    here: dict[str, Node] = {}
    for path, node in flat.items():
        first, _, rest = path.partition("/")
        if rest:
            inner.setdefault(first, {})[rest] = node
        else:
            here[first] = node
    return folder({**here, **{name: nest(below) for name, below in inner.items()}})
