"""Bad days of a host: writes that are refused or hang, files that are missing, a library that fails."""

from __future__ import annotations

import errno
from dataclasses import dataclass

KINDS = {
    "refuse",  # a write below `path` fails with `errno`
    "hang",  # a write below `path` is never answered
    "missing",  # files below `path` are not there
    "unbind_lock",  # unbindLock stays 0, as when another NVML client has the card open for a moment
    "other_instance",  # the driver takes another free GPU instance than the first
    "mig_waits",  # MIG mode changes at a reset only, as on an Ampere card
    "nvml_error",  # NVML's calls answer `code`; `path` picks one by its name in nvml*.py (13: an older library)
    "nvml_hang",  # NVML's calls are never answered
}


@dataclass
class Mood:
    """One bad day; `times` counts down to 0, None lasts. An empty `path` means every file."""

    kind: str
    path: str = ""
    times: int | None = None
    errno: int = errno.EIO
    code: int = 999

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no such mood: {self.kind}")


class Moods:
    """The moods of a host."""

    def __init__(self) -> None:
        self._moods: list[Mood] = []

    def set(self, mood: Mood) -> None:
        self._moods.append(mood)

    def clear(self) -> None:
        self._moods.clear()

    def holds(self, mood: Mood) -> bool:
        return any(each is mood for each in self._moods)

    def strikes(self, kind: str, path: str = "") -> Mood | None:
        """The mood that applies here and now; it is used up by one."""
        found = self.seen(kind, path)
        if found and found.times is not None:
            found.times -= 1
        return found

    def seen(self, kind: str, path: str = "") -> Mood | None:
        """The same, without using it up."""
        return next(
            (each for each in self._moods if each.kind == kind and each.times != 0 and each.path in path),
            None,
        )
