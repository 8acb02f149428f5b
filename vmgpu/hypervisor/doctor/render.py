"""What the doctor says, as lines for a terminal and as plain data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from vmgpu.hypervisor.doctor.findings import Cause, Check, Level

_LABEL = 7  # the width of "broken:" and "means: "


def checks(found: Sequence[Check], *, width: int = 100) -> str:
    """All checks, aligned; meaning and cure only where something is to be done, and a count at the end."""
    names = max((len(each.id) for each in found), default=0)
    lines = [line for each in found for line in _check(each, names, width)]
    return "\n".join([*lines, summary(found)])


def summary(found: Sequence[Check]) -> str:
    """How many of each level, in one line."""
    counted = {level: sum(each.level is level for each in found) for level in Level}
    return f"{counted[Level.ok]} ok, {counted[Level.warning]} warnings, {counted[Level.broken]} broken"


def causes(found: Sequence[Cause], *, width: int = 100) -> str:
    """All causes, each with the line that led there."""
    return "\n\n".join("\n".join(_cause(each, width)) for each in found)


def checks_as_dict(found: Sequence[Check]) -> dict[str, object]:
    """Checks for --json; REST answers them in the same form."""
    return {"items": [each.as_dict() for each in found]}


def causes_as_dict(found: Sequence[Cause]) -> dict[str, object]:
    """Causes for REST and --json."""
    return {"causes": [each.as_dict() for each in found]}


def _check(check: Check, names: int, width: int) -> Iterator[str]:
    yield from _wrapped(f"{check.level:<{_LABEL}}  {check.id:<{names}}  ", check.seen, width)
    if check.level is not Level.ok:
        indent = " " * (_LABEL + 2)
        yield from _wrapped(f"{indent}means  ", check.means, width)
        yield from _wrapped(f"{indent}cure   ", check.cure, width)


def _cause(cause: Cause, width: int) -> Iterator[str]:
    yield from _wrapped("", cause.title, width)
    yield from _wrapped("  seen   ", cause.matched, width)
    yield from _wrapped("  means  ", cause.means, width)
    yield from _wrapped("  cure   ", cause.cure, width)


def _wrapped(head: str, text: str, width: int) -> list[str]:
    # Long words are commands and paths: a break inside would spoil the copy.
    return textwrap.wrap(
        text,
        width=max(width, len(head) + 40),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]
