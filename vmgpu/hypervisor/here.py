"""This machine, or a tree that looks like one: which it is, and which boot of it."""

from __future__ import annotations

from pathlib import Path


def boot_id(root: Path = Path("/")) -> str:
    """A text that changes when the machine boots; "" is unknown."""
    return _text(root / "proc/sys/kernel/random/boot_id")


def machine_id(root: Path = Path("/")) -> str:
    """A text that no other machine has, and that stays; "" is unknown."""
    return _text(root / "etc/machine-id")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
