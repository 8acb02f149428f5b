"""From the text of an error to its causes; nothing is guessed: unknown text has none."""

from __future__ import annotations

import re

from vmgpu.hypervisor.doctor.cures import Platform
from vmgpu.hypervisor.doctor.findings import Cause
from vmgpu.hypervisor.doctor.known import ALL

MOST = 1_000_000  # characters: of a longer log its end, where the failure is
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SHOWN = 240
_ONE_MESSAGE = 6  # lines


def explain(text: str, *, on: Platform | None = None) -> tuple[Cause, ...]:
    """The causes that the text's messages name, the most specific first; `on` makes the cures exact."""
    shown = _COLOUR.sub("", text[-MOST:])
    low = shown.lower()
    if len(low) != len(shown):
        shown = low  # a few letters grow when lowered: positions must fit what is shown
    if low.count("\n") <= _ONE_MESSAGE:
        low = low.replace("\n", " ")  # one message that a terminal or a mail has wrapped, not the lines of a log
    found = [(each, match) for each in ALL if (match := each.find(low))]
    found.sort(key=lambda pair: pair[0].rank)
    platform = on or Platform()
    return tuple(
        Cause(each.id, each.title, each.means, each.cure_on(platform), _line(shown, match.start()))
        for each, match in found
    )


def advice(text: str) -> str:
    """The likeliest cause and its cure in one line; empty where the text is unknown."""
    causes = explain(text)
    return f"{causes[0].title}. {causes[0].cure}" if causes else ""


def _line(text: str, position: int) -> str:
    """The line around a position, printable and short, so that the position stays inside."""
    start = max(text.rfind("\n", 0, position) + 1, position - _SHOWN // 2)
    end = text.find("\n", position)
    line = text[start : len(text) if end < 0 else end][:_SHOWN]
    return "".join(c if c.isprintable() else " " for c in line).strip()
