"""How this room runs the machine's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from vmgpu.errors import SetupError


def run(argv: Sequence[str | os.PathLike[str]], *, doing: str, stdin: bytes = b"") -> str:
    """Run a program to its end and return its output; SetupError says what it was for and how it ended."""
    return run_bytes(argv, doing=doing, stdin=stdin).decode(errors="replace")


def run_bytes(argv: Sequence[str | os.PathLike[str]], *, doing: str, stdin: bytes = b"") -> bytes:
    """`run`, for output that is not text."""
    command = [os.fspath(part) for part in argv]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    except FileNotFoundError:
        raise SetupError(f"{doing}: the program {command[0]} is not installed", hint="Run: make setup") from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        detail = "\n  ".join(said[-8:]) or "it said nothing"
        raise SetupError(
            f"{doing}: {command[0]} ended with {done.returncode}:\n  {detail}",
            hint=f"To see it alone, run: {' '.join(command)}",
        )
    return done.stdout


def need_programs(names: Sequence[str], *, doing: str) -> None:
    """Refuse early, naming every program that is missing, instead of failing halfway."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise SetupError(f"{doing} needs {', '.join(missing)}", hint="Run: make setup")


def need_root(doing: str) -> None:
    """Refuse where only root can go on."""
    if os.geteuid():
        raise SetupError(f"{doing} must be done by root", hint="Use sudo, or run as root.")
