"""vmgpu doctor: what an error text means, and the cure. Asks nobody: it works where nothing else does."""

from __future__ import annotations

import json
import shutil
from typing import TextIO

import click

from vmgpu.hypervisor.doctor import explain, render


@click.command()
@click.option(
    "--explain",
    "source",
    metavar="FILE",
    required=True,
    type=click.File(encoding="utf-8", errors="replace"),
    help="A log or an error message; - is standard input.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def doctor(source: TextIO, as_json: bool) -> None:
    """Say what an error text of QEMU, libvirt, the kernel, the NVIDIA driver or a guest means, and the cure.

    For a host's log: journalctl -k -b | vmgpu doctor --explain -
    """
    found = explain(source.read())
    if as_json:
        click.echo(json.dumps(render.causes_as_dict(found), indent=2, ensure_ascii=False))
    elif found:
        click.echo(render.causes(found, width=min(shutil.get_terminal_size().columns, 120)))
    else:
        click.echo("No message in it is known to vmgpu.")
