"""vmgpu serve and vmgpu worker: what runs until it is told to end."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from vmgpu.cli import say
from vmgpu.cli.desk import TOKEN_FILE
from vmgpu.errors import SetupError, VmgpuError

if TYPE_CHECKING:
    from vmgpu.db import Database
    from vmgpu.settings import Settings

LOCK = "serve.lock"
LAST_CALLS = 5  # seconds that open requests have to end; streams are told to end at once
LAST_STEPS = 20.0  # seconds that steps on hosts have to end; what is cut off is found again at the next start

log = logging.getLogger(__name__)


@click.command()
@click.option("--bind", "at", metavar="HOST:PORT", help="Where to listen  [VMGPU_BIND, else 127.0.0.1:8000].")
@click.option("--no-worker", is_flag=True, help="Only answer; `vmgpu worker` does the work (PostgreSQL).")
def serve(at: str | None, no_worker: bool) -> None:
    """Serve the API and the pages, and do the work, until SIGTERM or Ctrl-C; a second one ends at once."""
    gc.disable()  # all that is imported stays: looking for garbage among it takes a fifth of the start
    from vmgpu import logs
    from vmgpu.settings import read_settings

    settings = read_settings(**({"bind": at} if at else {}))
    logs.configure(settings)
    if settings.embedded and no_worker:
        raise SetupError("On SQLite one process does everything", hint="Leave --no-worker out, or use PostgreSQL.")
    token = settings.data_dir / TOKEN_FILE
    before = token.exists()
    with _alone(settings), _listen(settings.bind) as listening:
        if settings.port == 0:
            settings = settings.model_copy(update={"bind": f"{settings.host}:{listening.getsockname()[1]}"})
        with _database(settings, serving=True) as db:
            if token.exists() and not before and sys.stderr.isatty():
                _greet(token)
            _serve(db, settings, listening, with_worker=not no_worker)


def _greet(token: Path) -> None:
    """At the first start, to a person at a terminal: how to go on from here."""
    say.note(f"The admin's token lies in {token}: commands with VMGPU_DATA_DIR={token.parent} find it there.")
    say.note("Next, in a second terminal: vmgpu host add NAME URI; docs/quickstart.md goes on from there.")


@click.command()
def worker() -> None:
    """Do the work of hosts and VMs, beside `vmgpu serve --no-worker` (PostgreSQL)."""
    from vmgpu import logs
    from vmgpu.settings import read_settings

    settings = read_settings()
    logs.configure(settings)
    if settings.embedded:
        raise SetupError("On SQLite one process does everything", hint="Use vmgpu serve, or set VMGPU_DATABASE_URL.")
    with _database(settings) as db:
        hand, told = _Hand(db, settings), threading.Event()
        _on_signals(lambda: told.set(), again=lambda: os._exit(1))
        hand.start()
        log.info("working")
        while not told.wait(1.0) and hand.alive:
            pass
        hand.stop()
        if hand.failure:
            raise hand.failure


class _Hand:
    """The worker of this process. Its imports are the slow ones (libvirt, SSH), so they come in a thread."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self._db, self._settings = db, settings
        self._worker: Any = None
        self._thread = threading.Thread(target=self._begin, name="worker-start", daemon=True)
        self.failure: VmgpuError | None = None
        self.on_failure: Any = None

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it works, or is still beginning to."""
        return self._thread.is_alive() or (self._worker is not None and bool(self._worker.alive))

    def stop(self) -> None:
        self._thread.join(timeout=30)
        if self._worker is not None:
            self._worker.stop(LAST_STEPS)

    def _begin(self) -> None:
        try:
            from vmgpu.worker import Worker

            worker = Worker(self._db, self._settings)
            worker.start()
            self._worker = worker
            gc.freeze()  # what it imported stays, too
        except Exception as bad:
            log.exception("the worker does not start")
            known = isinstance(bad, VmgpuError)
            self.failure = bad if known else SetupError("The worker does not start", hint="The log says why.")  # type: ignore[assignment]
            if self.on_failure:
                self.on_failure()


def _serve(db: Database, settings: Settings, listening: socket.socket, *, with_worker: bool) -> None:
    import uvicorn

    from vmgpu.api import create_app

    hand = _Hand(db, settings) if with_worker else None
    app = create_app(db, settings, alive=(lambda: hand.alive) if hand else None)

    class Server(uvicorn.Server):
        """uvicorn, told to end by either signal, and to end at once by the second."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            gc.freeze()
            gc.enable()
            log.info("listening on %s", settings.base_url)
            if hand:
                hand.start()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.end()

        def end(self) -> None:
            if self.should_exit:
                os._exit(1)
            self.should_exit = True
            for stop in app.state.on_stop:
                stop()

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="on",
        timeout_graceful_shutdown=LAST_CALLS,
    )
    server = Server(config)
    if hand:
        hand.on_failure = server.end
    server.run(sockets=[listening])
    if hand:
        hand.stop()
        if hand.failure:
            raise hand.failure
    log.info("ended")


def _on_signals(first: Any, *, again: Any) -> None:
    told = [False]

    def heard(number: int, frame: FrameType | None) -> None:
        again() if told[0] else first()
        told[0] = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)


@contextmanager
def _database(settings: Settings, *, serving: bool = False) -> Iterator[Database]:
    from vmgpu.db import Database

    with _prepared_apart(settings):
        if serving:
            import_module("vmgpu.api")
    db = Database(settings.url)
    try:
        _prepare(db, settings)
        yield db
    finally:
        db.close()


def _prepare(db: Database, settings: Settings) -> None:
    from vmgpu.db import migrate
    from vmgpu.service import people

    migrate(db)
    people.settle_in(db, settings)


@contextmanager
def _prepared_apart(settings: Settings) -> Iterator[None]:
    """Prepare the database in a child, while the block imports: what only that needs (10 MB) does not stay in us.

    Its failure is not looked at: the parent does the same after it, finds nothing left to do, or the error itself.
    """
    from vmgpu.db import Database

    child = os.fork()  # no thread runs yet, and no connection is open
    if not child:
        with suppress(BaseException):
            _prepare(Database(settings.url), settings)
        os._exit(0)
    try:
        yield
    finally:
        os.waitpid(child, 0)


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Hold the data folder: on SQLite a second process would take the first one's claims away."""
    folder = settings.data_dir
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as bad:
        hint = "Choose another folder: VMGPU_DATA_DIR."
        raise SetupError(f"The data folder {folder} cannot be used: {bad.strerror}", hint=hint) from None
    try:
        if settings.embedded:
            _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(handle, 20, 0).decode(errors="replace").strip() or "?"
        raise SetupError(
            f"Another vmgpu serve (process {other}) works in {folder} already",
            hint="Use it, end it, or give this one a folder of its own: VMGPU_DATA_DIR.",
        ) from None
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except OSError as bad:
        raise SetupError(
            f"{folder} cannot be written: {bad.strerror}", hint="Make room there, and start again."
        ) from None


def _listen(bind: str) -> socket.socket:
    host, colon, port = bind.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SetupError(f"{bind!r} is no address to listen on", hint="Write HOST:PORT, like 127.0.0.1:8000.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as bad:
        said = "the port is taken" if isinstance(bad, OSError) and bad.errno == 98 else bad.strerror or str(bad)
        hint = "Another vmgpu, or another program, listens there: choose another one by --bind HOST:PORT."
        raise SetupError(f"Cannot listen on {bind}: {said}", hint=hint) from None
    return made
