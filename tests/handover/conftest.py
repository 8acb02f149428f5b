"""A service with its worker and its REST door, on described and simulated hosts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import factories
from tests.api.conftest import TestClient
from tests.described import Bench
from tests.site import Site, answering, opened
from vmgpu.api import create_app


@pytest.fixture
def open_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Installations that are empty, and clean, in the end."""
    if "machine" in request.fixturenames:
        request.getfixturevalue("machine")  # a described host ends after the service that uses it
    made: list[Site] = []

    def open_one(**given: Any) -> Site:
        given = {"sync_every": timedelta(seconds=0.3)} | given
        settings = factories.make_settings(tmp_path / f"data-{len(made)}", **given)
        db = factories.make_database(settings)
        benches: dict[str, Bench] = {}
        opened(benches, monkeypatch)
        site = Site(settings, db, factories.admin(db))
        http = TestClient(create_app(db, settings))
        http.__enter__()
        site.benches, site.http, site.rest = benches, http, answering(http, factories.ADMIN_TOKEN)
        made.append(site)
        return site

    yield open_one
    try:
        for site in made:
            site.empty()
    finally:
        for site in made:
            site.http.__exit__(None, None, None)
            site.close()


@pytest.fixture
def site(open_site: Any) -> Site:
    """One installation."""
    made: Site = open_site()
    return made
