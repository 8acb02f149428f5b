"""What is wrong with a host, and the cure: checks over its facts, and causes of error texts. Pure: no I/O."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.checks import examine
from vmgpu.hypervisor.doctor.explain import explain
from vmgpu.hypervisor.doctor.findings import Cause, Check, Level, LibvirtSeen

__all__ = ["Cause", "Check", "Level", "LibvirtSeen", "examine", "explain"]
