"""What is wrong with a host, and the cure: checks over its facts, and causes of error texts. Pure: no I/O.

The tables behind it weigh some 10 MB: they are loaded by the first question, which most services never ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vmgpu.hypervisor.doctor.findings import Cause, Check, Level, LibvirtSeen, unseen

if TYPE_CHECKING:
    from vmgpu.hypervisor.doctor.cures import Platform

__all__ = ["Cause", "Check", "Level", "LibvirtSeen", "advice", "examine", "explain", "unseen"]


def examine(facts: Any, seen: LibvirtSeen) -> tuple[Check, ...]:
    """What hostctl's facts and libvirt's answers say of a host: each check ok, a warning, or broken."""
    from vmgpu.hypervisor.doctor import checks

    return checks.examine(facts, seen)


def explain(text: str, *, on: Platform | None = None) -> tuple[Cause, ...]:
    """The causes that an error text names, the likeliest first; `on` makes their cures exact."""
    from vmgpu.hypervisor.doctor import causes

    return causes.explain(text, on=on)


def advice(text: str) -> str:
    """The likeliest cause and its cure in one line; empty where the text is unknown."""
    from vmgpu.hypervisor.doctor import causes

    return causes.advice(text)
