"""One line per verb in the host's journal: what was asked, how it ended, how long it took."""

from __future__ import annotations

import json
import sys
import syslog
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import Files

_LONGEST = 400


def note(files: Files, verb: str, arguments: Mapping[str, Any], ended: str, seconds: float) -> None:
    """Write the line; where the machine has no journal, to standard error."""
    try:
        asked = json.dumps(arguments, sort_keys=True, default=str)  # ASCII only: nobody writes a second line
    except ValueError:
        asked = "{a number of absurd size}"
    line = f"{verb} {asked[:_LONGEST]}: {ended} after {seconds:.2f} s"
    if files.is_real and Path("/dev/log").exists():
        syslog.openlog("hostctl", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
        syslog.syslog(syslog.LOG_INFO if ended == "ok" else syslog.LOG_WARNING, line)
    else:
        sys.stderr.write(f"hostctl: {line}\n")
