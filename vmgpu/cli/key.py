"""vmgpu key: SSH keys that open VMs."""

from __future__ import annotations

from typing import IO

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, verb

_WHOSE = click.option("--user", help="Whose; yours where nobody is named.")


@click.group()
def key() -> None:
    """SSH keys that open VMs."""


@verb(key, "add")
@click.argument("file", type=click.File("r", encoding="utf-8", errors="replace"))
@_WHOSE
def add(desk: Desk, file: IO[str], user: str | None) -> None:
    """Take in public keys from a file, or from standard input (-)."""
    made = desk.post("keys", body={"keys": file.read()}, user=user)["items"]
    said = "\n".join(f"{one['fingerprint']}  {say.cell(one['comment'])}" for one in made)
    desk.done({"items": made}, lambda: click.echo(said))


@verb(key, "list")
@_WHOSE
@click.argument("name", required=False)
def list_keys(desk: Desk, user: str | None, name: str | None) -> None:
    """A person's keys."""
    found = desk.items("keys", user=user or name)
    rows = [[k["id"], k["fingerprint"], k["comment"], say.when(k["created_at"])] for k in found]
    empty = "There is no key: vmgpu key add ~/.ssh/id_ed25519.pub."
    desk.done({"items": found}, lambda: say.table(("id", "fingerprint", "comment", "since"), rows, empty=empty))


@verb(key, "remove")
@click.argument("key")
@_WHOSE
def remove(desk: Desk, key: str, user: str | None) -> None:
    """Forget a key, by id or fingerprint. VMs that were built with it keep it."""
    desk.delete("keys", key, user=user)
    desk.done({"removed": key}, lambda: click.echo("The key is removed."))
