"""vmgpu completion: the script that completes commands in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands in your shell.

    \b
    For bash:
      vmgpu completion bash > ~/.local/share/bash-completion/completions/vmgpu
    """
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(made(ctx.find_root().command, {}, "vmgpu", "_VMGPU_COMPLETE").source())
