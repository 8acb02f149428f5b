"""Which hostctl answers, and on what: the service compares it with the one that it would install."""

from __future__ import annotations

import platform
from importlib import metadata, util
from typing import Any

from . import stamp
from .deadline import Deadline
from .facts import PROTOCOL
from .files import Files
from .patterns import Arguments


def run(files: Files, arguments: Arguments, deadline: Deadline) -> dict[str, Any]:
    """The verb."""
    arguments.only()
    return {"hostctl": PROTOCOL, "build": stamp.BUILD, "python": platform.python_version(), "pynvml": _pynvml()}


def _pynvml() -> str | None:
    if stamp.PYNVML:
        return stamp.PYNVML
    try:
        return metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        return "unknown" if util.find_spec("pynvml") else None
