"""vmgpu flavor: sizes of VMs."""

from __future__ import annotations

from typing import Any

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, verb
from vmgpu.cli.gpu import warn_where_unset


@click.group()
def flavor() -> None:
    """Sizes of VMs."""


@verb(flavor, "add")
@click.argument("name")
@click.option("--vcpus", type=int, default=2, show_default=True)
@click.option("--memory", default="4g", show_default=True, help="Like 4g or 512m.")
@click.option("--disk", default="10g", show_default=True, help="Like 20g.")
@click.option("--profile", help="The vendor's name for a piece of a card, like 1g.10gb; or whole.")
@click.option("--fgpu", help="A share of a card, like 0.5: see vmgpu gpu unit.")
@click.option("--cuda", is_flag=True, help="Only where CUDA runs: not every vGPU type can.")
@click.option("--on-stop", type=click.Choice(["keep", "release"]), help="What a stop does with the slices.")
def add(desk: Desk, name: str, **size: Any) -> None:
    """Define a size. One that no host here could ever hold is taken in with a warning."""
    made = desk.post("flavors", body={"name": name} | {k: v for k, v in size.items() if v is not None})
    desk.done(made, lambda: _show(made))
    if made["fgpu"]:
        warn_where_unset(desk, desk.items("gpus"))


@verb(flavor, "list")
def list_flavors(desk: Desk) -> None:
    """All sizes."""
    found = desk.items("flavors")
    rows = [
        [f["name"], f["vcpus"], say.mib(f["memory_mib"]), f"{f['disk_gib']} GiB", _wish(f), _becomes(f)] for f in found
    ]
    head = ("name", "vcpus", "memory", "disk", "gpu", "becomes")
    desk.done({"items": found}, lambda: say.table(head, rows, empty="There is no flavor yet: vmgpu flavor add NAME."))


@verb(flavor, "show")
@click.argument("name")
def show(desk: Desk, name: str) -> None:
    """One size, and what its GPU wish becomes on each model."""
    found = desk.get("flavors", name)
    desk.done(found, lambda: _show(found))


@verb(flavor, "remove")
@click.argument("name")
def remove(desk: Desk, name: str) -> None:
    """Forget a size; VMs made from it keep theirs."""
    desk.delete("flavors", name)
    desk.done({"removed": name}, lambda: click.echo(f"Flavor {name} is removed."))


def _wish(found: dict[str, Any]) -> str:
    wish = found["profile"] or (f"{found['fgpu']} fGPU" if found["fgpu"] else "none")
    return f"{wish} with CUDA" if found["cuda"] else wish


def _becomes(found: dict[str, Any]) -> list[str]:
    return [share["says"] for share in found["becomes"]]


def _show(found: dict[str, Any]) -> None:
    say.facts(
        [
            ("name", found["name"]),
            ("vcpus", found["vcpus"]),
            ("memory", say.mib(found["memory_mib"])),
            ("disk", f"{found['disk_gib']} GiB"),
            ("gpu", _wish(found)),
            ("becomes", _becomes(found)),
            ("on stop", found["on_stop"]),
            ("warning", say.reason(found["warning"])),
            ("what to do", (found["warning"] or {}).get("cure")),
        ]
    )
