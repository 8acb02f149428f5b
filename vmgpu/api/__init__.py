"""The web face: JSON under /api/v1, pages, live news. It writes wishes on rows and touches no host."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

from vmgpu import __version__
from vmgpu.api import faults, rest
from vmgpu.api.envelope import Envelope
from vmgpu.api.metrics import Metrics
from vmgpu.db import Database
from vmgpu.settings import Settings

THREADS = 32  # handlers at work at once; the others wait their turn


def create_app(db: Database, settings: Settings, *, alive: Callable[[], bool] | None = None) -> FastAPI:
    """The application on this database. `alive` tells whether the worker of this process is, where there is one.

    `app.state.on_stop` are called when the service begins to end, before open streams are waited for.
    """
    app = FastAPI(
        title="vmgpu",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # the interactive pages would load their scripts from a CDN
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.db = db
    app.state.settings = settings
    app.state.alive = alive
    app.state.stopping = threading.Event()
    app.state.on_stop = [app.state.stopping.set]
    app.state.metrics = metrics = Metrics(db)
    faults.install(app)
    app.router.routes.extend(rest.router.routes)  # as in rest: built once is enough
    for name in ("pages", "live"):
        if find_spec(f"vmgpu.api.{name}"):
            room = import_module(f"vmgpu.api.{name}")
            app.router.routes.extend(room.router.routes)
            if hasattr(room, "mount"):
                room.mount(app)
            if hasattr(room, "error_page"):
                app.state.error_page = room.error_page
    app.add_middleware(Envelope, observe=metrics.observe)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    current_default_thread_limiter().total_tokens = THREADS
    yield
    for end in app.state.on_stop:
        end()
