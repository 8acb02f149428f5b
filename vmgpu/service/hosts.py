"""What admins ask of hosts."""

from __future__ import annotations

from sqlalchemy import or_
from sqlmodel import Session, col, select

from vmgpu.db import HOLD, Database, wake
from vmgpu.errors import Conflict, NotFound
from vmgpu.hypervisor.fake import parse
from vmgpu.models import VM, Event, Host, HostState, Image, VMState, now
from vmgpu.requests import HostChange, HostRequest
from vmgpu.service.access import Actor, must_be_admin
from vmgpu.service.images import SIMULATED_IMAGE
from vmgpu.units import say_count, say_names


def add(db: Database, actor: Actor, asked: HostRequest) -> Host:
    """Take a host in; its first survey is due at once."""
    must_be_admin(actor)
    if asked.uri.startswith("fake:"):
        parse(asked.uri)
    with db.write() as session:
        if session.exec(select(Host).where(Host.name == asked.name)).first():
            hint = f"Take another name; to look at that one again: vmgpu host survey {asked.name}."
            raise Conflict(f"There is a host {asked.name} already", hint=hint, where="name")
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
    """Change a host's settings; of the licence's, what is left out stays."""
    must_be_admin(actor)
    with db.write() as session:
        host = find_host(session, name)
        session.refresh(host, with_for_update=HOLD)  # the leader compares its version
        for field, value in asked.model_dump(exclude_none=True).items():
            setattr(host, field, {**host.licence, **value} if field == "licence" else value)
        host.version += 1
        session.add(Event(host_id=host.id, kind="host_changed", who=actor.name))
        return host


def survey(db: Database, actor: Actor, name: str) -> Host:
    """Wish a new survey; its end shows in `surveyed_at`."""
    must_be_admin(actor)
    with db.write() as session:
        host = find_host(session, name)
        wake(session, Host, col(Host.id) == host.id, survey_asked=now())
        session.refresh(host)
        return host


def examine(db: Database, actor: Actor, name: str) -> Host:
    """Wish the doctor at a host; the answer shows in `doctor`, with its time in `doctor_at`."""
    must_be_admin(actor)
    with db.write() as session:
        host = find_host(session, name)
        if host.state is HostState.removing:
            raise Conflict(f"Host {name} is being removed", hint="Add it again to have it looked at.")
        wake(session, Host, col(Host.id) == host.id, doctor_asked=now())
        session.refresh(host)
        return host


def examined(db: Database, actor: Actor, name: str) -> Host:
    """The host with the doctor's last answer, which names its processes and files: an admin's to read."""
    must_be_admin(actor)
    with db.read() as session:
        return find_host(session, name)


def remove(db: Database, actor: Actor, name: str, *, lost: bool = False) -> Host:
    """Let a host go; refused while it holds VMs, unless it does not answer and is `lost`: then they go with it."""
    must_be_admin(actor)
    with db.write() as session:
        host = find_host(session, name)
        session.refresh(host, with_for_update=HOLD)  # the leader compares its version
        vms = session.exec(select(VM.name).where(VM.host_id == host.id, VM.state != VMState.gone)).all()
        if lost and host.state is not HostState.unreachable:
            raise Conflict(f"Host {name} is {host.state}: it is not lost", hint="Release its VMs, then remove it.")
        if vms and not lost:
            hint = f"Release them first; vmgpu host drain {name} keeps new ones away."
            if host.state is HostState.unreachable:
                hint = f"If it will never answer again: vmgpu host remove {name} --lost gives them up with it."
            raise Conflict(f"Host {name} holds {say_count(len(vms), 'VM')}: {say_names(vms)}", hint=hint)
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


def _simulated_image(session: Session) -> None:
    known = select(Image).where(Image.name == SIMULATED_IMAGE, col(Image.owner_id).is_(None))
    if session.exec(known).first() is None:
        session.add(Image(name=SIMULATED_IMAGE, labels={"simulated": "yes"}, virtual_mib=1024))
