"""The ways to cut a card: one carver per mode, chosen by what the host shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vmgpu.errors import Invalid
from vmgpu.hypervisor import Carver
from vmgpu.hypervisor.carvers.emulated import EmulatedCarver
from vmgpu.hypervisor.carvers.passthrough import PassthroughCarver

MODES = ("emulated", "passthrough")
Profiles = Callable[[str], tuple[str, ...]]


def carver_for(mode: str, *, sysroot: Path | None, profiles: Profiles = lambda model: ()) -> Carver:
    """The carver of a mode. `sysroot`: the host's own files, None for another machine; `profiles`: of a model."""
    match mode:
        case "emulated":
            return EmulatedCarver(profiles)
        case "passthrough":
            return PassthroughCarver(sysroot)
        case _:
            raise Invalid(f"No way is known to cut a card in mode {mode!r}", hint=f"Modes: {', '.join(MODES)}.")
