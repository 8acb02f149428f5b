"""vmgpu demo: the whole story on this machine."""

from __future__ import annotations

import sys
from importlib import import_module

import click


@click.command()
@click.option("--once", is_flag=True, help="End after the proof, and remove all that was made.")
@click.option("--gpu", metavar="ADDRESS", help="Also one VM with this whole card.")
def demo(once: bool, gpu: str | None) -> None:
    """Show the whole story on this machine, then keep serving."""
    story = import_module("vmgpu.lab.demo")
    sys.exit(story.main(once=once, gpu=gpu))
