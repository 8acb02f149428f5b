"""vmgpu host: machines that run VMs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from vmgpu.cli import say, watch
from vmgpu.cli.desk import Desk, Refused, verb
from vmgpu.cli.gpu import warn_where_unset

# one word for the login shell, whichever that is; the script comes by standard input, so that sudo can ask for nothing
_AS_ROOT = """sh -c 'if [ "$(id -u)" = 0 ]; then exec sh -s; else exec sudo -n sh -s; fi'"""


@click.group()
def host() -> None:
    """Machines that run VMs."""


@verb(host, "add")
@click.argument("name")
@click.argument("uri")
@click.option("--emulate", multiple=True, metavar="MODEL[,N]", help="Cards that stand in for real ones.")
@click.option("--bridge", help="An existing bridge for the VMs; else a network of our own behind NAT.")
@click.option("--overcommit", type=float, help="vCPUs per thread  [4].")
@click.option("--host-key", metavar="KEY|FILE", help="The remote host's SSH key, or a file with it.")
@click.option("--wait", default=120.0, show_default=True, help="Seconds to wait for the first survey.")
def add(
    desk: Desk,
    name: str,
    uri: str,
    emulate: tuple[str, ...],
    bridge: str | None,
    overcommit: float | None,
    host_key: str | None,
    wait: float,
) -> None:
    """Take a host in and wait for its first survey.

    URI: qemu:///system, qemu+ssh://USER@HOST/system, or fake://8xA100-80GB for a simulated one.
    """
    body = {
        "name": name,
        "uri": uri,
        "emulate": list(emulate),
        "bridge": bridge,
        "overcommit": overcommit,
        "host_key": _key(host_key) if host_key else None,
    }
    made = desk.post("hosts", body={k: v for k, v in body.items() if v is not None}, wait=wait)
    desk.done(made, lambda: _show(made))
    warn_where_unset(desk, made["gpus"])
    _must_be_surveyed(made)


@verb(host, "setup")
@click.argument("machine", metavar="NAME|SSH_TARGET")
@click.option("--run", "at_once", is_flag=True, help="Run it there now, by your own SSH as root or with sudo.")
def setup(desk: Desk, machine: str, at_once: bool) -> None:
    """Print the script that makes a machine a host. It brings one up to date as well; run it as root there."""
    script = desk.get("hosts", "setup", host=machine)
    if not at_once:
        desk.done({"script": script}, lambda: click.echo(script, nl=False))
        return
    target = _own_way(desk, machine)
    said = _run_there(target, script, keep=desk.as_json)
    lines = said.splitlines()
    key = next((line for line in lines if line.startswith("ssh-")), None)
    desk.done({"target": target, "host_key": key, "output": lines}, lambda: None)


@verb(host, "list")
def list_hosts(desk: Desk) -> None:
    """All hosts."""
    found = desk.items("hosts")
    rows = [
        [h["name"], _state(h), h["uri"], _vcpus(h), _memory(h), len(h["gpus"]), h["vms"]]
        for h in found
    ]  # fmt: skip
    head = ("name", "state", "uri", "vcpus held", "memory held", "cards", "vms")
    desk.done({"items": found}, lambda: say.table(head, rows, empty="There is no host yet: vmgpu host add NAME URI."))


@verb(host, "show")
@click.argument("name")
def show(desk: Desk, name: str) -> None:
    """One host with its cards."""
    found = desk.get("hosts", name)
    desk.done(found, lambda: _show(found))


@verb(host, "remove")
@click.argument("name")
@click.option("--lost", is_flag=True, help="It will never answer again: give up its VMs with it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait", default=60.0, show_default=True, help="Seconds to wait until it is gone.")
def remove(desk: Desk, name: str, lost: bool, yes: bool, wait: float) -> None:
    """Let a host go; refused while it holds VMs."""
    desk.sure(f"Give host {name} up, with all VMs on it?" if lost else f"Let host {name} go?", yes=yes)
    said = {"done": f"Host {name} is let go.", "going": f"Host {name} is being let go."}
    watch.gone(desk, "hosts", name, wait=wait, **said, **({"lost": "true"} if lost else {}))


@verb(host, "drain")
@click.argument("name")
@click.option("--off", is_flag=True, help="Let new VMs in again.")
def drain(desk: Desk, name: str, off: bool) -> None:
    """Keep new VMs away; those that are there go on."""
    changed = desk.patch("hosts", name, body={"draining": not off})
    said = f"Host {name} takes new VMs again." if off else f"Host {name} takes no new VMs."
    desk.done(changed, lambda: click.echo(said))


@verb(host, "set")
@click.argument("name")
@click.option("--overcommit", type=float, help="vCPUs per thread.")
@click.option(
    "--device-id", "device_ids", multiple=True, help="A PCI id that is a card too, like 1234:1111; repeatable."
)
@click.option("--mdev-parent", "mdev_parents", multiple=True, help="A mediated device's parent that is no PCI device.")
@click.option(
    "--licence-token", metavar="FILE", help="The client configuration token for guests with a vGPU; '' takes it away."
)
@click.option("--licence-feature", type=click.Choice(["0", "1", "2", "4"]), help="FeatureType in gridd.conf  [1].")
@click.option("--licence-server", metavar="NAME[:PORT]", help="A licence server of the old kind; '' takes it away.")
def set_host(
    desk: Desk,
    name: str,
    licence_token: str | None,
    licence_feature: str | None,
    licence_server: str | None,
    **given: Any,
) -> None:
    """Change a host's settings; what is listed replaces what was. A licence reaches a VM at its next start."""
    body = {key: value for key, value in given.items() if value}
    licence = {
        "token": _token(licence_token) if licence_token is not None else None,
        "feature": int(licence_feature) if licence_feature else None,
        "server": licence_server,
    }
    if any(value is not None for value in licence.values()):
        body["licence"] = {key: value for key, value in licence.items() if value is not None}
    if not body:
        raise click.UsageError("say what to set: --overcommit, --device-id, --mdev-parent or --licence-token")
    changed = desk.patch("hosts", name, body=body)
    if {"device_ids", "mdev_parents"} & set(body):
        changed = desk.post("hosts", name, "survey", wait=60)
    desk.done(changed, lambda: _show(changed))


@verb(host, "survey")
@click.argument("name")
@click.option("--wait", default=60.0, show_default=True, help="Seconds to wait for it.")
def survey(desk: Desk, name: str, wait: float) -> None:
    """Look again at what a host has."""
    found = desk.post("hosts", name, "survey", wait=wait)
    desk.done(found, lambda: _show(found))
    _must_be_surveyed(found)


def _own_way(desk: Desk, machine: str) -> str:
    """What the caller tells ssh: of a known host the address, without our account, which gives nobody a shell."""
    known = next((each for each in desk.items("hosts") if machine in (each["name"], each["id"])), None)
    if known is None:
        return machine
    return "ssh://" + urlsplit(str(known["uri"])).netloc.removeprefix("vmgpu@")


def _run_there(target: str, script: str, *, keep: bool) -> str:
    """The script's standard output where it is kept; else it is shown as it comes, like its messages."""
    sys.stdout.flush()
    try:
        done = subprocess.run(
            ["ssh", "-T", "--", target, _AS_ROOT],
            input=script.encode(),
            stdout=subprocess.PIPE if keep else None,
            check=False,
        )
    except FileNotFoundError:
        hint = "Install it: apt install openssh-client."
        raise Refused({"code": "setup", "message": "There is no ssh program here", "hint": hint}) from None
    if done.returncode:
        hint = "It needs a login as root, or sudo without a password; else print it, and run it there by hand."
        raise Refused({"code": "setup", "message": f"The setup of {target} did not end well", "hint": hint})
    return (done.stdout or b"").decode("utf-8", "replace")


def _must_be_surveyed(found: dict[str, Any]) -> None:
    if found["state"] == "ready" and not found["reason"]:
        return
    if found["reason"]:
        error = {
            "message": found["reason"]["sentence"],
            "hint": found["reason"]["cure"],
            "code": found["reason"]["code"],
        }
    else:
        hint = f"Look again later: vmgpu host show {found['name']}."
        error = {"message": f"The survey of {found['name']} is not in yet", "hint": hint, "code": "not_surveyed"}
    raise Refused(error)


def _state(found: dict[str, Any]) -> str:
    lost = sum(len(card["to_cut_again"]) for card in found["gpus"])
    state = "draining" if found["draining"] and found["state"] == "ready" else str(found["state"])
    return f"{state}, needs re-carve ({lost})" if lost else state


def _vcpus(found: dict[str, Any]) -> str:
    return f"{found['vcpus_held']} of {int(found['threads'] * found['overcommit'] + 1e-6)}"


def _memory(found: dict[str, Any]) -> str:
    most = max(0, found["memory_mib"] - found["memory_reserve_mib"])
    return f"{say.mib(found['memory_held_mib'])} of {say.mib(most)}"


def _licence(found: dict[str, Any] | None) -> str | None:
    if not found or not (found["has_token"] or found["server"]):
        return None
    held = "a token" if found["has_token"] else "no token"
    return f"{held}, feature type {found['feature']}" + (f", server {found['server']}" if found["server"] else "")


def _show(found: dict[str, Any]) -> None:
    facts = found["facts"] or {}
    say.facts(
        [
            ("name", found["name"] + (" (simulated)" if found["simulated"] else "")),
            ("state", _state(found)),
            ("reason", say.reason(found["reason"])),
            ("uri", found["uri"]),
            ("vcpus", f"{_vcpus(found)} held; {found['threads']} threads, {found['overcommit']:g} vCPUs each"),
            ("memory", f"{_memory(found)} held; {say.mib(found['memory_reserve_mib'])} more are kept for the host"),
            ("disk", f"{found['disk_free_gib']} GiB free of {found['disk_gib']} GiB" if facts else None),
            ("network", found["bridge"] or facts.get("network_range")),
            ("libvirt", facts.get("libvirt")),
            ("guests run by", facts.get("accel")),
            ("licence", _licence(found["licence"])),
            ("warnings", facts.get("warnings")),
            ("orphans", found["orphans"]),
            ("surveyed", say.when(found["surveyed_at"])),
        ]
    )  # fmt: skip
    for card in found["gpus"]:
        held = ", ".join(f"{cut['profile']} at {cut['start']}: {cut['vm'] or '-'}" for cut in card["slices"])
        played = "simulated" if card["simulated"] else "emulated"
        kind = played if card["emulated"] else card["mode"] or "left alone"
        click.echo(f"card  {say.cell(card['name'])}  {card['model']}  {kind}  {card['state']}  {held or 'free'}")


def _key(given: str) -> str:
    """The key itself, or what a file says."""
    if given.startswith(("ssh-", "ecdsa-")) and " " in given:
        return given
    path = Path(given)
    if not path.is_file():
        raise click.UsageError(f"--host-key: {given!r} is neither a key nor a file")
    return _key_in(path)


def _token(given: str) -> str:
    """What is in the file: the token itself is no argument, which everybody on this machine could read."""
    if not given:
        return ""
    path = Path(given)
    if not path.is_file():
        raise click.UsageError(f"--licence-token: there is no file {given!r}")
    return path.read_text(errors="replace").strip()


def _key_in(path: Path) -> str:
    """The key in what ssh-keyscan printed, or in a .pub file: ed25519 where there are several."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    return next((line for line in keys if "ssh-ed25519" in line), keys[0] if keys else "")
