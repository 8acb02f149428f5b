"""vmgpu plan: which carving serves how many."""

from __future__ import annotations

from typing import Any

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, verb


@verb(None, "plan")
@click.option("--host", required=True, help="Whose cards.")
@click.option("--students", type=click.IntRange(1), default=1, show_default=True, help="How many VMs are wished.")
@click.option("--cuda", is_flag=True, help="Only what runs CUDA.")
def plan(desk: Desk, host: str, students: int, cuda: bool) -> None:
    """Show which carving of a host's cards serves how many VMs."""
    found = desk.items("plan", host=host, students=students, cuda=str(cuda).lower())
    rows = [
        [
            "yes" if one["enough"] else "no",
            one["seats"],
            one["profile"],
            one["mode"],
            say.mib(one["memory_mib"]),
            f"{one['per_card']} on each of {one['cards']} {one['model']}",
        ]
        for one in found
    ]
    head = ("enough", "VMs", "size", "mode", "memory", "cards")
    desk.done({"items": found}, lambda: _show(head, rows, found, students))


def _show(head: tuple[str, ...], rows: list[list[Any]], found: list[dict[str, Any]], students: int) -> None:
    say.table(head, rows, empty="This host has no card that can be given out.")
    best = next((one for one in found if one["enough"]), None)
    if best:
        size = f"{best['profile']} ({best['mode']}, {say.mib(best['memory_mib'])})"
        click.echo(f"The largest that serves {students}: {size}.")
    elif found:
        most = max(found, key=lambda one: one["seats"])
        click.echo(f"No size serves {students}; the most is {most['seats']} with {most['profile']} ({most['mode']}).")
