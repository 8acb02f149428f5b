"""Wait until VMs or an image are settled, and say each phase as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, Refused
from vmgpu.errors import VmgpuError
from vmgpu.units import parse_duration, say_span

_PAUSE = 0.7


def vms(desk: Desk, ids: Collection[str], goal: Collection[str], *, timeout: str | None) -> list[dict[str, Any]]:
    """Wait until each of these VMs is in a state of `goal` or has failed. Raises Refused where one ended otherwise."""
    found, bad = each(desk, ids, goal, timeout=timeout)
    for name, no in bad:
        raise Refused({"code": no.code, "message": f"{name}: {no.message}", "hint": no.hint})
    return found


def each(
    desk: Desk, ids: Collection[str], goal: Collection[str], *, timeout: str | None
) -> tuple[list[dict[str, Any]], list[tuple[str, VmgpuError]]]:
    """The same, without an end at the first that failed: the VMs, and those that ended otherwise by name with why."""
    said: dict[str, str] = {}
    last: dict[str, dict[str, Any]] = {}

    def look() -> bool:
        found = {vm["id"]: vm for vm in desk.items("vms")}
        for id_ in ids:
            last[id_] = vm = found.get(id_) or desk.get("vms", id_)
            _say(desk, said, id_, f"{vm['name']}: {_phase(vm)}")
        left = [vm for vm in last.values() if not _is_settled(vm, goal)]
        if left and "running" in goal and all(vm["state"] == "pending" and vm["reason"] for vm in left):
            _say_they_wait(desk, said, [vm["name"] for vm in left])
        return not left

    def late() -> str:
        left = [f"{vm['name']} is still {vm['state']}" for vm in last.values() if not _is_settled(vm, goal)]
        return ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")

    _until(look, timeout, late)
    return [last[id_] for id_ in ids], [(vm["name"], _otherwise(vm)) for vm in last.values() if vm["state"] not in goal]


def _otherwise(vm: dict[str, Any]) -> Refused:
    because = vm["reason"] or {"sentence": f"it is {vm['state']}", "cure": "", "code": "failed"}
    return Refused({"code": because["code"], "message": because["sentence"], "hint": because["cure"]})


def image(desk: Desk, id_: str, *, timeout: str | None) -> dict[str, Any]:
    """Wait until an image is ready. Raises Refused where it failed."""
    said: dict[str, str] = {}
    last: dict[str, Any] = {}

    def look() -> bool:
        last.update(desk.get("images", id_))
        _say(desk, said, id_, f"{last['name']}: {last['state']}")
        return last["state"] in ("ready", "failed")

    _until(look, timeout, lambda: f"{last['name']} is still {last['state']}")
    if last["state"] == "failed":
        because = last["reason"] or {"sentence": "The capture failed", "cure": "", "code": "capture_failed"}
        raise Refused({"code": because["code"], "message": because["sentence"], "hint": because["cure"]})
    return last


def gone(desk: Desk, noun: str, name: str, *, wait: float, done: str, going: str, **query: str) -> None:
    """Remove and answer: `done` where it is gone, else `going`. Raises Refused where it was waited for in vain."""
    end = time.monotonic() + wait
    row = desk.delete(noun, name, wait=wait, **query)
    # where many wait already, the service answers at once
    while not (left := _is_gone(desk, noun, row["id"])) and time.monotonic() < end:
        time.sleep(_PAUSE)
    desk.done(row, lambda: click.echo(done if left else going))
    if wait > 0 and not left:
        hint = f"It goes on without you: look with vmgpu {noun.removesuffix('s')} list."
        raise Refused({"code": "timeout", "message": f"{row['name']} is not gone after {wait:g} s", "hint": hint})


def _is_gone(desk: Desk, noun: str, id_: str) -> bool:
    try:
        desk.get(noun, id_)
    except Refused as no:
        if no.code == "not_found":
            return True
        raise
    return False


def _until(look: Callable[[], bool], timeout: str | None, late: Callable[[], str]) -> None:
    patience = parse_duration(timeout, bare="s") if timeout else None
    end = time.monotonic() + (patience.total_seconds() if patience else float("inf"))
    while not look():
        if patience and time.monotonic() > end:
            hint = "It goes on without you: look with vmgpu vm list."
            raise Refused({"code": "timeout", "message": f"{late()} after {say_span(patience)}", "hint": hint})
        time.sleep(_PAUSE)


def _say_they_wait(desk: Desk, said: dict[str, str], names: list[str]) -> None:
    """Once: only a place that somebody gives back ends this, perhaps in days."""
    if desk.as_json or "waits" in said:
        return
    several = len(names) > 1
    who = f"{', '.join(names[:-1])} and {names[-1]} wait" if 1 < len(names) <= 3 else f"{len(names)} VMs wait"
    said["waits"] = (
        f"{who if several else f'{names[0]} waits'}; Ctrl-C leaves {'them' if several else 'it'} in the queue"
    )
    say.note(f"{said['waits']}. See: vmgpu vm why {names[0]}")


def _say(desk: Desk, said: dict[str, str], id_: str, text: str) -> None:
    if said.get(id_) != text and not desk.as_json:
        said[id_] = text
        click.echo(f"{time.strftime('%H:%M:%S')}  {say.cell(text)}", err=True)


def _phase(vm: dict[str, Any]) -> str:
    place = f" ({vm['position']})" if vm["position"] else ""
    why = say.reason(vm["reason"])
    return f"{vm['state']}{place}" + (f": {why}" if why else "")


def _is_settled(vm: dict[str, Any], goal: Collection[str]) -> bool:
    if vm["state"] in goal or vm["state"] == "gone":
        return True
    # one that is still wanted running is tried once more, or was just asked to start
    return vm["state"] in ("failed", "lost", "stopped") and vm["wanted"] == "stopped"
