"""What admins ask of cards."""

from __future__ import annotations

from sqlmodel import select

from vmgpu import placement
from vmgpu.db import HOLD, Database
from vmgpu.errors import Conflict, NotFound
from vmgpu.models import Gpu, GpuState, GpuUnit, Host, Slice
from vmgpu.requests import UnitRequest
from vmgpu.service.access import Actor, must_be_admin


def set_unit(db: Database, actor: Actor, model: str, asked: UnitRequest) -> GpuUnit:
    """Set what 1 fGPU is on cards of this model."""
    must_be_admin(actor)
    with db.read() as session:
        real = session.exec(select(Gpu).where(Gpu.model == model)).first()
    name = real.model if real and not real.emulated else placement.model(model).name
    with db.write() as session:
        unit = session.get(GpuUnit, name) or GpuUnit(model=name, share=asked.share)
        unit.share = asked.share
        session.add(unit)
        return unit


def clear(db: Database, actor: Actor, gpu_id: str) -> Gpu:
    """End a card's quarantine: an admin has looked at it, and a survey since has seen that it can be given out."""
    must_be_admin(actor)
    with db.write() as session:
        gpu = session.get(Gpu, gpu_id, with_for_update=HOLD)
        if not gpu:
            raise NotFound(f"There is no card {gpu_id!r}", hint="List them: vmgpu gpu list.")
        if gpu.state is GpuState.quarantined and gpu.mode and gpu.mode not in gpu.facts.get("modes", ()):
            why = dict(gpu.facts.get("refusals", {})).get(gpu.mode) or "no survey has seen it well since"
            name = session.get_one(Host, gpu.host_id).name
            raise Conflict(
                f"Card {gpu.name} stays quarantined: {why}",
                hint=f"Have its host looked at again, then repeat: vmgpu host survey {name}.",
            )
        if gpu.state is GpuState.quarantined:
            gpu.state, gpu.reason, gpu.version = GpuState.ready, None, gpu.version + 1
        return gpu


def offer(db: Database, actor: Actor, gpu_id: str, *, mode: str | None) -> Gpu:
    """Give a real card out in this mode, or keep it back (None); what makes that impossible is said."""
    must_be_admin(actor)
    with db.write() as session:
        gpu = session.get(Gpu, gpu_id, with_for_update=HOLD)
        if not gpu:
            raise NotFound(f"There is no card {gpu_id!r}", hint="List them: vmgpu gpu list.")
        if gpu.emulated:
            kind = "simulated" if session.get_one(Host, gpu.host_id).simulated else "emulated"
            raise Conflict(
                f"Card {gpu.name} is {kind}; it is given out already",
                hint="Only real cards are given out or kept back; see vmgpu gpu list.",
            )
        if session.exec(select(Slice).where(Slice.gpu_id == gpu.id)).first():
            raise Conflict("A VM holds this card", hint="Release the VM first.")
        if mode and mode not in gpu.facts.get("modes", ()):
            why = dict(gpu.facts.get("refusals", {})).get(mode) or f"This card cannot be given out as {mode}"
            raise Conflict(str(why), hint="The survey of the host says so; mend it and survey again.", where="mode")
        gpu.mode, gpu.version = mode, gpu.version + 1
        return gpu
