"""Who may do what: the only place that decides it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, or_
from sqlmodel import Session, col, select

from vmgpu.errors import Conflict, Forbidden, NotFound
from vmgpu.models import VM, Image, User, VMMember, VMState
from vmgpu.units import say_time


@dataclass(frozen=True)
class Actor:
    """The person who asks."""

    id: str
    name: str
    admin: bool


def must_be_admin(actor: Actor) -> None:
    """Hosts, cards, flavors, people and imports are an admin's."""
    if not actor.admin:
        raise Forbidden("Only an admin may do this", hint="Ask an admin of this installation.")


def visible_vms(actor: Actor) -> ColumnElement[bool]:
    """The VMs a person sees: their own, those they are a member of; an admin sees all."""
    if actor.admin:
        return col(VM.id).is_not(None)
    return col(VM.id).in_(select(VMMember.vm_id).where(VMMember.user_id == actor.id))


def visible_images(actor: Actor) -> ColumnElement[bool]:
    """The images a person sees and uses: everybody's and their own; an admin sees all."""
    if actor.admin:
        return col(Image.id).is_not(None)
    return or_(col(Image.owner_id).is_(None), col(Image.owner_id) == actor.id)


def find_vm(session: Session, actor: Actor, ref: str, *, to_own: bool = False) -> VM:
    """The VM of this id, owner/name or name that the person sees; `to_own`: only its owner and admins go on."""
    vm = _one_vm(session, actor, ref)
    if to_own and vm.owner_id != actor.id and not actor.admin:
        raise Forbidden(f"{ref} is not yours: its owner or an admin may do this", hint="Ask the owner.")
    return vm


def find_image(session: Session, actor: Actor, ref: str) -> Image:
    """The image of this id, name or owner/name that the person sees; their own goes before everybody's."""
    found = list(
        session.exec(
            select(Image).where(or_(col(Image.id) == ref, col(Image.name) == ref), visible_images(actor))
        ).all()
    )
    if not found and "/" in ref:
        owner, _, name = ref.partition("/")
        query = select(Image).join(User, col(User.id) == Image.owner_id).where(User.name == owner, Image.name == name)
        found = list(session.exec(query.where(visible_images(actor))).all())
    mine = [image for image in found if image.owner_id == actor.id] or [i for i in found if i.owner_id is None] or found
    if not mine:
        raise NotFound(
            f"There is no image {ref!r} that you can use", hint="List them: vmgpu image list.", where="image"
        )
    if len(mine) > 1:
        raise Conflict(f"Several images are called {ref!r}", hint="Use the id, or OWNER/NAME.", where="image")
    return mine[0]


def find_user(session: Session, name: str, *, where: str = "") -> User:
    """The person of this name."""
    user = session.exec(select(User).where(or_(col(User.name) == name, col(User.id) == name))).first()
    if not user:
        raise NotFound(f"There is no user {name!r}", hint="An admin adds people: vmgpu user add NAME.", where=where)
    return user


def _one_vm(session: Session, actor: Actor, ref: str) -> VM:
    by_id = session.exec(select(VM).where(VM.id == ref, visible_vms(actor))).first()
    if by_id:
        return by_id
    owner, slash, name = ref.partition("/")
    query = select(VM).where(VM.name == (name if slash else ref), visible_vms(actor))
    if slash:
        query = query.join(User, col(User.id) == VM.owner_id).where(User.name == owner)
    found = session.exec(query.where(VM.state != VMState.gone)).all()
    mine = [vm for vm in found if vm.owner_id == actor.id] or list(found)
    if not mine:
        gone = session.exec(query.where(VM.state == VMState.gone).order_by(col(VM.state_since).desc())).first()
        said = f"{ref} was released at {say_time(gone.state_since)}" if gone else f"There is no VM {ref!r}"
        raise NotFound(said, hint="List them: vmgpu vm list.")
    if len(mine) > 1:
        raise Conflict(f"Several people have a VM called {ref!r}", hint="Say whose: OWNER/NAME.")
    return mine[0]
