"""What the person at the demo sees: steps with their seconds, and things on their way, redrawn on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

_INDENT = "    "
_QUIET = 20.0  # seconds without a line after which somebody would wonder


@dataclass(frozen=True)
class Row:
    """One thing on its way. Where lines cannot be redrawn it is told again only when `news` is another."""

    key: str
    news: object
    text: str


@dataclass(frozen=True)
class Played:
    """A step that was begun, and how it ended."""

    title: str
    seconds: float
    seen: bool


class Screen:
    """The demo's one way to speak: lines for a log, a block that stands still on a terminal."""

    def __init__(self, out: TextIO | None = None, *, quiet: float = _QUIET) -> None:
        self._lock = threading.RLock()
        self._quiet, self._spoke = quiet, time.monotonic()
        self._out = out or sys.stdout
        self._terminal = self._out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colours = self._terminal and not os.environ.get("NO_COLOR")
        self._block: list[str] = []
        self._told: dict[str, object] = {}
        self._began = time.monotonic()
        self.played: list[Played] = []

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A step of the story: its title, what it says, and its seconds; one that raises is noted as not seen."""
        self.settle()
        self._print(self._painted(f"[{len(self.played) + 1}] {title}", "1"))
        began, seen = time.monotonic(), False
        ended = threading.Event()
        pulse = threading.Thread(target=self._pulse, args=(began, ended), daemon=True)
        pulse.start()
        try:
            yield
            seen = True
        finally:
            ended.set()
            pulse.join()
            seconds = time.monotonic() - began
            self.settle()
            self.played.append(Played(title, seconds, seen))
            if seen:
                self._print(_INDENT + self._painted(f"seen, {seconds:.1f} s", "32"))

    def say(self, text: str) -> None:
        """Lines that stay, above the block."""
        with self._lock:
            kept = self._block
            self._wipe()
            for line in text.splitlines() or [""]:
                self._print(_INDENT + _printable(line))
            self._draw(kept)

    def show(self, rows: Sequence[Row]) -> None:
        """How things are now, in place of how they were."""
        if self._terminal:
            with self._lock:
                self._wipe()
                self._draw([row.text for row in rows])
            return
        for row in rows:
            if self._told.get(row.key) != row.news:
                self._told[row.key] = row.news
                self._print(f"{_INDENT}{self._clock()}  {_printable(row.text)}")

    def settle(self) -> None:
        """Let the block stand as it is; the next one is drawn below."""
        self._block = []

    def error(self, message: str, hint: str = "") -> None:
        """What went wrong, and the cure."""
        self.settle()
        self._print(f"{self._painted('error:', '31;1')} {_printable(message)}")
        if hint:
            self._print(f"{self._painted('hint:', '36')} {_printable(hint)}")

    def plain(self, text: str = "") -> None:
        """Lines as they are, from the margin on."""
        self.settle()
        self._print(text)

    def table(self) -> None:
        """Each step that was begun, with its seconds, and all together."""
        self.settle()
        width = max((len(one.title) for one in self.played), default=0)
        self._print("")
        for number, one in enumerate(self.played, start=1):
            seen = self._painted("seen", "32") if one.seen else self._painted("NOT SEEN", "31;1")
            self._print(f"{number:3}  {one.title.ljust(width)}  {one.seconds:8.1f} s  {seen}")
        self._print(f"     {'all'.ljust(width)}  {time.monotonic() - self._began:8.1f} s")

    def _pulse(self, began: float, ended: threading.Event) -> None:
        """A line with the seconds of this step wherever it has been quiet for long; a block that is redrawn is not."""
        while not ended.wait(max(0.01, self._spoke + self._quiet - time.monotonic())):
            with self._lock:
                at = time.monotonic()
                if at - self._spoke >= self._quiet:
                    self.say(f"still at it, {at - began:.0f} s")

    def _clock(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"

    def _draw(self, lines: Sequence[str]) -> None:
        # a line that wraps would make the block taller than it is counted
        most = shutil.get_terminal_size().columns - len(_INDENT) - 1
        self._block = list(lines)
        for line in lines:
            self._print(_INDENT + _printable(line)[: max(20, most)])

    def _wipe(self) -> None:
        if self._block:
            self._out.write(f"\x1b[{len(self._block)}A\x1b[J")
            self._block = []

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours else text

    def _print(self, line: str) -> None:
        self._spoke = time.monotonic()
        print(line, file=self._out, flush=True)


def _printable(text: str) -> str:
    """Without control characters: a guest's console must not steer the terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
