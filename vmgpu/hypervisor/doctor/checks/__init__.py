"""All checks, in the order in which an admin mends a host: firmware first, cards next, software last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vmgpu.hypervisor.doctor.checks import cards, fabric, firmware, groups, kernel, memory, mig, software, vgpu
from vmgpu.hypervisor.doctor.findings import Check, LibvirtSeen
from vmgpu.hypervisor.doctor.reading import read

_THEMES = (firmware, kernel, groups, cards, vgpu, mig, fabric, memory, software)


def examine(facts: Any, seen: LibvirtSeen) -> tuple[Check, ...]:
    """Look at a host through what its helper told (a mapping) and what libvirt says; unknown facts break nothing."""
    told = replace(read(facts), more=seen.device_ids)
    return tuple(check for theme in _THEMES for check in theme.look(told, seen))
