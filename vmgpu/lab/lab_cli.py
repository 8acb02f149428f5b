"""The lab as a person at a shell: each step is a command of vmgpu, and what it answers is read and written down."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from vmgpu.lab.demo_api import Problem
from vmgpu.lab.demo_screen import Screen
from vmgpu.lab.demo_service import program
from vmgpu.lab.lab_transcript import Transcript

_SHOWN = 12
_APT = re.compile(r"^(Get:|Selecting |Preparing |Unpacking |\(Reading |Ign:|Hit:|Fetched |Reading |Building |Need to)")


class Shell:
    """One person at one service. `environment` has what names both."""

    def __init__(self, screen: Screen, transcript: Transcript, environment: Mapping[str, str]) -> None:
        self._screen, self._transcript, self._environment = screen, transcript, dict(environment)

    def vmgpu(self, *words: str, within: float = 330, refused: bool = False, shown: int = _SHOWN) -> str:
        """Run a command of vmgpu and return what it said. Raises Problem where it ends otherwise than expected.

        `refused`: it must not do what it is asked; `shown`: so many lines go to the screen, all to the transcript.
        """
        self._screen.say(f"$ vmgpu {' '.join(words)}")
        code, said = self._run([str(program()), *words], within)
        self._transcript.command(["vmgpu", *words], said, leave_out=_APT)
        lines = [line for line in said.splitlines() if not _APT.match(line)]
        for line in lines[:shown]:
            self._screen.say(f"  {line}")
        if len(lines) > shown:
            self._screen.say(f"  … {len(lines) - shown} lines more")
        if (code != 0) != refused:
            expected = "was to be refused" if refused else "ended badly"
            raise Problem(f"vmgpu {' '.join(words)} {expected} ({code}): {' / '.join(lines[-4:])}")
        return said

    def ask(self, *words: str, within: float = 330, may_fail: bool = False) -> Any:
        """The same with --json, for the lab's own eyes: neither shown nor written down."""
        code, said = self._run([str(program()), *words, "--json"], within, both=False)
        if code and not may_fail:
            raise Problem(f"vmgpu {' '.join(words)} ended with {code}: {said.strip()[-400:]}")
        try:
            return json.loads(said)
        except ValueError:
            raise Problem(f"vmgpu {' '.join(words)} --json answered no JSON: {said.strip()[-400:]}") from None

    def note(self, words: Sequence[str], said: str) -> None:
        """A command that is not vmgpu's, and its answer."""
        self._screen.say(f"$ {' '.join(words)}")
        for line in said.splitlines()[:_SHOWN]:
            self._screen.say(f"  {line}")
        self._transcript.command(words, said)

    def seen(self, what: str) -> None:
        """What follows from it."""
        self._screen.say(f"→ {what}")
        self._transcript.seen(what)

    def _run(self, words: Sequence[str], within: float, *, both: bool = True) -> tuple[int, str]:
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if both else subprocess.PIPE,
                env={**os.environ, **self._environment},
                timeout=within,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Problem(f"{' '.join(words[1:])} did not end within {within:.0f} s") from None
        said = done.stdout if both or done.stdout else (done.stderr or b"")
        return done.returncode, said.decode(errors="replace")
