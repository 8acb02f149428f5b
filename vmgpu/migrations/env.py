"""How alembic reaches the database: it is handed the connection of `db.migrate`."""

from alembic import context
from sqlmodel import SQLModel

from vmgpu import models

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=SQLModel.metadata, render_as_batch=True, compare_type=False)
assert models  # noqa: S101 - imported for its tables
with context.begin_transaction():
    context.run_migrations()
