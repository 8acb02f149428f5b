"""The queue, why each VM waits in it, and what happened, by REST."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from vmgpu.api.answers import PREFIX, Items, items
from vmgpu.api.deps import Db, Me
from vmgpu.api.faults import answers
from vmgpu.service import lists, show
from vmgpu.service.shapes import EventOut, VMOut, WhyOut

router = APIRouter(prefix=PREFIX, responses=answers(401, 404, 422))


@router.get("/queue", response_model=Items[VMOut], tags=["queue"])
def queue(db: Db, me: Me) -> Response:
    """The VMs that wait for a place, first to be served first; `position` counts other people's too."""
    with db.read() as session:
        return items(VMOut, show.vms(session, lists.queue(session, me), to=me))


@router.get("/queue/{ref:path}/why", response_model=WhyOut, tags=["queue"], responses=answers(409))
def why(ref: str, db: Db, me: Me) -> WhyOut:
    """Why a VM waits: what each filter of the placement leaves for it now."""
    with db.read() as session:
        vm, steps = lists.why(session, me, ref)
        shown = show.vm(session, vm, to=me)
        return WhyOut(vm=vm.name, position=shown.position, reason=shown.reason, steps=show.why(steps, to=me))


@router.get("/events", response_model=Items[EventOut], tags=["events"])
def events(
    db: Db,
    me: Me,
    vm: Annotated[str | None, Query(max_length=200)] = None,
    host: Annotated[str | None, Query(max_length=200)] = None,
    after: Annotated[int | None, Query(ge=0, lt=2**31, description="Only events behind this number")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """What happened to what you see, in order: the next events after a number, else the last ones."""
    with db.read() as session:
        rows = lists.events(session, me, vm=vm, host=host, after=after, limit=limit)
        return items(EventOut, show.events(session, rows, to=me))
