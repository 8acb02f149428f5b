"""Which carving of a host's cards would serve how many VMs."""

from __future__ import annotations

from sqlmodel import Session, select

from vmgpu import ledger, placement
from vmgpu.models import Gpu, GpuState
from vmgpu.placement.carvings import Carving, carvings
from vmgpu.service.hosts import find_host


def plan(session: Session, host: str, *, cuda: bool) -> tuple[Carving, ...]:
    """Every way to cut the host's cards, as if they were empty; those an admin keeps back count as well."""
    row = find_host(session, host)
    cards = session.exec(select(Gpu).where(Gpu.host_id == row.id, Gpu.state == GpuState.ready)).all()
    groups: set[int] = set()
    ways: list[tuple[placement.Mode, placement.CardModel]] = []
    for gpu in cards:
        for mode in map(placement.Mode, gpu.facts.get("modes", ())):
            if mode is placement.Mode.passthrough and gpu.facts.get("mates"):
                # an IOMMU group goes to one VM, however many cards it holds
                if gpu.facts["iommu_group"] in groups:
                    continue
                groups.add(gpu.facts["iommu_group"])
            ways.append((mode, ledger.shape(gpu.model, mode, gpu.facts)))
    return carvings(ways, cuda=cuda)
