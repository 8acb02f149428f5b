"""What the lab writes down: the commands that were run, and what they answered, as a page for the documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# What is another one in every run, and says nothing to a reader.
_ALWAYS_NEW = (
    (re.compile(r"(ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI)[A-Za-z0-9+/=]+"), r"\1…"),
    (re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), r"\1-…"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT?[ ]?\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00| UTC)?"), "(time)"),
    (re.compile(r"(?m)^\d\d:\d\d:\d\d  "), ""),
    (re.compile(r"\b[0-9a-f]{64}\b"), "(sha256)"),
    (re.compile(r"SHA256:[A-Za-z0-9+/=]+"), "SHA256:…"),
)
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass
class Transcript:
    """`names`: what is not for others to read (folders of this machine), and what is written in its place."""

    names: Mapping[str, str] = field(default_factory=dict)
    _parts: list[str] = field(default_factory=list)

    def chapter(self, title: str) -> None:
        """What follows belongs to this step."""
        self._parts.append(f"## {title}\n")

    def command(self, words: Sequence[str], output: str, *, leave_out: re.Pattern[str] | None = None) -> None:
        """A command as it was given, and all that it said; `leave_out`: lines that nobody needs."""
        lines = [line.rstrip() for line in self.clean(output).splitlines()]
        if leave_out:
            lines = [line for line in lines if not leave_out.search(line)]
        said = "\n".join([f"$ {self.clean(shlex.join(words))}", *lines]).rstrip()
        self._parts.append(f"```text\n{said}\n```\n")

    def seen(self, what: str) -> None:
        """What the lab took from it."""
        self._parts.append(f"Seen: {self.clean(what)}\n")

    def text(self) -> str:
        """All of it, in Markdown."""
        return "\n".join(self._parts)

    def clean(self, text: str) -> str:
        """Without what is this machine's or this run's alone."""
        text = _CONTROL.sub("", text)
        for name in sorted(self.names, key=len, reverse=True):
            text = text.replace(name, self.names[name])
        for pattern, stands_for in _ALWAYS_NEW:
            text = pattern.sub(stands_for, text)
        return text
