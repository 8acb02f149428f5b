"""What people read: tables, facts about one thing, errors with their cure; colours only on a terminal."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

_COLOURS = {
    "running": "green",
    "ready": "green",
    "pending": "yellow",
    "failed": "red",
    "lost": "red",
    "unreachable": "red",
    "quarantined": "red",
    "stopped": "blue",
    "gone": "bright_black",
}
_wanted = {"colours": True}


def error(message: str, text: str = "") -> None:
    """What went wrong, and the cure."""
    click.echo(f"{paint('error:', 'red', err=True)} {message}", err=True)
    if text:
        hint(text)


def hint(text: str) -> None:
    """What to do about what was just said."""
    click.echo(f"{paint('hint:', 'cyan', err=True)} {text}", err=True)


def note(text: str) -> None:
    """A remark beside the output."""
    click.echo(text, err=True)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Aligned columns; a sentence where there is nothing."""
    lines = [[cell(value) for value in row] for row in rows]
    if not lines:
        note(empty)
        return
    widths = [max(_width(text) for text in column) for column in zip(head, *lines, strict=True)]
    click.echo(paint("  ".join(_pad(h.upper(), w) for h, w in zip(head, widths, strict=True)).rstrip(), "bright_black"))
    for line in lines:
        padded = [_pad(text, width) for text, width in zip(line, widths, strict=True)]
        click.echo("  ".join(paint(p, _COLOURS.get(t)) for p, t in zip(padded, line, strict=True)).rstrip())


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """One thing: a name and a value on each line; what is empty is left out."""
    shown = [(name, cell(value)) for name, value in pairs if value not in (None, "", [], ())]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{paint(name.ljust(width), 'bright_black')}  {paint(value, _COLOURS.get(value))}")


def cell(value: Any) -> str:
    """A value as text on one line; control characters do not reach the terminal."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(cell(one) for one in value) or "-"
    return "".join(c if c.isprintable() else " " for c in str(value))


def when(moment: str | None) -> str:
    """A moment, in the reader's own time."""
    if not moment:
        return "-"
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def left(moment: str | None) -> str:
    """How long until a moment."""
    from vmgpu.units import say_span

    if not moment:
        return "-"
    span = datetime.fromisoformat(moment) - datetime.now(UTC)
    return say_span(span) if span.total_seconds() > 0 else "over"


def mib(size: int | None) -> str:
    """A size in MiB as people read it."""
    if size is None:
        return "unknown"
    return f"{size / 1024:.4g} GiB" if size >= 1024 else f"{size} MiB"


def reason(said: dict[str, Any] | None) -> str:
    """A reason's sentence."""
    return str(said["sentence"]) if said else ""


def paint(text: str, colour: str | None, *, err: bool = False) -> str:
    """The text in this colour, on a terminal whose owner wants colours."""
    stream = sys.stderr if err else sys.stdout
    return click.style(text, fg=colour) if colour and _wanted["colours"] and stream.isatty() else text


def without_colours() -> None:
    """From now on: https://no-color.org."""
    _wanted["colours"] = False


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text if not unicodedata.combining(c))


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
