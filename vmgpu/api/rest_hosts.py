"""Hosts, cards and flavors by REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query
from sqlmodel import col, select
from starlette.responses import PlainTextResponse, Response

from vmgpu import requests
from vmgpu.api.answers import PREFIX, Items, Wait, items, until
from vmgpu.api.deps import Db, Me, Stopping
from vmgpu.api.faults import answers
from vmgpu.errors import NotFound
from vmgpu.models import Flavor, Host, HostState, now
from vmgpu.requests import FlavorRequest, HostChange, HostRequest, UnitRequest
from vmgpu.service import flavors, gpus, host_setup, hosts, show
from vmgpu.service.shapes import CheckOut, DoctorOut, FlavorOut, GpuOut, HostOut, UnitOut

router = APIRouter(prefix=PREFIX, responses=answers(401, 404, 422))

_ADMIN: dict[str, Any] = {"responses": answers(403, 409)}


class OfferRequest(requests.Body):
    """Whether a real card is given out, and how: whole, in time-sliced vGPUs of one or of mixed sizes, or by MIG."""

    offered: bool
    mode: Literal["passthrough", "vgpu", "mixed", "mig"] = "passthrough"


@router.get("/hosts", response_model=Items[HostOut], tags=["hosts"])
def list_hosts(db: Db, me: Me) -> Response:
    """All hosts, with their cards; how they are opened is shown to admins alone."""
    with db.read() as session:
        rows = session.exec(select(Host).order_by(col(Host.name))).all()
        return items(HostOut, show.hosts(session, rows, to=me))


@router.post("/hosts", status_code=201, response_model=HostOut, tags=["hosts"], **_ADMIN)
def add_host(asked: HostRequest, db: Db, me: Me, stopping: Stopping, wait: Wait = 120) -> HostOut:
    """Take a host in, and answer when its first survey is in; `reason` tells why that failed."""
    added = hosts.add(db, me, asked)
    until(_once(db, added.id, lambda host: host.state is not HostState.new or host.reason), wait, stopping)
    return _host(db, me, added.id)


@router.get("/hosts/setup", response_class=PlainTextResponse, tags=["hosts"], **_ADMIN)
def host_setup_script(
    db: Db,
    me: Me,
    host: Annotated[
        str, Query(max_length=300, description="A host's name, or USER@MACHINE", examples=["root@gpu1.example.org"])
    ],
) -> PlainTextResponse:
    """The script that makes a machine a host, to be run as root there: packages, an account with two keys, hostctl."""
    return PlainTextResponse(host_setup.script(db, me, host))


@router.get("/hosts/{name}", response_model=HostOut, tags=["hosts"])
def show_host(name: str, db: Db, me: Me) -> HostOut:
    """One host with its cards."""
    return _host(db, me, name)


@router.patch("/hosts/{name}", response_model=HostOut, tags=["hosts"], **_ADMIN)
def change_host(
    name: str, asked: Annotated[HostChange, Body(examples=[{"draining": True}, {"overcommit": 2}])], db: Db, me: Me
) -> HostOut:
    """Drain it or end the drain; set its overcommit."""
    return _host(db, me, hosts.change(db, me, name, asked).id)


@router.delete("/hosts/{name}", status_code=202, response_model=HostOut, tags=["hosts"], **_ADMIN)
def remove_host(
    name: str,
    db: Db,
    me: Me,
    stopping: Stopping,
    lost: Annotated[bool, Query(description="It will never answer again: its VMs are given up with it")] = False,
    wait: Wait = 0,
) -> HostOut:
    """Let it go; refused while it holds VMs. `wait`: until it is."""
    row = hosts.remove(db, me, name, lost=lost)
    with db.read() as session:
        leaving = show.hosts(session, [row], to=me)[0]
    until(_once(db, row.id, lambda host: False), wait, stopping)
    return leaving


@router.post("/hosts/{name}/survey", response_model=HostOut, tags=["hosts"], **_ADMIN)
def survey_host(name: str, db: Db, me: Me, stopping: Stopping, wait: Wait = 60) -> HostOut:
    """Look again at what the host has, and answer when that is in."""
    row = hosts.survey(db, me, name)

    def surveyed(host: Host) -> bool:
        done = row.survey_asked and host.surveyed_at and host.surveyed_at >= row.survey_asked
        # a visit that failed leaves its reason, and is not due again at once; a reason alone may be an older one
        failed = host.reason and host.claim_token is None and host.due_at and host.due_at > now()
        return bool(done or failed)

    until(_once(db, row.id, surveyed), wait, stopping)
    return _host(db, me, row.id)


@router.post("/hosts/{name}/doctor", response_model=DoctorOut, tags=["hosts"], **_ADMIN)
def examine_host(name: str, db: Db, me: Me, stopping: Stopping, wait: Wait = 60) -> DoctorOut:
    """Look for what is wrong with a host, and answer when that is in; `at` is null where it is not."""
    asked = hosts.examine(db, me, name)

    def answered(host: Host) -> bool:
        return bool(asked.doctor_asked and host.doctor_at and host.doctor_at >= asked.doctor_asked)

    if until(_once(db, asked.id, answered), wait, stopping):
        return _doctor(hosts.examined(db, me, asked.id))
    return DoctorOut(host=asked.name, at=None, items=[])


@router.get("/hosts/{name}/doctor", response_model=DoctorOut, tags=["hosts"], **_ADMIN)
def show_doctor(name: str, db: Db, me: Me) -> DoctorOut:
    """What was found at a host when somebody asked last."""
    return _doctor(hosts.examined(db, me, name))


@router.get("/gpus", response_model=Items[GpuOut], tags=["gpus"])
def list_gpus(db: Db, me: Me) -> Response:
    """All cards, with the slices that are cut from them."""
    with db.read() as session:
        return items(GpuOut, show.gpus(session, to=me))


@router.get("/gpus/{gpu}", response_model=GpuOut, tags=["gpus"])
def show_gpu(gpu: str, db: Db, me: Me) -> GpuOut:
    """One card, by its id."""
    with db.read() as session:
        found = next((card for card in show.gpus(session, to=me) if card.id == gpu), None)
    if found is None:
        raise NotFound(f"There is no card {gpu!r}", hint="List them: vmgpu gpu list.")
    return found


@router.post("/gpus/{gpu}/clear", response_model=GpuOut, tags=["gpus"], **_ADMIN)
def clear_gpu(gpu: str, db: Db, me: Me) -> GpuOut:
    """End a card's quarantine: somebody has looked at it."""
    return show_gpu(gpus.clear(db, me, gpu).id, db, me)


@router.post("/gpus/{gpu}/offer", response_model=GpuOut, tags=["gpus"], **_ADMIN)
def offer_gpu(gpu: str, asked: Annotated[OfferRequest, Body(examples=[{"offered": True}])], db: Db, me: Me) -> GpuOut:
    """Give a real card out, or keep it back."""
    return show_gpu(gpus.offer(db, me, gpu, mode=asked.mode if asked.offered else None).id, db, me)


@router.get("/gpu-units", response_model=Items[UnitOut], tags=["gpus"])
def list_units(db: Db, me: Me) -> Response:
    """What 1 fGPU is on each model, and the profile that it becomes."""
    with db.read() as session:
        return items(UnitOut, show.units(session))


@router.put("/gpu-units/{model}", response_model=UnitOut, tags=["gpus"], **_ADMIN)
def set_unit(model: Annotated[str, Path(max_length=100)], asked: UnitRequest, db: Db, me: Me) -> UnitOut:
    """Set the share of a card that 1 fGPU is on this model."""
    row = gpus.set_unit(db, me, model, asked)
    with db.read() as session:
        return next(unit for unit in show.units(session) if unit.model == row.model)


@router.get("/flavors", response_model=Items[FlavorOut], tags=["flavors"])
def list_flavors(db: Db, me: Me) -> Response:
    """All sizes, with what their GPU wish becomes on the cards there are."""
    with db.read() as session:
        rows = session.exec(select(Flavor).order_by(col(Flavor.name))).all()
        return items(FlavorOut, show.flavors(session, rows))


@router.post("/flavors", status_code=201, response_model=FlavorOut, tags=["flavors"], **_ADMIN)
def add_flavor(asked: FlavorRequest, db: Db, me: Me) -> FlavorOut:
    """Define a size of VM."""
    flavors.add(db, me, asked)
    return show_flavor(asked.name, db, me)


@router.get("/flavors/{name}", response_model=FlavorOut, tags=["flavors"])
def show_flavor(name: str, db: Db, me: Me) -> FlavorOut:
    """One size."""
    with db.read() as session:
        row = session.exec(select(Flavor).where(Flavor.name == name)).first()
        if row is None:
            raise NotFound(f"There is no flavor {name!r}", hint="List them: vmgpu flavor list.")
        return show.flavor(session, row)


@router.delete("/flavors/{name}", status_code=204, tags=["flavors"], **_ADMIN)
def remove_flavor(name: str, db: Db, me: Me) -> None:
    """Forget a size; VMs made from it keep theirs."""
    flavors.remove(db, me, name)


def _once(db: Db, host_id: str, true: Callable[[Host], object]) -> Callable[[], bool | None]:
    """What `until` looks for after a wish: that this is true of the host's row, or that there is none any more."""

    def look() -> bool | None:
        with db.read() as session:
            host = session.get(Host, host_id)
        return True if host is None or true(host) else None

    return look


def _doctor(host: Host) -> DoctorOut:
    return DoctorOut(host=host.name, at=host.doctor_at, items=[CheckOut(**each) for each in host.doctor])


def _host(db: Db, me: Me, name: str) -> HostOut:
    with db.read() as session:
        return show.hosts(session, [hosts.find_host(session, name)], to=me)[0]
