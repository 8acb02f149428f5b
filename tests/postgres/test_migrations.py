"""The same schema on PostgreSQL, also when several processes start at once on an empty database."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from tests import test_migrations
from tests.factories import make_settings
from tests.postgres.conftest import Server
from vmgpu.db import Database, migrate
from vmgpu.service import people


class TestTheSchema(test_migrations.TestTheSchema):
    @pytest.fixture
    def db(self, server: Server, empty: str) -> Iterator[Database]:  # type: ignore[override]
        made = Database(server.url(empty))
        yield made
        made.close()

    def test_is_made_by_one_of_many(self, server: Server, empty: str, tmp_path: Path) -> None:
        settings = make_settings(tmp_path, database_url=server.url(empty))

        def start(_: int) -> None:
            db = Database(settings.url)
            migrate(db)
            people.settle_in(db, settings)
            db.close()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(start, range(4)))
        db = Database(settings.url)
        assert test_migrations.differences(db) == []
        with db.engine.connect() as conn:
            for table in ("alembic_version", '"user"', "token"):
                assert conn.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 1  # noqa: S608
        db.close()
