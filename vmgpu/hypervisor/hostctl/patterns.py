"""What an argument may look like: nothing reaches a path, a program or a driver that has not passed here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .refusal import Refusal

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
PARENT = re.compile(r"(?!.*\.\.)[A-Za-z0-9_.:-]{1,64}")
TYPE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
VERB = re.compile(r"[a-z]{1,16}")
DECIMAL = re.compile(r"[0-9]{1,10}")  # not str.isdecimal(): that takes the digits of every script
_MOST = 2**31 - 1


class Arguments:
    """The arguments of one call; each getter matches what it returns, a null counts as absent."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}

    def only(self, *names: str) -> None:
        """Refuse what nobody reads: a misspelt argument must not be a silent default."""
        for name in self._given:
            if name not in names:
                raise Refusal(
                    "bad_argument", f"{_shown(name)} is no argument here", hint=f"Known are: {', '.join(names) or '-'}."
                )

    def address(self, name: str = "address") -> str:
        """A PCI address as sysfs writes it."""
        value = self._given.get(name)
        if not isinstance(value, str) or not ADDRESS.fullmatch(value):
            raise _bad(name, value, "a PCI address like 0000:41:00.0")
        return value

    def choice(self, name: str, *choices: str) -> str:
        """One word of a few."""
        value = self._given.get(name)
        if not isinstance(value, str) or value not in choices:
            raise _bad(name, value, "one of " + ", ".join(choices))
        return value

    def flag(self, name: str) -> bool:
        """true or false, nothing that merely looks so."""
        value = self._given.get(name)
        if not isinstance(value, bool):
            raise _bad(name, value, "true or false")
        return value

    def number(self, name: str, *, most: int = _MOST) -> int:
        """A whole number from 0 to `most`."""
        value = self.maybe_number(name, most=most)
        if value is None:
            raise _bad(name, value, "a whole number")
        return value

    def maybe_number(self, name: str, *, most: int = _MOST) -> int | None:
        """The same, or None when it is absent."""
        value = self._given.get(name)
        if value is None:
            return None
        # bool is an int to Python
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise _bad(name, value, f"a whole number from 0 to {most}")
        return value

    def has(self, name: str) -> bool:
        """Whether it was given at all."""
        return name in self._given

    def vgpu_type(self, name: str = "type") -> int | str:
        """A vGPU type: its number, or its name."""
        value = self._given.get(name)
        if isinstance(value, str) and DECIMAL.fullmatch(value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST:
            return value
        if isinstance(value, str) and TYPE_NAME.fullmatch(value):
            return value
        raise _bad(name, value, "a vGPU type's name or number")


def _bad(name: str, value: Any, wanted: str) -> Refusal:
    if value is None:
        return Refusal("bad_argument", f"{name} is missing", hint=f"It must be {wanted}.")
    return Refusal("bad_argument", f"{name} is {_shown(value)}", hint=f"It must be {wanted}.")


def _shown(value: Any) -> str:
    """A stranger's text, fit for one line of a journal; never longer than a line."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return "a number of absurd size"  # Python refuses to print the largest ones
    shown = ascii(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
