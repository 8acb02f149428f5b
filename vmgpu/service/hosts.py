"""What admins ask of hosts, cards, flavors and images."""

from __future__ import annotations

import time

from sqlalchemy import or_
from sqlmodel import Session, col, delete, select

from vmgpu import placement
from vmgpu.db import Database, wake
from vmgpu.errors import Conflict, Forbidden, Invalid, NotFound
from vmgpu.hypervisor.fake import parse
from vmgpu.models import (
    VM,
    Event,
    Flavor,
    Gpu,
    GpuState,
    GpuUnit,
    Host,
    HostState,
    Image,
    ImageState,
    Slice,
    VMState,
    now,
)
from vmgpu.requests import FlavorRequest, HostChange, HostRequest, UnitRequest
from vmgpu.service.access import Actor, find_image, must_be_admin

SIMULATED_IMAGE = "base"


def add(db: Database, actor: Actor, asked: HostRequest) -> Host:
    """Take a host in; its first survey is due at once."""
    must_be_admin(actor)
    if asked.uri.startswith("fake:"):
        parse(asked.uri)
    with db.write() as session:
        if session.exec(select(Host).where(Host.name == asked.name)).first():
            raise Conflict(f"There is a host {asked.name} already", hint="Take another name.", where="name")
        same = session.exec(select(Host).where(Host.uri == asked.uri)).first()
        if same and not asked.uri.startswith("fake:"):
            raise Conflict(f"{asked.uri} is host {same.name} already", hint="One row a machine.", where="uri")
        host = Host(
            name=asked.name,
            uri=asked.uri,
            bridge=asked.bridge,
            emulate=asked.emulated(),
            overcommit=asked.overcommit,
            host_key=asked.host_key,
            due_at=now(),
        )
        session.add(host)
        if host.simulated:
            _simulated_image(session)
        session.flush()
        session.add(Event(host_id=host.id, kind="host_added", who=actor.name))
        return host


def change(db: Database, actor: Actor, name: str, asked: HostChange) -> Host:
    """Drain a host or end the drain; set its overcommit."""
    must_be_admin(actor)
    with db.write() as session:
        host = find_host(session, name)
        session.refresh(host, with_for_update=True)  # the leader compares its version
        for field, value in asked.model_dump(exclude_none=True).items():
            setattr(host, field, value)
        host.version += 1
        session.add(Event(host_id=host.id, kind="host_changed", who=actor.name))
        return host


def survey(db: Database, actor: Actor, name: str, *, wait: float = 0) -> Host:
    """Wish a new survey, and wait so many seconds for it."""
    must_be_admin(actor)
    with db.write() as session:
        host = find_host(session, name)
        host.survey_asked = asked_at = now()
        session.flush()
        wake(session, Host, col(Host.id) == host.id)
    until = time.monotonic() + wait
    while True:
        with db.read() as session:
            host = find_host(session, name)
        if (host.surveyed_at and host.surveyed_at >= asked_at) or time.monotonic() >= until:
            return host
        time.sleep(0.2)


def remove(db: Database, actor: Actor, name: str) -> Host:
    """Let a host go; refused while it holds VMs."""
    must_be_admin(actor)
    with db.write() as session:
        host = find_host(session, name)
        session.refresh(host, with_for_update=True)  # the leader compares its version
        vms = session.exec(select(VM.name).where(VM.host_id == host.id, VM.state != VMState.gone)).all()
        if vms:
            raise Conflict(
                f"Host {name} holds {len(vms)} VM(s): {', '.join(sorted(vms)[:5])}",
                hint=f"Release them first; vmgpu host drain {name} keeps new ones away.",
            )
        host.state, host.version = HostState.removing, host.version + 1
        session.flush()
        wake(session, Host, col(Host.id) == host.id)
        session.add(Event(host_id=host.id, kind="host_removed", who=actor.name))
        return host


def find_host(session: Session, name: str) -> Host:
    """The host of this name or id."""
    host = session.exec(select(Host).where(or_(col(Host.name) == name, col(Host.id) == name))).first()
    if not host:
        raise NotFound(f"There is no host {name!r}", hint="List them: vmgpu host list.")
    return host


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


def clear_gpu(db: Database, actor: Actor, gpu_id: str) -> Gpu:
    """End a card's quarantine: an admin has looked at it."""
    must_be_admin(actor)
    with db.write() as session:
        gpu = session.get(Gpu, gpu_id, with_for_update=True)
        if not gpu:
            raise NotFound(f"There is no card {gpu_id!r}", hint="List them: vmgpu gpu list.")
        if gpu.state is GpuState.quarantined:
            gpu.state, gpu.reason, gpu.version = GpuState.ready, None, gpu.version + 1
        return gpu


def offer_gpu(db: Database, actor: Actor, gpu_id: str, *, offered: bool) -> Gpu:
    """Give a real card out whole, or keep it back again; what makes that impossible is said."""
    must_be_admin(actor)
    with db.write() as session:
        gpu = session.get(Gpu, gpu_id, with_for_update=True)
        if not gpu or gpu.emulated:
            raise NotFound(f"There is no real card {gpu_id!r}", hint="List them: vmgpu gpu list.")
        if session.exec(select(Slice).where(Slice.gpu_id == gpu.id)).first():
            raise Conflict("A VM holds this card", hint="Release the VM first.")
        refusal = dict(gpu.facts.get("refusals", {})).get("passthrough")
        if offered and refusal:
            raise Conflict(str(refusal), hint="The survey of the host says so; mend it and survey again.")
        gpu.mode, gpu.version = ("passthrough" if offered else None), gpu.version + 1
        return gpu


def add_flavor(db: Database, actor: Actor, asked: FlavorRequest) -> Flavor:
    """Define a size of VM."""
    must_be_admin(actor)
    with db.write() as session:
        if session.exec(select(Flavor).where(Flavor.name == asked.name)).first():
            raise Conflict(f"There is a flavor {asked.name} already", hint="Take another name.", where="name")
        flavor = Flavor(
            name=asked.name,
            vcpus=asked.vcpus,
            memory_mib=asked.memory,
            disk_gib=asked.disk,
            profile=asked.profile,
            fgpu=asked.fgpu,
            on_stop=asked.on_stop,
        )
        session.add(flavor)
        return flavor


def remove_flavor(db: Database, actor: Actor, name: str) -> None:
    """Forget a size; VMs made from it keep theirs."""
    must_be_admin(actor)
    with db.write() as session:
        if session.execute(delete(Flavor).where(col(Flavor.name) == name)).rowcount != 1:  # type: ignore[attr-defined]
            raise NotFound(f"There is no flavor {name!r}", hint="List them: vmgpu flavor list.")


def remove_image(db: Database, actor: Actor, ref: str) -> Image:
    """Delete an image; refused while a VM's disk stands on it."""
    with db.write() as session:
        image = find_image(session, actor, ref)
        session.refresh(image, with_for_update=True)
        if image.owner_id != actor.id and not actor.admin:
            raise Forbidden(f"Image {ref} is not yours", hint="Its owner or an admin deletes it.")
        if image.name == SIMULATED_IMAGE and image.labels.get("simulated"):
            raise Invalid("The simulated image is always there", hint="Remove the simulated hosts instead.")
        used = session.exec(select(VM).where(VM.image_id == image.id, VM.state != VMState.gone)).all()
        if used:
            names = ", ".join(sorted(vm.name for vm in used)[:5])
            raise Conflict(f"{len(used)} VM(s) stand on image {image.name}: {names}", hint="Release them first.")
        if image.state in (ImageState.copying, ImageState.generalising):
            raise Conflict(f"Image {image.name} is being made", hint="Wait until its capture has ended.")
        image.state, image.due_at, image.wakes = ImageState.deleting, now(), image.wakes + 1
        return image


def _simulated_image(session: Session) -> None:
    known = select(Image).where(Image.name == SIMULATED_IMAGE, col(Image.owner_id).is_(None))
    if session.exec(known).first() is None:
        session.add(Image(name=SIMULATED_IMAGE, labels={"simulated": "yes"}, virtual_mib=1024))
