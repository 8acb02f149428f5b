"""What admins ask of flavors."""

from __future__ import annotations

from collections.abc import Sequence

from sqlmodel import Session, col, delete, select

from vmgpu import ledger, placement
from vmgpu.db import Database
from vmgpu.errors import Conflict, NotFound, Reason
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


def never(session: Session, rows: Sequence[Flavor]) -> dict[str, Reason]:
    """Why no host that there is could ever hold it, by the flavor's name; those that one can, or may, are not in it."""
    fleet = ledger.fleet(session)
    answer = {}
    for row in rows:
        gpu = ledger.gpu_wish(row.profile, row.fgpu, cuda=row.cuda)
        wish = placement.Wish("", (0, 0.0, ""), row.vcpus, row.memory_mib, row.disk_gib, gpu=gpu)
        why = placement.never(wish, fleet)
        if why:
            answer[row.name] = why
    return answer
