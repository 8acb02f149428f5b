"""The lines of the kernel's log that tell of cards, their bus and their drivers."""

from __future__ import annotations

import re

from .files import Files

_MOST, _LONGEST = 200, 400
_RECORD = re.compile(r"[0-9]+,[0-9]+,[0-9]+,[^;]*;(.*)")
_STAMP = re.compile(r"\[\s*[0-9]+\.[0-9]+\]\s*(.*)")
_TELLING = re.compile(
    r"NVRM|\bMIG\b|\bBAR ?[0-9]|\bAER:|(?i:dmar|amd-vi|iommu|vfio|nvidia|interrupt remapping|irq remapping"
    r"|pci\S* .*(?:error|fail|can't|no space|not ready|inaccessible|giving up))"
)
_REMAPPING = re.compile(r"(?:enabled IRQ remapping|interrupt remapping enabled|IRQ remapping enabled)", re.I)
_NO_REMAPPING = re.compile(
    r"no interrupt remapping|IRQ remapping (?:doesn't|does not|not) |failed to enable irq remap", re.I
)


def lines(files: Files) -> list[str]:
    """The last of them, oldest first, without their time."""
    found = []
    for line in files.records("dev/kmsg").splitlines():
        if line.startswith(" "):
            continue  # a record's dictionary, not its message
        record = _RECORD.fullmatch(line) or _STAMP.fullmatch(line)
        message = record.group(1) if record else line
        if _TELLING.search(message):
            found.append(message[:_LONGEST])
    return found[-_MOST:]


def remapping(seen: list[str]) -> bool | None:
    """Whether interrupts are remapped; None when the log has been overwritten since boot."""
    if any(_NO_REMAPPING.search(each) for each in seen):
        return False
    return True if any(_REMAPPING.search(each) for each in seen) else None
