"""Things that take minutes to make are made once and kept here."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vmgpu.errors import SetupError, VmgpuError
from vmgpu.settings import settings

Progress = Callable[[str], None]


def quiet(_: str) -> None:
    """The progress of callers who want none."""


def cache_dir() -> Path:
    """Where they lie."""
    return settings().cache_dir


def recipe_hash(*parts: str | bytes) -> str:
    """A short name for everything that decides what comes out."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()[:12]


def ensure(target: Path, build: Callable[[Path], None]) -> Path:
    """`target`, built by `build(path)` if it is not there; two builders at once build it once."""
    if target.exists():
        return target
    with locked(target):
        if target.exists():
            return target
        with scratch(target.parent) as folder:
            made = folder / target.name
            build(made)
            made.rename(target)
    return target


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """A folder for half-made things on the file system where the whole will lie; gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=".making-", dir=beside))
    # mkdtemp gives 0700, and a tree made inside would not be readable by QEMU's user once renamed.
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Keep other builders of `target` waiting; the lock dies with its process."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = (target.parent / f".{target.name}.lock").open("w")
    except OSError as error:
        raise SetupError(
            f"The cache {target.parent} cannot be written: {error.strerror}",
            hint="Run as root, or set VMGPU_CACHE_DIR to a folder that is yours and that QEMU's user can read.",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def show(name: str, build: Callable[..., Path]) -> int:
    """Print the path of what `build` gives, and on stderr what it says meanwhile; the program's exit code."""
    try:
        print(build(progress=lambda text: print(f"{name}: {text}", file=sys.stderr, flush=True)))
    except VmgpuError as error:
        print(f"error: {error.message}\n{error.hint}", file=sys.stderr)
        return 1
    return 0
