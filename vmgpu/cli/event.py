"""vmgpu event: what happened."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, verb


@click.group()
def event() -> None:
    """What happened."""


@verb(event, "list")
@click.option("--vm", help="Only of this VM.")
@click.option("--host", help="Only of this host.")
@click.option("--limit", default=100, show_default=True)
@click.option("--follow", is_flag=True, help="Go on as things happen, until you end it.")
def list_events(desk: Desk, vm: str | None, host: str | None, limit: int, follow: bool) -> None:
    """The last events, oldest first. With --follow --json: one object a line."""
    found = desk.items("events", vm=vm, host=host, limit=limit)
    if not follow:
        desk.done({"items": found}, lambda: print_events(found))
        return
    last = 0
    while True:
        for one in found:
            last = one["id"]
            click.echo(json.dumps(one, ensure_ascii=False) if desk.as_json else "  ".join(_line(one)).rstrip())
        time.sleep(1)
        found = desk.items("events", vm=vm, host=host, after=last, limit=1000)


def print_events(found: list[dict[str, Any]]) -> None:
    """A table of events."""
    head = ("when", "what", "of", "took", "who", "reason")
    say.table(head, [_line(one) for one in found], empty="Nothing has happened yet.")


def _line(one: dict[str, Any]) -> list[str]:
    what = f"{one['was']} → {one['state']}" if one["kind"] == "state" else one["kind"]
    took = f"{one['seconds']:.1f} s" if one["seconds"] is not None else ""
    of = one["vm"] or one["host"] or ""
    return [say.when(one["at"]), say.cell(what), say.cell(of), took, one["who"] or "", say.reason(one["reason"])]
