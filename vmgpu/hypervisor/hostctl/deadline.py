"""The end of every verb: a driver that hangs must not hang the service, and nothing started may be left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable


class Deadline:
    """Calls `expired` from a thread of its own when time is up: a system call that never returns cannot be told."""

    def __init__(self, seconds: float, expired: Callable[[], None]) -> None:
        self.seconds = seconds
        self._ends = time.monotonic() + seconds
        self._expired = expired
        self._children: list[subprocess.Popen[bytes]] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def left(self) -> float:
        """Seconds that are left, never below a little."""
        return max(0.1, self._ends - time.monotonic())

    def watch(self, child: subprocess.Popen[bytes]) -> None:
        """A program that ends with this verb, whatever happens."""
        self._children.append(child)

    def __enter__(self) -> Deadline:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        for child in self._children:
            if child.poll() is None:
                end(child)
        self._expired()


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a program and all it started; it leads a session of its own."""
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
