"""vmgpu queue: who waits for a place, and why."""

from __future__ import annotations

from typing import Any

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, verb

# what is left of all cards (of all hosts, where no card is wished) after each filter
_MEANS = {
    "disk_place": "on the host of its disk",
    "kind": "that run its image",
    "retry": "that did not fail it before",
    "offer": "that offer what it wishes",
    "host_open": "on hosts that take VMs now",
    "card_open": "on cards given out now",
    "slice_free": "with a free piece",
    "group_free": "whose IOMMU group no VM has a card of",
    "cpu": "with free vCPUs",
    "memory": "with free memory",
    "disk": "with free disk",
}


@click.group()
def queue() -> None:
    """Who waits for a place, and why."""


@verb(queue, "list")
def list_queue(desk: Desk) -> None:
    """Those who wait, first to be served first."""
    found = desk.items("queue")
    rows = [[v["position"], v["name"], v["owner"], v["flavor"], say.reason(v["reason"])] for v in found]
    head = ("place", "name", "owner", "flavor", "reason")
    desk.done({"items": found}, lambda: say.table(head, rows, empty="Nobody waits."))


@verb(queue, "show")
@click.argument("name")
def show(desk: Desk, name: str) -> None:
    """Why one VM waits."""
    found = desk.get("queue", name, "why")
    desk.done(found, lambda: print_why(found))


def print_why(found: dict[str, Any]) -> None:
    """Each filter of the placement, in order, and how many places it left."""
    say.facts([("name", found["vm"]), ("place", found["position"]), ("reason", say.reason(found["reason"]))])
    rows = [[_MEANS[step["filter"]], step["left"], say.reason(step["reason"])] for step in found["steps"]]
    say.table(("places", "left", "why none"), rows, empty="No filter was asked.")
