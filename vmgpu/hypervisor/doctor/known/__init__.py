"""All known messages by theme; within a rank the earlier entry is told first."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.known import disks, domains, guests, iommu, kvm, networks, nvidia, passthrough, vgpu, xids
from vmgpu.hypervisor.doctor.patterns import Known

ALL: tuple[Known, ...] = (
    *iommu.KNOWN,
    *passthrough.KNOWN,
    *vgpu.KNOWN,
    *nvidia.KNOWN,
    *xids.KNOWN,
    *kvm.KNOWN,
    *domains.KNOWN,
    *disks.KNOWN,
    *networks.KNOWN,
    *guests.KNOWN,
)
