"""Live news for browsers: one stream each, fed from one ear on the database, with no session held while waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import StreamingResponse

from vmgpu.api.deps import Me
from vmgpu.db import Change, Database

# Changes come in bursts (a placement, then a carve, then a boot): browsers are told once for all of one burst.
GATHER = 0.15
ALIVE = 15.0  # proxies close a stream that says nothing for long

# What a browser was not told while it was away it sees now: each stream begins with the news.
CHANGED = "event: changed\ndata: now\n\n"
QUIET = ": still here\n\n"

router = APIRouter(include_in_schema=False)


class Hub:
    """Who listens in this process. All but `heard` and `end` run on the event loop alone."""

    def __init__(self, db: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._readers: set[asyncio.Event] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.ended = False
        self._deaf = db.listen(self.heard)

    def heard(self, changes: frozenset[Change]) -> None:
        """Something was committed: told by whichever thread did it."""
        with suppress(RuntimeError):  # the loop has ended: nobody listens any more
            self._loop.call_soon_threadsafe(self._gather)

    def end(self) -> None:
        """End every stream at once; called when the service stops, from any thread."""
        if not self.ended:
            self.ended = True
            self._deaf()
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell)

    async def stream(self) -> AsyncIterator[str]:
        """The news for one browser. It says only that something changed: what, each asks with its own eyes."""
        news = asyncio.Event()
        news.set()
        self._readers.add(news)
        try:
            while not self.ended:
                try:
                    await asyncio.wait_for(news.wait(), ALIVE)
                except TimeoutError:
                    yield QUIET
                    continue
                news.clear()
                if not self.ended:
                    yield CHANGED
        finally:
            self._readers.discard(news)

    def _gather(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER, self._tell)

    def _tell(self) -> None:
        self._timer = None
        for news in self._readers:
            news.set()


def mount(app: FastAPI) -> None:
    """Have every stream end as soon as the service begins to: uvicorn waits for open answers before anything else."""
    app.state.hub = None
    app.state.on_stop.append(lambda: app.state.hub and app.state.hub.end())


@router.get("/live")
async def live(request: Request, me: Me) -> StreamingResponse:
    """An endless stream of "something changed", for who is signed in."""
    state = request.app.state
    if state.hub is None:  # only now is there a loop; handlers of one loop do not race here
        state.hub = Hub(state.db, asyncio.get_running_loop())
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(state.hub.stream(), media_type="text/event-stream", headers=headers)
