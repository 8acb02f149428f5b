"""The ways to cut a card: one carver per mode and framework, chosen by what the host shows."""

from __future__ import annotations

from vmgpu.errors import Invalid
from vmgpu.hypervisor import Carver
from vmgpu.hypervisor.carvers.emulated import EmulatedCarver
from vmgpu.hypervisor.carvers.functions import Ask
from vmgpu.hypervisor.carvers.mdev import MdevCarver, Use
from vmgpu.hypervisor.carvers.mig import MigCarver
from vmgpu.hypervisor.carvers.passthrough import PassthroughCarver
from vmgpu.hypervisor.carvers.undecided import UndecidedCarver
from vmgpu.hypervisor.carvers.vfio import VfioCarver


def carver_for(mode: str, framework: str | None, *, ask: Ask | None, use: Use) -> Carver:
    """The carver of a mode. `ask`: the host's hostctl, None where it has none; `use`: its libvirt connection.

    Raises Invalid where the host cannot be cut that way.
    """
    match mode, framework:
        case "emulated", _:
            return EmulatedCarver()
        case "passthrough", _:
            return PassthroughCarver(ask, use)
        case "vgpu", "mdev":
            return MdevCarver(use, ask)
    if ask is None:
        raise Invalid(f"Cards are cut in mode {mode!r} by hostctl, which this host lacks", hint="vmgpu host setup HOST")
    match mode, framework:
        case "vgpu", "vfio":
            return VfioCarver(ask)
        case "mixed", "vfio":
            return VfioCarver(ask, mixed=True)
        case "mig", "vfio":
            return MigCarver(ask)
        case "mig", "mdev":
            return MigCarver(ask, MdevCarver(use, ask))
        case (("vgpu" | "mixed" | "mig"), None):
            return UndecidedCarver(mode, ask, lambda framework: carver_for(mode, framework, ask=ask, use=use))
    raise Invalid(
        f"No way is known to cut a card in mode {mode!r} here (framework: {framework or 'none'})",
        hint="Survey the host again: vmgpu host survey HOST.",
    )
