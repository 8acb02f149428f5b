"""A whole application on a database of its own, and a browser's cookie in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.factories import admin, make_database, make_settings
from vmgpu.api import create_app
from vmgpu.db import Database
from vmgpu.service import people
from vmgpu.service.access import Actor
from vmgpu.settings import Settings

with warnings.catch_warnings():
    # it would rather have a successor of httpx, which nothing else here uses
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

OURS = {"Sec-Fetch-Site": "same-origin"}
Browse = Callable[[Actor], TestClient]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture
def db(settings: Settings) -> Iterator[Database]:
    database = make_database(settings)
    yield database
    database.close()


@pytest.fixture
def stranger(db: Database, settings: Settings) -> TestClient:
    """A browser that is not signed in."""
    return TestClient(create_app(db, settings), headers={"Accept": "text/html"}, follow_redirects=False)


@pytest.fixture
def browse(db: Database, settings: Settings) -> Browse:
    """A browser signed in as this person, whose forms come from our own page."""

    def signed_in(actor: Actor) -> TestClient:
        client = TestClient(create_app(db, settings), headers={"Accept": "text/html", **OURS}, follow_redirects=False)
        assert client.post("/signin", data={"link": people.make_link(db, admin(db), actor.name)}).status_code == 303
        return client

    return signed_in
