"""What handlers ask for: the database, the settings, the person who calls."""

from __future__ import annotations

import threading
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from fastapi.openapi.models import HTTPBearer as BearerScheme
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from vmgpu.db import Database
from vmgpu.errors import Forbidden, Unauthenticated
from vmgpu.models import TokenKind
from vmgpu.service import people
from vmgpu.service.access import Actor
from vmgpu.settings import Settings

SESSION_COOKIE = "vmgpu_session"
_READING = ("GET", "HEAD", "OPTIONS")


async def _database(connection: HTTPConnection) -> Database:
    db: Database = connection.app.state.db
    return db


async def _settings(connection: HTTPConnection) -> Settings:
    settings: Settings = connection.app.state.settings
    return settings


async def _stopping(connection: HTTPConnection) -> threading.Event:
    stopping: threading.Event = connection.app.state.stopping
    return stopping


Db = Annotated[Database, Depends(_database)]
Config = Annotated[Settings, Depends(_settings)]
Stopping = Annotated[threading.Event, Depends(_stopping)]  # set when the service ends: whoever waits, waits no longer


class _Secret(SecurityBase):
    """The caller's secret: a Bearer token, else the browser's session cookie."""

    def __init__(self) -> None:
        self.model = BearerScheme(description="An API token: vmgpu token add")
        self.scheme_name = "token"

    async def __call__(self, connection: HTTPConnection) -> tuple[str, TokenKind]:
        scheme, _, sent = connection.headers.get("authorization", "").partition(" ")
        token = _text(sent).strip(" ")
        if scheme.lower() == "bearer" and token:
            return token, TokenKind.api
        cookie = connection.cookies.get(SESSION_COOKIE)
        if not cookie:
            raise Unauthenticated(
                "No token was sent", hint="Send Authorization: Bearer TOKEN, or sign in by a one-time link."
            )
        _refuse_other_sites(connection)
        return cookie, TokenKind.session


def _text(sent: str) -> str:
    # headers are bytes, read as Latin-1; we and most clients write UTF-8 there, and some write Latin-1 indeed
    try:
        return sent.encode("latin-1").decode()
    except UnicodeDecodeError:
        return sent


def _me(db: Db, secret: Annotated[tuple[str, TokenKind], Depends(_Secret())]) -> Actor:
    text, kind = secret
    return people.who(db, text, kinds=(kind,))


Me = Annotated[Actor, Depends(_me)]


def _refuse_other_sites(connection: HTTPConnection) -> None:
    # a browser sends the cookie by itself, so a page elsewhere could press our buttons; it cannot forge these headers
    if connection.scope["type"] == "http" and connection.scope["method"] in _READING:
        return
    site = connection.headers.get("sec-fetch-site")
    origin = connection.headers.get("origin")
    same = urlsplit(origin).netloc == connection.headers.get("host") if origin else True
    if (site and site not in ("same-origin", "none")) or not same:
        raise Forbidden("This call came from a page of another site", hint="Open vmgpu itself and try again.")
