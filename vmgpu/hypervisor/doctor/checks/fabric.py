"""Machines with NVSwitches: the fabric manager, its mode and its partitions."""

from __future__ import annotations

from collections.abc import Iterator

from vmgpu.hypervisor.doctor.facts import FABRIC_FULL, FABRIC_SHARED, FABRIC_VGPU, Facts
from vmgpu.hypervisor.doctor.findings import Check, LibvirtSeen, broken, ok, warning

_CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
_NAMES = {FABRIC_FULL: "full passthrough", FABRIC_SHARED: "shared NVSwitches", FABRIC_VGPU: "vGPU"}
_SET_SHARED = f"Set FABRIC_MODE=1 in {_CONFIG}, then: systemctl restart nvidia-fabricmanager."


def look(facts: Facts, _seen: LibvirtSeen) -> Iterator[Check]:
    """Nothing where there is no NVSwitch."""
    if not facts.switches:
        return
    yield from _manager(facts, len(facts.switches))
    if facts.fabric.manager == "running":
        yield from _mode(facts)
        yield from _partitions(facts)


def _manager(facts: Facts, switches: int) -> Iterator[Check]:
    state = facts.fabric.manager
    seen = f"{switches} NVSwitches, fabric manager {state or 'unknown'}"
    if state == "running":
        yield ok("fabric-manager", seen, "Cards can be connected in partitions.")
    elif state in ("stopped", "absent"):
        install = "" if state == "stopped" else "Install nvidia-fabricmanager of exactly the driver's version. "
        yield broken(
            "fabric-manager",
            seen,
            "Without it no card of this machine runs CUDA, in a guest either (error 802).",
            f"{install}Run: systemctl enable --now nvidia-fabricmanager; journalctl -u nvidia-fabricmanager.",
        )
    else:
        yield warning(
            "fabric-manager",
            seen,
            "Cards of this machine run CUDA only in an activated partition.",
            "Run: systemctl status nvidia-fabricmanager.",
        )


def _mode(facts: Facts) -> Iterator[Check]:
    mode = facts.fabric.mode
    if mode is None:
        return
    seen = f"FABRIC_MODE={mode} ({_NAMES.get(mode, 'unknown')})"
    if mode == FABRIC_SHARED:
        yield ok("fabric-mode", seen, "The host keeps the switches; guests get the cards of one partition.")
    elif mode == FABRIC_VGPU:
        yield ok("fabric-mode", seen, "Time-sliced vGPUs of a whole card's memory; MIG-backed ones are not possible.")
    else:
        yield warning(
            "fabric-mode",
            seen,
            "A guest would need the switches too and run the fabric manager itself: single cards do not work.",
            _SET_SHARED,
        )


def _partitions(facts: Facts) -> Iterator[Check]:
    partitions = facts.fabric.partitions
    if facts.fabric.mode != FABRIC_SHARED:
        return
    if not partitions:
        yield warning(
            "fabric-partitions",
            "unknown" if partitions is None else "none",
            "Cards go out only in the sets that the fabric manager has: without the list none can be activated.",
            "Run: fmpm -l. If it does not answer, restart nvidia-fabricmanager and look at its log.",
        )
        return
    sizes = sorted({each.gpus for each in partitions if each.gpus})
    active = [each for each in partitions if each.active]
    yield ok(
        "fabric-partitions",
        f"{len(partitions)} partitions, {len(active)} active",
        f"Guests may ask for {', '.join(map(str, sizes)) or 'an unknown number of'} cards, never for other numbers.",
    )
