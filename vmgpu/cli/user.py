"""vmgpu user: people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, verb


@click.group()
def user() -> None:
    """People."""


@verb(user, "add")
@click.argument("name")
@click.option("--admin", is_flag=True, help="One who adds hosts and people.")
def add(desk: Desk, name: str, admin: bool) -> None:
    """Take a person in."""
    made = desk.post("users", body={"name": name, "admin": admin})
    desk.done(made, lambda: click.echo(f"User {made['name']} is added."))


@verb(user, "list")
def list_users(desk: Desk) -> None:
    """Everybody, for an admin; else yourself."""
    found = desk.items("users")
    rows = [[u["name"], u["admin"], u["keys"], u["vms"], say.when(u["created_at"])] for u in found]
    head = ("name", "admin", "keys", "vms", "since")
    desk.done({"items": found}, lambda: say.table(head, rows, empty="There is nobody."))


@verb(user, "show")
@click.argument("name", required=False)
def show(desk: Desk, name: str | None) -> None:
    """One person; without a name, you."""
    found = desk.get("users", name) if name else desk.get("whoami")
    desk.done(found, lambda: _show(found))


@verb(user, "remove")
@click.argument("name")
def remove(desk: Desk, name: str) -> None:
    """Let a person go; refused while they have VMs or images."""
    desk.delete("users", name)
    desk.done({"removed": name}, lambda: click.echo(f"User {name} is removed."))


@verb(user, "link")
@click.argument("name")
def link(desk: Desk, name: str) -> None:
    """A link that signs a person's browser in. It works once, within half an hour."""
    made = desk.post("users", name, "link")
    desk.done(made, lambda: click.echo(made["url"]))
    if not desk.as_json:
        left = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
        say.note(f"good once, for {round(left.total_seconds() / 60)} minutes")


def _show(found: dict[str, Any]) -> None:
    say.facts(
        [
            ("id", found["id"]),
            ("name", found["name"]),
            ("admin", found["admin"]),
            ("keys", found["keys"]),
            ("vms", found["vms"]),
            ("since", say.when(found["created_at"])),
        ]
    )
