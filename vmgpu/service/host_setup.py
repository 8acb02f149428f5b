"""The script by which an admin makes a machine a host of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Network
from urllib.parse import urlsplit

from sqlalchemy import or_
from sqlmodel import col, select

from vmgpu.db import Database
from vmgpu.errors import Conflict, Invalid
from vmgpu.hypervisor import host_setup
from vmgpu.models import Host
from vmgpu.service import host_keys
from vmgpu.service.access import Actor, must_be_admin

_TARGET = re.compile(
    r"(ssh://)?([A-Za-z0-9._-]+@)?(?P<address>([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?)"
)


@dataclass(frozen=True)
class _Machine:
    name: str
    address: str
    added: str = ""
    network: IPv4Network | None = None


def script(db: Database, actor: Actor, wanted: str) -> str:
    """The script for a host, by its name, or for one to be, by what one would tell ssh."""
    must_be_admin(actor)
    with db.read() as session:
        host = session.exec(select(Host).where(or_(col(Host.name) == wanted, col(Host.id) == wanted))).first()
        machine = _known(host) if host else _new(wanted)
        keys = host_keys.public(session)
    return host_setup.script(
        name=machine.name, address=machine.address, keys=keys, network=machine.network, added=machine.added
    )


def _known(host: Host) -> _Machine:
    parts = urlsplit(host.uri)
    if parts.scheme != "qemu+ssh":
        raise Conflict(
            f"Host {host.name} is {host.uri}: nothing is set up there", hint="hostctl is part of the service here."
        )
    user, _, address = parts.netloc.rpartition("@")
    seen = str((host.facts or {}).get("network_range") or "")
    network = None if host.bridge else IPv4Network(seen) if seen else _first_range()
    added = "ours" if user == host_setup.ACCOUNT else "other"
    return _Machine(host.name, address, added=added, network=network)


def _new(target: str) -> _Machine:
    found = _TARGET.fullmatch(target)
    if not found:
        raise Invalid(
            f"{target!r} is neither a host nor an SSH target",
            hint="Write NAME, USER@MACHINE or ssh://USER@MACHINE:PORT.",
        )
    address = found["address"]
    label = address.split(":")[0].split(".")[0].lower()
    name = label if re.fullmatch(r"[a-z][a-z0-9-]{0,62}", label) else "NAME"
    return _Machine(name, address, network=_first_range())


def _first_range() -> IPv4Network:
    """What a host takes that has no network of ours yet, unless it is taken there."""
    from vmgpu.hypervisor.networks import free_ranges  # here: a service without real hosts loads no libvirt

    return next(free_ranges(set()))
