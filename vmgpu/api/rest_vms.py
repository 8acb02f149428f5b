"""VMs by REST: asked for, listed, and every wish that a person has for one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.responses import PlainTextResponse, Response

from vmgpu.api.answers import PREFIX, Items, items, many, one, until
from vmgpu.api.deps import Config, Db, Me, Stopping
from vmgpu.api.faults import answers
from vmgpu.errors import NotFound
from vmgpu.models import VM, Image, VMState
from vmgpu.requests import CaptureRequest, ExtendRequest, StopRequest, VMRequest
from vmgpu.service import lists, reach, show, vms
from vmgpu.service.access import Actor, find_vm
from vmgpu.service.shapes import EventOut, ImageOut, ReachOut, VMOut

router = APIRouter(prefix=PREFIX, tags=["vms"], responses=answers(401, 404, 422))

_StopBody = Annotated[StopRequest | None, Body(examples=[{"slices": "release"}])]
_OWN: dict[str, Any] = {"status_code": 202, "response_model": VMOut, "responses": answers(403, 409)}


@router.post("/vms", status_code=202, response_model=Items[VMOut], responses=answers(403, 409, 413))
def request(asked: VMRequest, db: Db, settings: Config, me: Me) -> Response:
    """Ask for 1..N VMs. Each is a row of its own that waits for its place, however full the hosts are."""
    return _several(db, me, vms.request(db, settings, me, asked), status=202)


@router.get("/vms", response_model=Items[VMOut])
def list_vms(
    db: Db,
    me: Me,
    state: Annotated[list[VMState], Query(description="Only these states")] = [],  # noqa: B006 - FastAPI copies it
    owner: Annotated[str | None, Query(max_length=100)] = None,
    all: Annotated[bool, Query(description="Also those that are gone")] = False,
) -> Response:
    """The VMs that you see: yours, those you are a member of; an admin sees all."""
    with db.read() as session:
        rows = lists.vms(session, me, states=state, owner=owner, gone=all)
        return many(VMOut, rows, lambda some: show.vms(session, some, to=me))


@router.get("/vms/{ref:path}/events", response_model=Items[EventOut])
def vm_events(ref: str, db: Db, me: Me, limit: Annotated[int, Query(ge=1, le=1000)] = 200) -> Response:
    """What happened to a VM, with the seconds that each state took."""
    with db.read() as session:
        try:
            found = lists.events(session, me, vm=ref, limit=limit)
        except NotFound:
            return _called(db, me, f"{ref}/events")
        return items(EventOut, show.events(session, found, to=me))


@router.get("/vms/{ref:path}/console", response_class=PlainTextResponse)
def console(ref: str, db: Db, me: Me, stopping: Stopping, wait: Annotated[float, Query(ge=0, le=30)] = 5) -> Response:
    """The last 256 KiB of a VM's serial console, as text; `X-Console-At` tells when it was read."""
    try:
        look = vms.ask_console(db, me, ref)
    except NotFound:
        return _called(db, me, f"{ref}/console")
    until(lambda: look()[1] or None, wait, stopping)
    kept, _ = look()
    headers = {"X-Console-At": kept.at.isoformat()} if kept else {}
    return PlainTextResponse(kept.text.decode("utf-8", "replace") if kept else "", headers=headers)


@router.get("/vms/{ref:path}/ssh", response_model=ReachOut, responses=answers(409))
def ssh(ref: str, db: Db, me: Me) -> Any:
    """How to reach a VM: address, logins, and the host key that must answer."""
    with db.read() as session:
        try:
            return reach.ssh(session, me, ref)
        except NotFound:
            return _called(db, me, f"{ref}/ssh")


@router.get("/vms/{ref:path}", response_model=VMOut)
def show_vm(ref: str, db: Db, me: Me) -> VMOut:
    """One VM, by id, name or owner/name."""
    with db.read() as session:
        return show.vm(session, find_vm(session, me, ref), to=me)


@router.post("/vms/{ref:path}/stop", **_OWN)
def stop(ref: str, db: Db, me: Me, asked: _StopBody = None) -> VMOut:
    """Stop it, keeping its slices or giving them back; without a body as its `on_stop` says."""
    return _one(db, me, vms.stop(db, me, ref, asked or StopRequest()))


@router.post("/vms/{ref:path}/start", **_OWN)
def start(ref: str, db: Db, me: Me) -> VMOut:
    """Start it; without slices it queues for new ones."""
    return _one(db, me, vms.start(db, me, ref))


@router.post("/vms/{ref:path}/reboot", **_OWN)
def reboot(ref: str, db: Db, me: Me) -> VMOut:
    """Boot a running VM once more."""
    return _one(db, me, vms.reboot(db, me, ref))


@router.post("/vms/{ref:path}/reset", **_OWN)
def reset(ref: str, db: Db, me: Me) -> VMOut:
    """Give it a fresh disk of the same image; what was on the old one is lost."""
    return _one(db, me, vms.reset(db, me, ref))


@router.post("/vms/{ref:path}/extend", **_OWN)
def extend(ref: str, asked: ExtendRequest, db: Db, settings: Config, me: Me) -> VMOut:
    """Move the end of its lease."""
    return _one(db, me, vms.extend(db, settings, me, ref, asked))


@router.post("/vms/{ref:path}/release", **_OWN)
def release(ref: str, db: Db, me: Me) -> VMOut:
    """Let it go, with its disk."""
    return _one(db, me, vms.release(db, me, ref))


@router.post("/vms/{ref:path}/snapshot", status_code=202, response_model=ImageOut, responses=answers(403, 409))
def snapshot(ref: str, asked: CaptureRequest, db: Db, settings: Config, me: Me) -> ImageOut:
    """Make its disk a private image of its owner; it stops for the copy and goes on as it was."""
    made = vms.capture(db, settings, me, ref, asked)
    with db.read() as session:
        return show.images(session, [session.get_one(Image, made.id)], to=me)[0]


def _one(db: Db, me: Me, row: VM) -> VMOut:
    with db.read() as session:
        return show.vm(session, session.get(VM, row.id) or row, to=me)


def _several(db: Db, me: Me, rows: list[VM], *, status: int) -> Response:
    with db.read() as session:
        return items(VMOut, show.vms(session, rows, to=me), status=status)


def _called(db: Db, me: Actor, name: str) -> Response:
    # anna's VM may be called `events`: /vms/anna/events is then that VM, where no VM is called anna
    try:
        found = show_vm(name, db, me)
    except NotFound:
        meant = name.rpartition("/")[0]
        raise NotFound(f"There is no VM {meant!r}", hint="List them: vmgpu vm list.") from None
    return one(VMOut, found)
