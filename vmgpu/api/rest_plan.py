"""Plans by REST."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from vmgpu.api.answers import PREFIX, Items, items
from vmgpu.api.deps import Db, Me
from vmgpu.api.faults import answers
from vmgpu.service import plans
from vmgpu.service.access import must_be_admin
from vmgpu.service.shapes import CarvingOut

router = APIRouter(prefix=PREFIX, responses=answers(401, 403, 404, 422))


@router.get("/plan", response_model=Items[CarvingOut], tags=["hosts"])
def plan(
    db: Db,
    me: Me,
    host: Annotated[str, Query(max_length=100)],
    students: Annotated[int, Query(ge=1, le=100_000, description="How many VMs are wished")] = 1,
    cuda: Annotated[bool, Query(description="Only what runs CUDA")] = False,
) -> Response:
    """Which carving of a host's cards serves how many VMs, the largest pieces first."""
    must_be_admin(me)
    with db.read() as session:
        found = plans.plan(session, host, cuda=cuda)
    rows = [
        CarvingOut(
            mode=one.mode.value,
            model=one.model,
            profile=one.profile,
            memory_mib=one.memory_mib,
            cuda=one.cuda,
            per_card=one.per_card,
            cards=one.cards,
            seats=one.seats,
            enough=one.seats >= students,
        )
        for one in found
    ]
    return items(CarvingOut, rows)
