"""What admins ask of flavors."""

from __future__ import annotations

from sqlmodel import col, delete, select

from vmgpu.db import Database
from vmgpu.errors import Conflict, NotFound
from vmgpu.models import Flavor
from vmgpu.requests import FlavorRequest
from vmgpu.service.access import Actor, must_be_admin


def add(db: Database, actor: Actor, asked: FlavorRequest) -> Flavor:
    """Define a size of VM."""
    must_be_admin(actor)
    with db.write() as session:
        if session.exec(select(Flavor).where(Flavor.name == asked.name)).first():
            raise Conflict(f"There is a flavor {asked.name} already", hint="Take another name.", where="name")
        flavor = Flavor(
            name=asked.name,
            vcpus=asked.vcpus,
            memory_mib=asked.memory,
            disk_gib=asked.disk,
            profile=asked.profile,
            fgpu=asked.fgpu,
            cuda=asked.cuda,
            on_stop=asked.on_stop,
        )
        session.add(flavor)
        return flavor


def remove(db: Database, actor: Actor, name: str) -> None:
    """Forget a size; VMs made from it keep theirs."""
    must_be_admin(actor)
    with db.write() as session:
        if session.execute(delete(Flavor).where(col(Flavor.name) == name)).rowcount != 1:  # type: ignore[attr-defined]
            raise NotFound(f"There is no flavor {name!r}", hint="List them: vmgpu flavor list.")
