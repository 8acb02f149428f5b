"""The ways in which a simulated host can behave, and the few numbers that each of them has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vmgpu.errors import Invalid


class Mood(StrEnum):
    """How the host behaves from now on; what happens "once" happens again after the mood is set again."""

    cheerful = "cheerful"  # all is well
    slow = "slow"  # each call takes its time, guests boot slowly
    forgetful = "forgetful"  # the work is done, the reply is lost: every few changes, once for each verb of a VM
    refusing = "refusing"  # refuses to start each VM once
    unreachable = "unreachable"  # answers nothing
    hanging = "hanging"  # the first start does not return until the mood changes or it is woken
    crashing = "crashing"  # each guest crashes once, a moment after it is up
    restless = "restless"  # each guest powers itself off once, a moment after it is up
    amnesic = "amnesic"  # each VM is undefined once by some hand, a moment after it is up
    rebooting = "rebooting"  # the host reboots once, a moment after a guest is up
    cardless = "cardless"  # guests do not show their cards
    mute = "mute"  # guests never get an address


@dataclass(frozen=True)
class Temper:
    """A mood and its numbers: seconds, but for `every`, which counts changes."""

    mood: Mood = Mood.cheerful
    pause: float = 0.0  # before each call
    boot: float = 0.3  # from the start of a domain until its guest is up
    off: float = 0.1  # from the ACPI button until the guest is off
    after: float = 1.0  # from a guest that is up until its misfortune
    every: float = 3  # one reply in so many is lost

    def as_json(self) -> str:
        """The form in which the state file keeps it."""
        return json.dumps(vars(self))


_KNOBS = ("pause", "boot", "off", "after", "every")
_OWN: dict[Mood, dict[str, float]] = {Mood.slow: {"pause": 0.2, "boot": 5.0, "off": 2.0}}


def temper(mood: str, **numbers: float) -> Temper:
    """The mood of this name with its own numbers, or with those given. Raises Invalid, naming what is known."""
    if mood not in list(Mood):
        raise Invalid(f"{mood!r} is not a mood", hint=f"Known moods: {', '.join(Mood)}.", where="mood")
    for name, number in numbers.items():
        if name not in _KNOBS:
            raise Invalid(f"{name!r} is not a number of a mood", hint=f"Known: {', '.join(_KNOBS)}.", where=name)
        if not 0 <= number < 1e6:
            raise Invalid(f"{name} is {number}", hint="It is 0 or more, and less than a million.", where=name)
    return Temper(Mood(mood), **{**_OWN.get(Mood(mood), {}), **numbers})


def read_temper(stored: str) -> Temper:
    """What `as_json` wrote."""
    found: dict[str, Any] = json.loads(stored)
    return Temper(Mood(found.pop("mood")), **found)
