"""The command line. `serve`, `worker` and `demo` start things here, `doctor` may look here; the rest are HTTP calls."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

import click

from vmgpu.cli import say
from vmgpu.errors import VmgpuError

_ROOMS = {
    "completion": "Print the script that completes commands in your shell.",
    "demo": "Show the whole story on this machine.",
    "doctor": "What is wrong with a host, and the cure.",
    "event": "What happened.",
    "flavor": "Sizes of VMs.",
    "gpu": "Cards, and what 1 fGPU is.",
    "host": "Machines that run VMs.",
    "image": "Disks that VMs boot from.",
    "key": "SSH keys that open VMs.",
    "plan": "Which carving of a host's cards serves how many.",
    "queue": "Who waits for a place, and why.",
    "serve": "Serve the API and the pages, and do the work.",
    "token": "Secrets for scripts.",
    "user": "People.",
    "vm": "Virtual machines.",
    "worker": "Do the work beside `serve --no-worker` (PostgreSQL).",
}


class _Rooms(click.Group):
    """Commands whose modules are imported when they are called: a list must not wait for a server's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_ROOMS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ROOMS:
            return None
        room = "serve" if cmd_name == "worker" else cmd_name
        found: click.Command = getattr(import_module(f"vmgpu.cli.{room}"), cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_ROOMS.items()))


@click.group(cls=_Rooms, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="VMGPU_URL", help="Where vmgpu answers  [VMGPU_URL, else http://VMGPU_BIND].")
@click.option("--token", envvar="VMGPU_TOKEN", hidden=True)
@click.option("--bind", envvar="VMGPU_BIND", default="127.0.0.1:8000", hidden=True)
@click.option("--data-dir", envvar="VMGPU_DATA_DIR", default="~/.local/share/vmgpu", hidden=True)
@click.option("--no-color", envvar="NO_COLOR", hidden=True)
@click.version_option(package_name="vmgpu", message="vmgpu %(version)s")
@click.pass_context
def cli(ctx: click.Context, url: str | None, token: str | None, bind: str, data_dir: str, no_color: str | None) -> None:
    """Carve GPU hosts into virtual machines.

    Each command that talks to the service takes --json. The token is VMGPU_TOKEN, else the one that the first start
    left in the data folder.
    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.
    """
    if no_color:
        say.without_colours()
    ctx.obj = {"url": url, "token": token, "bind": bind, "data_dir": data_dir}


def main() -> None:
    """Run one command; errors as sentences, or as JSON where --json was given."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    as_json = "--json" in arguments
    try:
        code = cli.main(arguments, prog_name="vmgpu", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as bad:
        bad.show()
        return 2
    except click.UsageError as bad:
        if as_json:
            _tell({"code": "usage", "message": bad.format_message(), "hint": "", "field": "", "retry": False})
        else:
            bad.show()
        return 2
    except VmgpuError as bad:
        _tell(bad.as_dict()) if as_json else say.error(bad.message, bad.hint)
        return 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("", err=True)
        return 130
    except BrokenPipeError:
        # the reader of our output went away: nothing is left to say, not even by the interpreter's own last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _tell(error: dict[str, object]) -> None:
    click.echo(json.dumps({"error": error}, ensure_ascii=False), err=True)
