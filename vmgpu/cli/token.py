"""vmgpu token: secrets for scripts."""

from __future__ import annotations

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, verb

_WHOSE = click.option("--user", help="Whose; yours where nobody is named.")


@click.group()
def token() -> None:
    """Secrets for scripts."""


@verb(token, "add")
@click.option("--name", default="", help="What it is for.")
@click.option("--valid", metavar="SPAN", help="How long, like 30d; else until it is removed.")
@_WHOSE
def add(desk: Desk, name: str, valid: str | None, user: str | None) -> None:
    """Make a token. It is printed this once."""
    made = desk.post("tokens", body={"name": name} | ({"valid": valid} if valid else {}), user=user)
    desk.done(made, lambda: click.echo(made["secret"]))
    if not desk.as_json:
        say.note("shown once: nobody can look it up later")


@verb(token, "list")
@_WHOSE
def list_tokens(desk: Desk, user: str | None) -> None:
    """A person's tokens and browser sessions, without their secrets."""
    found = desk.items("tokens", user=user)
    rows = [[t["id"], t["name"], t["kind"], say.when(t["created_at"]), say.when(t["expires_at"])] for t in found]
    head = ("id", "name", "kind", "since", "until")
    desk.done({"items": found}, lambda: say.table(head, rows, empty="There is no token: vmgpu token add."))


@verb(token, "remove")
@click.argument("id")
def remove(desk: Desk, id: str) -> None:
    """Make a token worthless."""
    desk.delete("tokens", id)
    desk.done({"removed": id}, lambda: click.echo("The token is removed."))
