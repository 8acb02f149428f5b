"""The application on a database of its own, and people who call it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import func, select

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # starlette's test client speaks of a successor of httpx
    from fastapi.testclient import TestClient

from tests import factories
from vmgpu.api import create_app
from vmgpu.db import Database
from vmgpu.models import VM, Event, Flavor, Host, Image, Key, Token, User
from vmgpu.service.access import Actor
from vmgpu.settings import Settings


@dataclass
class Caller:
    """A person with their token."""

    http: TestClient
    actor: Actor
    token: str

    def __call__(self, method: str, path: str, **more: Any) -> Any:
        headers = {"authorization": f"Bearer {self.token}"} | more.pop("headers", {})
        return self.http.request(method, f"/api/v1{path}", headers=headers, **more)

    def get(self, path: str, **more: Any) -> Any:
        return self("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Any:
        return self("POST", path, json=body, **more)


@dataclass
class House:
    """One installation: its database, its application, its first admin."""

    db: Database
    settings: Settings
    http: TestClient
    admin: Caller

    def person(self, name: str) -> Caller:
        actor = factories.make_user(self.db, name)
        return Caller(self.http, actor, factories.make_token(self.db, actor))

    def rows(self) -> dict[str, int]:
        """How many rows there are of each noun."""
        with self.db.read() as session:
            kinds: tuple[Any, ...] = (VM, Event, Flavor, Host, Image, Key, Token, User)
            return {kind.__name__: session.exec(select(func.count()).select_from(kind)).one() for kind in kinds}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with open_house(tmp_path) as made:
        yield made


class open_house:
    """A House that ends with the block."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._settings = factories.make_settings(folder, **settings)

    def __enter__(self) -> House:
        self._db = factories.make_database(self._settings)
        self._http = TestClient(create_app(self._db, self._settings))
        self._http.__enter__()
        caller = Caller(self._http, factories.admin(self._db), factories.ADMIN_TOKEN)
        return House(self._db, self._settings, self._http, caller)

    def __exit__(self, *_: object) -> None:
        self._http.__exit__()
        self._db.close()
