"""What is wrong with a host, and the cure: checks over its facts, and causes of error texts. Pure: no I/O."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.checks import examine
from vmgpu.hypervisor.doctor.explain import advice, explain
from vmgpu.hypervisor.doctor.findings import Cause, Check, Level, LibvirtSeen, unseen

__all__ = ["Cause", "Check", "Level", "LibvirtSeen", "advice", "examine", "explain", "unseen"]
