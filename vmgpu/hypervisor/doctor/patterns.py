"""What a known message looks like, in the ages and spellings that QEMU, libvirt, the kernel and NVIDIA gave it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from vmgpu.hypervisor.doctor.cures import Platform

CULPRIT, USUAL, SYMPTOM = 0, 1, 2  # names the one culprit · the usual cause · a symptom that many causes share

_QUOTES = r"[\\\"'`‘’“”]{0,4}"


@dataclass(frozen=True)
class Known:
    """A cause and the messages that lead to it.

    A pattern is a regular expression over lower-case text in which a blank is any white space (` ?`: or none) and '
    any quotes or none: the same message comes wrapped by terminals, escaped by JSON and quoted in three ways.
    """

    id: str
    title: str
    means: str
    cure: str | Callable[[Platform], str]
    patterns: tuple[str, ...]
    rank: int = USUAL

    def cure_on(self, platform: Platform) -> str:
        """The cure in the words of this distribution and boot loader."""
        return self.cure if isinstance(self.cure, str) else self.cure(platform)

    def find(self, text: str) -> re.Match[str] | None:
        """Where the earliest pattern that matches does, in lower-case text."""
        return next((found for each in self._compiled if (found := each.search(text))), None)

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str], ...]:
        return tuple(
            re.compile(each.replace("'", _QUOTES).replace(" ?", r"\s*").replace(" ", r"\s+")) for each in self.patterns
        )


def xid(*numbers: int | str) -> str:
    """The pattern of the NVIDIA driver's event numbers; older drivers leave `PCI:` out."""
    return rf"xid \((pci:)?[0-9a-f:.]+\): ({'|'.join(map(str, numbers))})\b"


def nvml(code: str, *exceptions: str) -> tuple[str, ...]:
    """The patterns of an NVML error: its C name and its pynvml exception."""
    return (f"nvml_error_{code}", *(f"nvmlerror_{each}" for each in (exceptions or (code.replace("_", ""),))))
