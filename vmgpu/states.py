"""The words that rows keep: in what state something is, and what is wished of it."""

from __future__ import annotations

from enum import StrEnum


class VMState(StrEnum):
    """Where a VM stands; lifecycle declares the moves between them."""

    pending = "pending"
    carving = "carving"
    building = "building"
    booting = "booting"
    checking = "checking"
    running = "running"
    stopping = "stopping"
    stopped = "stopped"
    capturing = "capturing"
    releasing = "releasing"
    gone = "gone"
    failed = "failed"
    lost = "lost"


class Wanted(StrEnum):
    """What people wish of a VM."""

    running = "running"
    stopped = "stopped"
    gone = "gone"


class OnStop(StrEnum):
    """What a stop does with the slices: hold them for the VM, or give them back."""

    keep = "keep"
    release = "release"


class HostState(StrEnum):
    """Whether a host has been surveyed and answers."""

    new = "new"
    ready = "ready"
    unreachable = "unreachable"
    removing = "removing"


class GpuState(StrEnum):
    """Whether a card may be cut; `absent`: the last survey did not see it."""

    ready = "ready"
    quarantined = "quarantined"
    absent = "absent"


class ImageState(StrEnum):
    """A capture is copied, then generalised; an import is ready at once."""

    copying = "copying"
    generalising = "generalising"
    ready = "ready"
    failed = "failed"
    deleting = "deleting"


class CopyState(StrEnum):
    """An image's copy in one host's pool."""

    wanted = "wanted"
    ready = "ready"
    failed = "failed"


class TokenKind(StrEnum):
    """An API token of a script, a browser's session, or a link that works once."""

    api = "api"
    session = "session"
    link = "link"
