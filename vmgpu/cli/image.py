"""vmgpu image: disks that VMs boot from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from vmgpu.cli import say, watch
from vmgpu.cli.desk import Desk, verb

_PIECE = 1024 * 1024


@click.group()
def image() -> None:
    """Disks that VMs boot from."""


@verb(image, "list")
def list_images(desk: Desk) -> None:
    """The images that you may use."""
    found = desk.items("images")
    rows = [
        [i["name"], i["owner"] or "everybody", i["state"], say.mib(i["virtual_mib"]), i["format"],
         say.when(i["created_at"])]
        for i in found
    ]  # fmt: skip
    head = ("name", "owner", "state", "disk", "format", "made")
    empty = "There is no image yet: vmgpu image import FILE --name team/name:tag."
    desk.done({"items": found}, lambda: say.table(head, rows, empty=empty))


@verb(image, "show")
@click.argument("name")
def show(desk: Desk, name: str) -> None:
    """One image, by name, owner/name or id."""
    found = desk.get("images", name)
    desk.done(found, lambda: _show(found))


@verb(image, "remove")
@click.argument("name")
@click.option("--wait", default=60.0, show_default=True, help="Seconds to wait until every host has let go of it.")
def remove(desk: Desk, name: str, wait: float) -> None:
    """Delete an image; refused while a VM's disk stands on it."""
    watch.gone(
        desk, "images", name, wait=wait, done=f"Image {name} is removed.", going=f"Image {name} is being removed."
    )


@verb(image, "import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", required=True, help="Like team/name:tag.")
@click.option("--format", type=click.Choice(["raw", "qcow2"]), help="Else as the file's name ends.")
@click.option("--label", multiple=True, metavar="KEY=VALUE", help="init=none or cuda=yes.")
def import_image(desk: Desk, file: Path, name: str, format: str | None, label: tuple[str, ...]) -> None:
    """Take a disk in as everybody's image."""
    size = file.stat().st_size
    made = desk.call(
        "POST",
        ("images",),
        query={"name": name, "format": format, "filename": file.name, "label": list(label) or None},
        content=_pieces(file, size),
        headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
    )
    desk.done(made, lambda: _show(made))


def _pieces(file: Path, size: int) -> Iterator[bytes]:
    with file.open("rb") as stream:
        if not sys.stderr.isatty():
            yield from iter(lambda: stream.read(_PIECE), b"")
            return
        with click.progressbar(length=size, label=file.name, file=sys.stderr) as bar:
            for piece in iter(lambda: stream.read(_PIECE), b""):
                yield piece
                bar.update(len(piece))


def _show(found: dict[str, Any]) -> None:
    say.facts(
        [
            ("id", found["id"]),
            ("name", found["name"]),
            ("owner", found["owner"] or "everybody"),
            ("state", found["state"]),
            ("reason", say.reason(found["reason"])),
            ("disk", say.mib(found["virtual_mib"])),
            ("file", say.mib(found["size_bytes"] // _PIECE)),
            ("format", found["format"]),
            ("labels", [f"{key}={value}" for key, value in found["labels"].items()]),
            ("sha256", found["sha256"]),
            ("on hosts", [f"{copy['host']}: {copy['state']}" for copy in found["copies"]]),
            ("made", say.when(found["created_at"])),
        ]
    )
