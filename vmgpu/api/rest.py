"""The JSON face: /api/v1 and the addresses that monitors ask."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from sqlmodel import text
from starlette.responses import JSONResponse, PlainTextResponse, Response

from vmgpu.api import rest_hosts, rest_images, rest_people, rest_plan, rest_queue, rest_vms
from vmgpu.api.deps import Db
from vmgpu.api.faults import FaultOut
from vmgpu.db import prove_writable
from vmgpu.errors import Unavailable
from vmgpu.migrations import HEAD

router = APIRouter()
# `include_router` would build each of the fifty routes once more, a tenth of the service's start
for room in (rest_vms, rest_queue, rest_hosts, rest_plan, rest_images, rest_people):
    router.routes.extend(room.router.routes)


@router.get("/healthz", tags=["monitoring"])
async def healthz() -> dict[str, str]:
    """Answer at once: this process serves."""
    return {"status": "ok"}


@router.get("/readyz", tags=["monitoring"])
def readyz(request: Request, db: Db) -> Response:
    """Whether work gets done: the database reads and writes, its schema is ours, the worker of this process lives."""
    faults = []
    try:
        with db.read() as session:
            version = session.connection().execute(text("SELECT version_num FROM alembic_version")).scalar()
        if version != HEAD:
            faults.append(f"the schema is {version}, this program needs {HEAD}")
        else:
            prove_writable(db)
    except Unavailable as bad:
        faults.append(bad.message)
    alive = request.app.state.alive
    if alive is not None and not alive():
        faults.append("the worker is not at work")
    return JSONResponse({"status": "not ready" if faults else "ready", "faults": faults}, 503 if faults else 200)


# the one route that brings the shape of errors into the document; all others name it (`faults.answers`)
_SPOILT: dict[int | str, dict[str, Any]] = {503: {"model": FaultOut, "description": "The database does not answer"}}


@router.get("/metrics", tags=["monitoring"], response_class=PlainTextResponse, responses=_SPOILT)
def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
