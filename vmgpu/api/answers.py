"""How lists leave: {"items": […]}, written once by pydantic's own serialiser."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response

from vmgpu.service.shapes import VMOut

Out = TypeVar("Out", bound=BaseModel | VMOut)
Found = TypeVar("Found")
Row = TypeVar("Row")

_AT_ONCE = 1000
_WRITERS: dict[Any, TypeAdapter[list[Any]]] = {}

# Whoever waits keeps a handler's thread meanwhile: most of those are for callers who do not wait.
WAITERS = 8
_WAITERS = threading.BoundedSemaphore(WAITERS)

PREFIX = "/api/v1"
Wait = Annotated[float, Query(ge=0, le=300, description="Seconds to wait for the end before answering")]


class Items(BaseModel, Generic[Out]):
    """A list."""

    items: list[Out]


def items(kind: type[Out], rows: Sequence[Out], *, status: int = 200) -> Response:
    """The rows as they are: they were checked when they were made, and FastAPI would check each of them once more."""
    return Response(b'{"items":' + _list_of(kind).dump_json(list(rows)) + b"}", status, media_type="application/json")


def one(kind: type[Out], row: Out) -> Response:
    """The row as it is."""
    return Response(_list_of(kind).dump_json([row])[1:-1], media_type="application/json")


def many(kind: type[Out], rows: Sequence[Row], shown: Callable[[Sequence[Row]], Sequence[Out]]) -> Response:
    """A list that may be long, shown some rows at a time: what is in memory at once would stay with the process."""
    body = bytearray(b'{"items":[')
    for begin in range(0, len(rows), _AT_ONCE):
        body += b"," if begin else b""
        body += _list_of(kind).dump_json(list(shown(rows[begin : begin + _AT_ONCE])))[1:-1]
    return Response(bytes(body + b"]}"), media_type="application/json")


def until(look: Callable[[], Found | None], seconds: float, stopping: threading.Event) -> Found | None:
    """What `look` finds, as soon as it finds something; None when time is over, too many wait or the service ends."""
    end = time.monotonic() + seconds
    if (found := look()) is not None or seconds <= 0 or not _WAITERS.acquire(blocking=False):
        return found
    try:
        while time.monotonic() < end and not stopping.wait(0.15) and (found := look()) is None:
            pass
        return found
    finally:
        _WAITERS.release()


def _list_of(kind: Any) -> TypeAdapter[list[Any]]:
    if kind not in _WRITERS:
        _WRITERS[kind] = TypeAdapter(list[kind])
    return _WRITERS[kind]
