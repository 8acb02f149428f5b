"""Sizes and times as people write them: 4g, 512m, 8h, 7d."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from vmgpu.errors import Invalid

_SIZE = re.compile(r"(\d{1,9})\s*(m|mib|mb|g|gib|gb|t|tib|tb)?", re.ASCII | re.IGNORECASE)
_MIB = {"m": 1, "g": 1024, "t": 1024 * 1024}
_DURATION = re.compile(r"(?:\d{1,9}\s*[smhdw]\s*)+", re.ASCII)
_PART = re.compile(r"(\d+)\s*([smhdw])", re.ASCII)
_NAMED = 5
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_mib(text: str, *, bare: str) -> int:
    """A size in MiB; `bare` (m, g) is the unit of a number without one. Raises Invalid."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise Invalid(f"{text!r} is not a size", hint="Write it like 512m, 4g or 1t.")
    return int(match[1]) * _MIB[(match[2] or bare)[0].lower()]


def parse_duration(text: str, *, bare: str = "") -> timedelta:
    """A time span: 90s, 10m, 8h, 7d, 2w, or several: 1h30m. Raises Invalid.

    `bare` (s, m …) is the unit of a number without one; where it is empty such a number is refused: 8 may be hours.
    """
    text = text.strip().lower()
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        if not bare:
            raise Invalid(f"{text!r} has no unit", hint="Write it like 90s, 30m, 8h or 7d.")
        text += bare
    if not _DURATION.fullmatch(text):
        raise Invalid(f"{text!r} is not a time span", hint="Write it like 90s, 30m, 8h or 7d.")
    try:
        return timedelta(seconds=sum(int(n) * _SECONDS[u] for n, u in _PART.findall(text)))
    except OverflowError:
        raise Invalid(f"{text} is longer than we can count", hint="Write it like 90s, 30m, 8h or 7d.") from None


def a_or_an(name: str) -> str:
    """A name with its article, as it is said aloud: an A100, an H100, an L40S, an RTX, a T4, a V100, an emulated A30.

    A capital before another capital or a number is spelt: it counts how the letter is called.
    """
    first, after = name[:1], name[1:2]
    spelt = first.isupper() and not after.islower()
    # eight, eleven and eighteen are the numbers that begin with a vowel
    number = re.match(r"8|(11|18)(?!\d)", name) is not None
    vowel = first in "AEFHILMNORSX" if spelt else first.lower() in "aeio"
    return f"{'an' if (vowel and first) or number else 'a'} {name}"


def say_count(number: int, noun: str) -> str:
    """So many of a noun whose plural is its name and an s: 1 card, 2 cards."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def say_names(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    all_ = sorted(names)
    more = f" … and {len(all_) - _NAMED} more" if len(all_) > _NAMED else ""
    return ", ".join(all_[:_NAMED]) + more


def say_mib(mib: int) -> str:
    """A size as people read it."""
    return f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"


def say_span(span: timedelta) -> str:
    """A time span as people read it: the two largest units."""
    left = max(0, round(span.total_seconds()))
    said: list[str] = []
    for name, seconds in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= seconds or (name == "s" and not said):
            said.append(f"{left // seconds} {name}")
            left %= seconds
    return " ".join(said[:2])


def say_time(moment: datetime) -> str:
    """A moment as people read it, with its zone."""
    return moment.strftime("%Y-%m-%d %H:%M UTC")
