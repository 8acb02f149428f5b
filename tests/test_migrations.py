"""Models and migrations say the same; a database from the future is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlmodel import SQLModel

from vmgpu.db import Database, migrate
from vmgpu.errors import SetupError
from vmgpu.migrations import HEAD


def differences(db: Database) -> list[object]:
    """What a migration would still have to change."""
    with db.engine.connect() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": db.url.startswith("postgres")})
        return list(compare_metadata(context, SQLModel.metadata))


class TestTheSchema:
    @pytest.fixture
    def db(self, tmp_path: Path) -> Iterator[Database]:
        made = Database(f"sqlite:///{tmp_path / 'rows.sqlite'}")
        yield made
        made.close()

    def test_is_what_the_models_say(self, db: Database) -> None:
        migrate(db)
        assert differences(db) == []

    def test_a_missing_migration_would_be_seen(self, db: Database) -> None:
        migrate(db)
        with db.engine.begin() as conn:
            conn.execute(text("ALTER TABLE vm DROP COLUMN card"))
        assert differences(db) != []

    def test_is_made_once(self, db: Database) -> None:
        migrate(db)
        migrate(db)
        with db.engine.connect() as conn:
            assert conn.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == [HEAD]

    def test_of_a_newer_version_is_refused(self, db: Database) -> None:
        migrate(db)
        with db.engine.begin() as conn:
            conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(SetupError, match="schema 9999") as refused:
            migrate(db)
        assert "newer" in refused.value.hint
        with db.engine.connect() as conn:
            assert conn.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"


def test_a_file_that_is_no_database_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"\x00\xff" * 4096)
    with pytest.raises(SetupError, match="no database of ours"):
        migrate(Database(f"sqlite:///{tmp_path / 'x.sqlite'}"))
