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
    return carvings(
        (
            (placement.Mode(mode), ledger.shape(gpu.model, mode, gpu.facts))
            for gpu in cards
            for mode in gpu.facts.get("modes", ())
        ),
        cuda=cuda,
    )
