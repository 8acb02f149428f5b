"""vmgpu vm: virtual machines."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import click

from vmgpu.cli import say, watch
from vmgpu.cli.desk import Desk, Refused, verb
from vmgpu.errors import VmgpuError
from vmgpu.units import parse_duration

_WAIT = click.option("--wait", is_flag=True, help="Wait for it, saying each phase.")


def _patience(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Refuse what is no span before anything is asked for."""
    try:
        if text is not None:
            parse_duration(text, bare="s")
    except VmgpuError as bad:
        raise click.BadParameter(f"{bad.message}. {bad.hint}") from None
    return text


_TIMEOUT = click.option(
    "--timeout",
    metavar="SPAN",
    callback=_patience,
    help="Wait (as with --wait), but no longer than this: 90s, 10m; a bare number is seconds.",
)
_YES = click.option("--yes", is_flag=True, help="Do not ask.")
_NAMES = click.argument("names", metavar="NAME...", nargs=-1, required=True)


@click.group()
def vm() -> None:
    """Virtual machines. NAME is a VM's name, OWNER/NAME or its id."""


@verb(vm, "list")
@click.option("--state", multiple=True, help="Only these states.")
@click.option("--owner", help="Only this person's.")
@click.option("--all", "gone", is_flag=True, help="Also those that are gone.")
def list_vms(desk: Desk, state: tuple[str, ...], owner: str | None, gone: bool) -> None:
    """The VMs that you see."""
    found = desk.items("vms", state=list(state) or None, owner=owner, all="true" if gone else None)
    rows = [
        [v["name"], v["owner"], v["state"], v["position"], _gpu(v), v["host"], v["address"], say.left(v["lease_ends"]),
         say.reason(v["reason"])]
        for v in found
    ]  # fmt: skip
    head = ("name", "owner", "state", "queue", "gpu", "host", "address", "lease", "reason")
    empty = "There is no VM: vmgpu vm request --name NAME --flavor F --image I."
    desk.done({"items": found}, lambda: say.table(head, rows, empty=empty))


@verb(vm, "show")
@click.argument("name")
def show(desk: Desk, name: str) -> None:
    """One VM."""
    found = desk.get("vms", name)
    desk.done(found, lambda: _show(found))


@verb(vm, "request")
@click.option("--name", required=True, help="A name, or a pattern with {n} for the number.")
@click.option("--count", type=int, default=1, show_default=True)
@click.option("--flavor", required=True)
@click.option("--image", required=True)
@click.option("--owner", help="Whose it is; yours unless an admin says otherwise.")
@click.option("--member", multiple=True, help="Who uses it as well; may be given several times.")
@click.option("--lease", metavar="SPAN", help="How long, like 8h.")
@click.option("--on-stop", type=click.Choice(["keep", "release"]), help="What a stop does with the slices.")
@_WAIT
@_TIMEOUT
def request(desk: Desk, member: tuple[str, ...], wait: bool, timeout: str | None, **wish: Any) -> None:
    """Ask for VMs. Those that find no place now wait, and start by themselves."""
    body = {key: value for key, value in wish.items() if value is not None} | {"members": list(member)}
    made = desk.post("vms", body=body)["items"]
    if wait or timeout:
        made = watch.vms(desk, [one["id"] for one in made], ["running"], timeout=timeout)
    desk.done({"items": made}, lambda: _list_short(made))
    if not (wait or timeout or desk.as_json):
        say.note("Watch them: vmgpu vm list")


@verb(vm, "stop")
@_NAMES
@click.option("--keep-gpu", "keep", is_flag=True, help="Keep its slices.")
@click.option("--release-gpu", "give", is_flag=True, help="Give its slices to those who wait.")
@_WAIT
@_TIMEOUT
def stop(desk: Desk, names: tuple[str, ...], keep: bool, give: bool, wait: bool, timeout: str | None) -> None:
    """Shut VMs down; their disks stay. 'u*' in quotes: all of yours that are called so."""
    if keep and give:
        raise click.UsageError("say either --keep-gpu or --release-gpu")
    slices = "keep" if keep else "release" if give else None
    _wish(desk, _meant(desk, names), "stop", "stopped", wait=wait, timeout=timeout, body={"slices": slices})


@verb(vm, "start")
@_NAMES
@_WAIT
@_TIMEOUT
def start(desk: Desk, names: tuple[str, ...], wait: bool, timeout: str | None) -> None:
    """Start VMs; without slices they queue for new ones. 'u*' in quotes: all of yours that are called so."""
    _wish(desk, _meant(desk, names), "start", "running", wait=wait, timeout=timeout)


@verb(vm, "reboot")
@_NAMES
def reboot(desk: Desk, names: tuple[str, ...]) -> None:
    """Boot running VMs once more."""
    _wish(desk, names, "reboot")


@verb(vm, "reset")
@_NAMES
@_YES
def reset(desk: Desk, names: tuple[str, ...], yes: bool) -> None:
    """Give VMs fresh disks. They are of the same image; what was on the old ones is lost."""
    desk.sure(f"Everything on the disk of {', '.join(names)} will be lost. Go on?", yes=yes)
    _wish(desk, names, "reset")


@verb(vm, "extend")
@click.argument("name")
@click.argument("span")
def extend(desk: Desk, name: str, span: str) -> None:
    """Move the end of a VM's lease by a span like 4h."""
    found = desk.post("vms", name, "extend", body={"by": span})
    ends = f"ends {say.when(found['lease_ends'])}" if found["lease_ends"] else "begins when it has its place"
    desk.done(found, lambda: click.echo(f"{found['name']}: its lease {ends}."))


@verb(vm, "snapshot")
@click.argument("name")
@click.option("--image", required=True, help="The new image's name, like team/name:tag.")
@_WAIT
@_TIMEOUT
def snapshot(desk: Desk, name: str, image: str, wait: bool, timeout: str | None) -> None:
    """Make a VM's disk a private image. The VM stops for the copy and goes on as it was."""
    made = desk.post("vms", name, "snapshot", body={"image": image})
    if wait or timeout:
        made = watch.image(desk, made["id"], timeout=timeout)
    desk.done(made, lambda: click.echo(f"Image {made['name']} of {made['owner']} is {made['state']}."))


@verb(vm, "release")
@_NAMES
@_YES
@_WAIT
@_TIMEOUT
def release(desk: Desk, names: tuple[str, ...], yes: bool, wait: bool, timeout: str | None) -> None:
    """Let VMs go, with their disks. 'u*' in quotes: all of yours that are called so."""
    names = _meant(desk, names)
    desk.sure(f"{', '.join(names)} will be gone, disk and all. Go on?", yes=yes)
    _wish(desk, names, "release", "gone", wait=wait, timeout=timeout)


@verb(vm, "console")
@click.argument("name")
def console(desk: Desk, name: str) -> None:
    """The last 256 KiB of a VM's serial console."""
    text = desk.get("vms", name, "console")
    desk.done({"text": text}, lambda: click.echo(text, nl=not text.endswith("\n")))


@verb(vm, "events")
@click.argument("name")
def events(desk: Desk, name: str) -> None:
    """What happened to a VM, and how long each phase took."""
    from vmgpu.cli.event import print_events

    found = desk.items("vms", name, "events", limit=1000)
    desk.done({"items": found}, lambda: print_events(found))


@verb(vm, "ssh")
@click.argument("name")
@click.option("--login", help="Another Linux account than yours.")
@click.option("-i", "--identity", type=click.Path(exists=True), help="The private key to use, beside your agent's.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(desk: Desk, name: str, login: str | None, identity: str | None, command: tuple[str, ...]) -> None:
    """Open a shell in a VM, or run a command there.

    A command follows two dashes: vmgpu vm ssh NAME -- CMD…. This runs OpenSSH with your own keys and the host key that
    vmgpu made for the VM.
    """
    from vmgpu.cli.ssh import go

    found = desk.get("vms", name, "ssh")
    if desk.as_json:
        desk.done(found, lambda: None)
    else:
        code = go(found, name=name, login=login, identity=identity, command=command)
        click.get_current_context().exit(code)


@verb(vm, "why")
@click.argument("name")
def why(desk: Desk, name: str) -> None:
    """Why a VM waits: what each filter of the placement leaves for it."""
    from vmgpu.cli.queue import print_why

    found = desk.get("queue", name, "why")
    desk.done(found, lambda: print_why(found))


def _meant(desk: Desk, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, with those for patterns in their place: among the caller's own VMs, or OWNER's in OWNER/PATTERN."""
    meant: list[str] = []
    for name in names:
        owner, slash, pattern = name.rpartition("/")
        if not set("*?[") & set(pattern):
            meant.append(name)
            continue
        owner = owner or desk.get("whoami")["name"]
        found = [vm["name"] for vm in desk.items("vms", owner=owner) if fnmatchcase(vm["name"], pattern)]
        if not found:
            hint = "List them: vmgpu vm list."
            raise Refused({"code": "not_found", "message": f"No VM of {owner} is called {pattern!r}", "hint": hint})
        meant += [f"{owner}/{one}" if slash else one for one in sorted(found)]
    return tuple(dict.fromkeys(meant))


def _wish(
    desk: Desk,
    names: tuple[str, ...],
    what: str,
    goal: str = "",
    *,
    wait: bool = False,
    timeout: str | None = None,
    body: Any = None,
) -> None:
    """Wish this for each VM; one that is refused holds up none of the others, and makes the end a failure."""
    asked: list[dict[str, Any]] = []
    refused: list[tuple[str, VmgpuError]] = []
    for name in names:
        try:
            asked.append(desk.post("vms", name, what, body=body))
        except Refused as no:
            refused.append((name, no))
    if asked and (wait or timeout):
        asked, late = watch.each(desk, [one["id"] for one in asked], [goal], timeout=timeout)
        refused += late

    def say_each() -> None:
        for one in asked:
            click.echo(f"{one['name']} {_went(what, one)}.")

    if asked or len(names) > 1:
        desk.done({"items": asked} if len(names) > 1 else asked[0], say_each)
    _must_be_all(refused, len(names))


def _went(what: str, found: dict[str, Any]) -> str:
    """What became of a wish so far."""
    if what in ("reboot", "reset"):
        return f"is being {'rebooted' if what == 'reboot' else what}"
    if what == "start" and found["state"] == "pending":
        return f"waits already: place {found['position'] or '?'}"
    if found["wanted"] == "gone" != found["state"]:
        return "is being released"
    return f"is {found['state']}" + (f", wanted {found['wanted']}" if found["wanted"] != found["state"] else "")


def _must_be_all(refused: list[tuple[str, VmgpuError]], of: int) -> None:
    if not refused:
        return
    _, first = refused[0]
    if of == 1:
        raise first
    said = "; ".join(f"{name}: {no.message}" for name, no in refused)
    error = {"code": first.code, "message": f"{len(refused)} of {of} failed. {said}", "hint": first.hint}
    raise Refused(error)


def _list_short(found: list[dict[str, Any]]) -> None:
    rows = [[v["name"], v["state"], v["position"], v["address"], say.reason(v["reason"])] for v in found]
    say.table(("name", "state", "queue", "address", "reason"), rows, empty="Nothing was asked for.")


def _gpu(found: dict[str, Any]) -> str:
    if found["slices"]:
        played = " (simulated)" if found["simulated"] else " (emulated)"
        return ", ".join(cut["profile"] + (played if cut["emulated"] else "") for cut in found["slices"])
    return found["profile"] or (f"{found['fgpu']} fGPU" if found["fgpu"] else "none")


def _show(found: dict[str, Any]) -> None:
    reason = found["reason"] or {}
    say.facts(
        [
            ("id", found["id"]),
            ("name", f"{found['owner']}/{found['name']}"),
            ("state", found["state"]),
            ("wanted", found["wanted"] if found["wanted"] != found["state"] else None),
            ("queue", found["position"]),
            ("reason", reason.get("sentence")),
            ("what to do", reason.get("cure")),
            ("members", found["members"]),
            ("address", found["address"]),
            ("owner logs in as", found["login"]),
            ("flavor", found["flavor"]),
            ("image", found["image"]),
            ("size", f"{found['vcpus']} vCPUs, {say.mib(found['memory_mib'])}, {found['disk_gib']} GiB disk"),
            ("host", (found["host"] or "-") + (" (simulated)" if found["simulated"] else "")),
            ("gpu", _gpu(found)),
            ("card", found["card"]),
            ("licence", f"{found['licence']} (read {say.when(found['licence_at'])})" if found["licence"] else None),
            ("warnings", found["warnings"]),
            ("capturing", found["capturing"]),
            ("lease ends", say.when(found["lease_ends"]) if found["lease_ends"] else None),
            ("disk deleted", say.when(found["delete_at"]) if found["delete_at"] else None),
            ("slices kept until", say.when(found["keeps_slices_until"]) if found["keeps_slices_until"] else None),
            ("host key", found["host_key"]),
            ("asked for", say.when(found["created_at"])),
        ]
    )
