"""What a person may see, as rows: the VMs, images, events and people that the lists of every face are made of."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

from sqlalchemy import or_
from sqlmodel import Session, col, select

from vmgpu import ledger, placement
from vmgpu.errors import Conflict
from vmgpu.models import VM, Event, Image, Key, Token, User, VMState, Wanted
from vmgpu.service import show
from vmgpu.service.access import Actor, find_user, find_vm, visible_images, visible_vms
from vmgpu.service.hosts import find_host
from vmgpu.service.people import users_own

# A line has the attributes of a VM that `show.vms` reads, and no others. A plain tuple, because an attribute of
# SQLAlchemy's own rows costs ten times as much, and a list of a thousand asks for thirty thousand of them.
_Line: Any = namedtuple("_Line", show.VM_COLUMNS)  # type: ignore[misc]  # mypy wants the names spelled out here


def vms(
    session: Session, actor: Actor, *, states: Sequence[VMState] = (), owner: str | None = None, gone: bool = False
) -> Sequence[VM]:
    """The VMs a person sees, oldest first; those that are gone only where asked for."""
    query = _shown_columns().where(visible_vms(actor))
    if states:
        query = query.where(col(VM.state).in_(states))
    elif not gone:
        query = query.where(VM.state != VMState.gone)
    if owner:
        query = query.where(VM.owner_id == find_user(session, owner, where="owner").id)
    return _lines(session, query.order_by(col(VM.created_at), col(VM.ticket)))


def queue(session: Session, actor: Actor) -> Sequence[VM]:
    """Those of the waiting VMs that a person sees, first to be served first."""
    query = _shown_columns().where(VM.state == VMState.pending, VM.wanted == Wanted.running, visible_vms(actor))
    return _lines(session, query.order_by(col(VM.ticket)))


def why(session: Session, actor: Actor, ref: str) -> tuple[VM, tuple[placement.Step, ...]]:
    """A waiting VM, and each filter of the placement with what it leaves for it now."""
    vm = find_vm(session, actor, ref)
    if vm.state is not VMState.pending or vm.wanted is not Wanted.running:
        raise Conflict(
            f"{vm.name} does not wait for a place: it is {vm.state}", hint="See who waits: vmgpu queue list."
        )
    (wish,) = ledger.wishes(session, [vm])
    return vm, placement.explain(wish, ledger.fleet(session))


def images(session: Session, actor: Actor) -> list[Image]:
    """The images a person may use."""
    return list(session.exec(select(Image).where(visible_images(actor)).order_by(col(Image.name))).all())


def events(
    session: Session,
    actor: Actor,
    *,
    vm: str | None = None,
    host: str | None = None,
    after: int | None = None,
    limit: int = 100,
) -> list[Event]:
    """What happened to what a person sees, in order: the next `limit` after a number, else the last ones."""
    query = select(Event)
    if not actor.admin:
        mine = [col(Event.vm_id).in_(select(VM.id).where(visible_vms(actor)))]
        mine.append(col(Event.image_id).in_(select(Image.id).where(Image.owner_id == actor.id)))
        query = query.where(or_(*mine))
    if vm:
        query = query.where(Event.vm_id == find_vm(session, actor, vm).id)
    if host:
        query = query.where(Event.host_id == find_host(session, host).id)
    if after is not None:
        return list(session.exec(query.where(col(Event.id) > after).order_by(col(Event.id)).limit(limit)).all())
    return list(session.exec(query.order_by(col(Event.id).desc()).limit(limit)).all())[::-1]


def people(session: Session, actor: Actor) -> list[User]:
    """Everybody, for an admin; else the person alone."""
    query = select(User) if actor.admin else select(User).where(User.id == actor.id)
    return list(session.exec(query.order_by(col(User.name))).all())


def keys(session: Session, actor: Actor, name: str | None) -> tuple[User, list[Key]]:
    """A person, the caller where none is named, and their keys."""
    user = users_own(session, actor, name)
    return user, list(session.exec(select(Key).where(Key.user_id == user.id).order_by(col(Key.created_at))).all())


def tokens(session: Session, actor: Actor, name: str | None) -> tuple[User, list[Token]]:
    """A person, the caller where none is named, and their tokens."""
    user = users_own(session, actor, name)
    query = select(Token).where(Token.user_id == user.id).order_by(col(Token.created_at))
    return user, list(session.exec(query).all())


def _shown_columns() -> Any:
    table: Any = VM
    return select(*(getattr(table, name) for name in show.VM_COLUMNS))


def _lines(session: Session, query: Any) -> Sequence[VM]:
    lines: Any = [_Line._make(row) for row in session.execute(query).all()]
    found: Sequence[VM] = lines
    return found
