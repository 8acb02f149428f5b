"""Help, as a terminal of 80 columns shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from tests.cli.conftest import Run
from vmgpu.cli import cli


def _commands(command: click.Command | None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _commands(command.get_command(click.Context(command), name), (*path, name))


def test_every_help_is_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is wider, and no sentence in a list of commands is cut off or goes over two lines."""
    monkeypatch.setenv("COLUMNS", "80")
    paths = list(_commands(cli))
    assert ("vm", "release") in paths
    for path in paths:
        said = run(*path, "--help").out
        assert said.startswith("Usage: vmgpu") and max(map(len, said.splitlines())) <= 80, path
        for line in said.partition("\nCommands:\n")[2].splitlines():
            assert not line.endswith("...") and re.match(r"  [a-z]", line), (path, line)
