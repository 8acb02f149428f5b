"""The engine, `read()` and `write()` blocks (one write is one transaction), claims of due rows, and news of commits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json
from sqlalchemy import ColumnElement, Engine, Select, create_engine, event, func, inspect, or_, select, text, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlmodel import Session

from vmgpu.errors import Conflict, SetupError, Unavailable
from vmgpu.models import Claimed, Setting, new_id, now

Row = TypeVar("Row", bound=Claimed)
Change = tuple[str, str]  # table, id
News = Callable[[frozenset[Change]], None]

# FOR NO KEY UPDATE: rows that refer to the locked one can still be inserted. Whoever locks several rows takes hosts
# first, then cards, VMs, images, copies of images, settings; and those of one kind by id: nobody waits in a circle.
HOLD: dict[str, Any] = {"key_share": True}
_FULL = ("disk is full", "No space left")  # as SQLite and PostgreSQL say it
CHANNEL = "vmgpu"  # PostgreSQL's NOTIFY channel
MIGRATING, LEADING, SETTLING = 0x766D01, 0x766D02, 0x766D03  # its advisory locks


class Database:
    """One database. `read` and `write` give sessions; `listen` hears of every commit of this installation."""

    def __init__(self, url: str) -> None:
        self.embedded = url.startswith("sqlite")
        self.url = url if self.embedded else _psycopg(url)
        self.engine = _sqlite(self.url) if self.embedded else _postgres(self.url)
        self._listeners: list[News] = []
        self._stop = threading.Event()
        self._ear: threading.Thread | None = None
        self._me = new_id()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that only reads; rows stay usable after it."""
        with Session(self.engine, expire_on_commit=False) as session:
            try:
                yield session
            except (OperationalError, InterfaceError, PoolTimeout) as bad:
                raise _away(bad) from bad

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that is one transaction: committed at the end of the block, rolled back on any error."""
        changes: set[Change] = set()
        with Session(self.engine, expire_on_commit=False) as session:
            event.listen(session, "after_flush", lambda s, _: changes.update(_changed(s)))
            session.info["changes"] = changes
            try:
                session.connection(execution_options={"vmgpu_write": True})
                yield session
                session.flush()
                if changes and not self.embedded:
                    session.execute(
                        text("SELECT pg_notify(:channel, :what)"),
                        {"channel": CHANNEL, "what": self._me + " " + _packed(changes)},
                    )
                session.commit()
            except IntegrityError as bad:
                raise Conflict("Another change came first", hint="Read again and repeat.") from bad
            except (OperationalError, InterfaceError, PoolTimeout) as bad:
                raise _away(bad) from bad
        if changes:
            self.tell(frozenset(changes))

    def touch(self, session: Session, *changes: Change) -> None:
        """Add rows to a write's news that were changed by a bulk statement."""
        session.info["changes"].update(changes)

    def listen(self, news: News) -> Callable[[], None]:
        """Be told of every commit; returns what ends it. On PostgreSQL commits of other processes are told too."""
        self._listeners.append(news)
        if not self.embedded and self._ear is None:
            self._ear = threading.Thread(target=self._hear, name="db-listen", daemon=True)
            self._ear.start()
        return lambda: self._listeners.remove(news)

    def tell(self, changes: frozenset[Change]) -> None:
        """Tell the listeners; none may raise."""
        for news in list(self._listeners):
            news(changes)

    def close(self) -> None:
        """End the listener and every connection."""
        self._stop.set()
        if self._ear:
            self._ear.join(timeout=5)
        self.engine.dispose()

    def _hear(self) -> None:
        import psycopg

        plain = self.url.replace("postgresql+psycopg://", "postgresql://", 1)
        while not self._stop.is_set():
            try:
                with psycopg.connect(plain, autocommit=True) as conn:
                    conn.execute(f"LISTEN {CHANNEL}")
                    # whatever was said while nobody listened: look at everything once
                    self.tell(frozenset({("*", "*")}))
                    while not self._stop.is_set():
                        for note in conn.notifies(timeout=1.0):
                            sender, _, what = note.payload.partition(" ")
                            if sender != self._me:
                                self.tell(frozenset(_unpacked(what)))
            except psycopg.OperationalError:
                self._stop.wait(1.0)


def migrate(database: Database) -> None:
    """Bring the schema to what this version needs; a newer one than ours is refused."""
    from vmgpu.migrations import HEAD

    try:
        with database.engine.connect() as conn:
            version = None
            if inspect(conn).has_table("alembic_version"):
                version = conn.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except (OperationalError, InterfaceError) as bad:
        raise _away(bad) from bad
    except DatabaseError as bad:
        hint = "Put a backup in its place, or another file: VMGPU_DATA_DIR, VMGPU_DATABASE_URL."
        raise SetupError(f"This is no database of ours: {bad.orig}", hint=hint) from None
    if version == HEAD:
        return
    # alembic is slow to import, and most starts have nothing to do
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config(attributes={})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    try:
        with database.engine.begin() as conn:
            if not database.embedded:
                conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATING})
            config.attributes["connection"] = conn
            command.upgrade(config, "head")
    except CommandError as bad:
        raise SetupError(
            f"The database has schema {version}, which this version of vmgpu does not know: {bad}",
            hint="Start the version that made it, or a newer one.",
        ) from None


def prove_writable(database: Database) -> None:
    """Write one small row and commit it: with a full disk reads go on for long. Raises Unavailable."""
    with database.write() as session:
        note_setting(session, "written_at", now().isoformat())
        session.flush()
        session.info["changes"].clear()  # nobody's news


def claim(
    database: Database, kind: type[Row], at: datetime, *, hold: timedelta, only: ColumnElement[bool] | None = None
) -> Row | None:
    """Take the row of this kind that is due longest and that nobody holds; `claim_token` is ours alone for `hold`."""
    table: Any = kind
    due = select(table.id).where(table.due_at <= at, or_(table.claim_token.is_(None), table.claim_until < at))
    if only is not None:
        due = due.where(only)
    due = due.order_by(table.due_at).limit(1)
    with database.read() as session:
        if session.execute(due).first() is None:
            return None
    with database.write() as session:
        if not database.embedded:
            due = due.with_for_update(skip_locked=True, of=table)
        found = session.execute(due).scalar_one_or_none()
        if found is None:
            return None
        row = session.get_one(kind, found)
        row.claim_token = new_id()
        row.claim_until = at + hold
        session.flush()
        session.info["changes"].clear()  # a claim is nobody's news
        return row


def claim_all(database: Database, kind: type[Row], ids: Collection[str], until: datetime) -> str | None:
    """Take these rows, all or none: the token that lets them go, None while somebody else holds one."""
    table: Any = kind
    token = new_id()
    with database.write() as session:
        lock(session, kind, table.id.in_(ids))
        held = select(table.id).where(table.id.in_(ids), table.claim_token.is_not(None), table.claim_until >= now())
        if session.execute(held).first() is not None:
            return None
        session.execute(update(kind).where(table.id.in_(ids)).values(claim_token=token, claim_until=until))
    return token


def let_all_go(database: Database, kind: type[Row], token: str) -> None:
    """End a claim of `claim_all`; one that has run out and is another's now stays."""
    table: Any = kind
    with database.write() as session:
        mine = _locked(kind, table.claim_token == token)
        session.execute(update(kind).where(mine).values(claim_token=None, claim_until=None))


def keep_claims(database: Database, kind: type[Row], tokens: list[str], until: datetime) -> None:
    """Hold claims longer: their steps are still at work in this process."""
    table: Any = kind
    with database.write() as session:
        session.execute(update(table).where(_locked(table, table.claim_token.in_(tokens))).values(claim_until=until))


def wake(session: Session, kind: type[Row], *which: ColumnElement[bool], **more: Any) -> None:
    """Make rows due at once; a step at work on one will not sleep through it. `more`: columns to set beside."""
    table: Any = kind
    change_all(session, kind, *which, due_at=now(), wakes=table.wakes + 1, **more)


def change_all(session: Session, kind: type[Row], *which: ColumnElement[bool], **columns: Any) -> None:
    """Set columns of many rows in one statement."""
    table: Any = kind
    session.flush()
    session.execute(update(table).where(_locked(table, *which)).values(**columns))
    session.info["changes"].add((table.__tablename__, "*"))


def drop_all_claims(database: Database) -> None:
    """Forget every claim: nobody but this process can have held one (SQLite, at start)."""
    with database.write() as session:
        for kind in Claimed.__subclasses__():
            session.execute(update(kind).values(claim_token=None, claim_until=None))


def next_due(database: Database) -> datetime | None:
    """When the next row is due: those that nobody holds, and those whose holder may have died."""
    moments: list[datetime] = []
    with database.read() as session:
        for kind in Claimed.__subclasses__():
            table: Any = kind
            due = table.due_at.is_not(None)
            free = select(func.min(table.due_at)).where(due, table.claim_token.is_(None))
            held = select(func.min(table.claim_until)).where(due, table.claim_token.is_not(None))
            moments += [m for m in (session.execute(free).scalar(), session.execute(held).scalar()) if m is not None]
    return min(moments, default=None)


def setting(session: Session, name: str) -> str | None:
    """What this installation noted under a name."""
    row = session.get(Setting, name)
    return row.value if row else None


def note_setting(session: Session, name: str, value: str) -> None:
    """Note a value under a name, over an earlier one."""
    session.merge(Setting(name=name, value=value))


def next_number(session: Session, name: str, count: int = 1) -> int:
    """The first of `count` fresh numbers of a counter; the counter's row is locked until the transaction ends."""
    # two first numbers at the same moment: both ask for the row, one makes it
    session.execute(
        text("INSERT INTO setting (name, value) VALUES (:name, '1') ON CONFLICT DO NOTHING"), {"name": name}
    )
    row = session.get_one(Setting, name, with_for_update=HOLD)
    first = int(row.value)
    row.value = str(first + count)
    session.flush()
    return first


def alone(session: Session) -> None:
    """Until this transaction ends no other one of those that ask for this runs (SQLite writes are alone anyway)."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": SETTLING})


def lock(session: Session, kind: type[Any], *which: ColumnElement[bool]) -> None:
    """Lock rows, by id; for a write that will change several of them, or one after others (see HOLD)."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(_by_id(kind, *which))


def _locked(kind: type[Any], *which: ColumnElement[bool]) -> ColumnElement[bool]:
    """The condition of an UPDATE that locks its rows by id: by itself it would take them as they lie on disk."""
    mine: ColumnElement[bool] = kind.id.in_(_by_id(kind, *which).scalar_subquery())
    return mine


def _by_id(kind: type[Any], *which: ColumnElement[bool]) -> Select[tuple[str]]:
    return select(kind.id).where(*which).order_by(kind.id).with_for_update(key_share=True)


def _psycopg(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise SetupError(
            f"VMGPU_DATABASE_URL: {scheme or url!r} is not a database we know",
            hint="Use postgresql://… or sqlite:///FILE.",
        )
    return f"postgresql+psycopg://{rest}"


def _sqlite(url: str) -> Engine:
    connect = {"timeout": 30, "check_same_thread": False}
    engine = create_engine(
        url,
        connect_args=connect,
        pool_use_lifo=True,  # each connection keeps pages of its own: few are used while few are needed
        json_serializer=_json,
        json_deserializer=from_json,
    )

    @event.listens_for(engine, "connect")
    def _open(raw: Any, _: Any) -> None:
        raw.isolation_level = None  # the driver must not begin transactions: the begin hook does
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            raw.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        conn.exec_driver_sql("BEGIN IMMEDIATE" if conn.get_execution_options().get("vmgpu_write") else "BEGIN")

    return engine


def _postgres(url: str) -> Engine:
    return create_engine(
        url,
        pool_size=20,
        max_overflow=20,
        pool_pre_ping=True,
        json_serializer=_json,
        json_deserializer=from_json,
    )


def _json(value: Any) -> str:
    """What `from_json` can read again, whatever text a guest or a host gave us: half characters become marks."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


def _changed(session: Session) -> Iterator[Change]:
    for row in (*session.new, *session.dirty, *session.deleted):
        yield row.__tablename__, str(getattr(row, "id", None) or getattr(row, "vm_id", "") or "")


def _packed(changes: set[Change]) -> str:
    said = ",".join(f"{table}:{row}" for table, row in sorted(changes))
    return said if len(said) < 7000 else "*:*"  # PostgreSQL takes 8000 bytes


def _unpacked(said: str) -> Iterator[Change]:
    for one in said.split(","):
        table, _, row = one.partition(":")
        yield table, row


def _away(bad: OperationalError | InterfaceError | PoolTimeout) -> Unavailable:
    said = str(getattr(bad, "orig", None) or bad).strip().splitlines()
    if said and any(words in said[0] for words in _FULL):
        return Unavailable(
            f"The disk of the database is full: {said[0]}",
            hint="Nothing was changed. Make room where it lies: in VMGPU_DATA_DIR, or at the database server.",
        )
    return Unavailable(
        f"The database did not answer: {said[0] if said else type(bad).__name__}",
        hint="Nothing was changed. Try again; look at the database server if it lasts.",
    )
