"""vmgpu doctor: what is wrong with a host, what an error text means, and the cure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, TextIO

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, Refused
from vmgpu.hypervisor.doctor import Check, Level, explain, render


@click.command()
@click.argument("host", required=False)
@click.option(
    "--explain",
    "source",
    metavar="FILE",
    type=click.File(encoding="utf-8", errors="replace"),
    help="A log or an error message; - is standard input.",
)
@click.option("--wait", default=60.0, show_default=True, help="Seconds to wait for the answer of HOST.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_context
def doctor(ctx: click.Context, host: str | None, source: TextIO | None, wait: float, as_json: bool) -> None:
    """Say what is wrong with this machine as a host, and the cure.

    No service is needed. With HOST the service looks at that one. With --explain: the cause of an error text of QEMU,
    libvirt, the kernel, the NVIDIA driver or a guest. For a log:

    \b
      journalctl -k -b | vmgpu doctor --explain -

    Exit code 1: something is broken.
    """
    if source is not None:
        if host:
            raise click.UsageError("Give either HOST or --explain FILE.")
        _explain(source.read(), as_json=as_json)
        return
    desk = Desk(ctx.find_root().obj, as_json=as_json)
    if host:
        answer = _of(desk, host, wait)
        found = [_check(each) for each in answer["items"]]
    else:
        found = _here(Path(ctx.find_root().obj["data_dir"]).expanduser())
        answer = render.checks_as_dict(found)
    desk.done(answer, lambda: click.echo(render.checks(found, width=_width())))
    if any(each.level is Level.broken for each in found):
        ctx.exit(1)


def _of(desk: Desk, host: str, wait: float) -> dict[str, Any]:
    answer: dict[str, Any] = desk.post("hosts", host, "doctor", wait=wait)
    if answer["at"] is None:
        hint = f"Ask again, or wait longer: vmgpu doctor {host} --wait 300."
        raise Refused({"code": "not_examined", "message": f"The answer of {host} is not in yet", "hint": hint})
    return answer


def _here(data_dir: Path) -> list[Check]:
    from vmgpu.hypervisor import checkup
    from vmgpu.settings import settings

    return list(checkup.here(wish=settings().accel.value, state_dir=data_dir / "hosts"))


def _check(told: dict[str, str]) -> Check:
    # what a service answers is printed as text, whatever it is
    words = {name: say.cell(told[name]) for name in ("id", "seen", "means", "cure")}
    return Check(level=Level(told["level"]), **words)


def _explain(text: str, *, as_json: bool) -> None:
    found = explain(text)
    if as_json:
        click.echo(json.dumps(render.causes_as_dict(found), indent=2, ensure_ascii=False))
    elif found:
        click.echo(render.causes(found, width=_width()))
    else:
        click.echo(
            "No message in it is known to vmgpu. Give it more of the log around the failure: of the kernel "
            "(journalctl -k -b), of the VM (vmgpu vm console NAME) or of QEMU (/var/log/libvirt/qemu/); or look at the "
            "host itself: vmgpu doctor."
        )


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 120)
