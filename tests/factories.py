"""Rows for tests: one small function per noun, sound defaults, anything by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlmodel import Session, func, select

from vmgpu import placement
from vmgpu.db import Database, migrate
from vmgpu.models import (
    VM,
    Event,
    Flavor,
    Gpu,
    Host,
    HostState,
    Image,
    Key,
    Slice,
    User,
    VMMember,
    VMState,
    new_id,
    now,
)
from vmgpu.service import people
from vmgpu.service.access import Actor
from vmgpu.settings import Settings

ADMIN_TOKEN = "an-admin-token-of-the-tests"
A_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHTGMpSSNEHrvzz7fdqhYeE8R7Qnk6MYbDQ3M2NmR5ac someone@laptop"


def make_settings(folder: Path, **given: Any) -> Settings:
    """Settings of an installation in a folder of its own."""
    return Settings(**{"data_dir": folder, "admin_token": ADMIN_TOKEN, "log": "text", **given})


def make_database(settings: Settings) -> Database:
    """A migrated database with its first admin, who has ADMIN_TOKEN."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    db = Database(settings.url)
    migrate(db)
    people.settle_in(db, settings)
    return db


def admin(db: Database) -> Actor:
    """The first admin."""
    return people.who(db, ADMIN_TOKEN)


def make_user(db: Database, name: str = "anna", *, admin: bool = False) -> Actor:
    """A person."""
    with db.write() as session:
        user = User(name=name, admin=admin)
        session.add(user)
    return Actor(user.id, user.name, user.admin)


def make_token(db: Database, actor: Actor) -> str:
    """An API token's secret for a person."""
    from vmgpu.requests import TokenRequest

    return people.add_token(db, actor, actor.name, TokenRequest(name="test"))[1]


def make_key(db: Database, actor: Actor, line: str = A_KEY) -> Key:
    """A person's SSH key."""
    from vmgpu.requests import KeyRequest

    return people.add_keys(db, actor, actor.name, KeyRequest(keys=line))[0]


def make_host(db: Database, name: str = "h1", *, cards: Sequence[str] = ("A100-40GB",), **given: Any) -> Host:
    """A surveyed host that is ready, with emulated cards of these models."""
    facts = {
        "hostname": name,
        "libvirt": "9.0.0",
        "qemu": "7.2.0",
        "cpu_model": "EPYC",
        "accel": "kvm",
        "accel_why": "",
        "disk_total_gib": 1000,
        "disk_free_gib": 900,
        "pool": "vmgpu",
        "network": "vmgpu",
        "network_range": "192.168.171.0/24",
        "numa": [],
        "warnings": [],
    }
    fields: dict[str, Any] = {
        "uri": "qemu:///system",
        "state": HostState.ready,
        "facts": facts,
        "threads": 32,
        "memory_mib": 128 * 1024,
        "disk_gib": 1000,
        "surveyed_at": now(),
        "boot_id": "boot-1",
    } | given
    with db.write() as session:
        host = Host(name=name, **fields)
        session.add(host)
        session.flush()
        for number, model in enumerate(cards):
            session.add(
                Gpu(
                    host_id=host.id,
                    key=f"emulated-{number}",
                    name=f"{name}/{number}",
                    model=model,
                    mode="emulated",
                    emulated=True,
                )
            )
    return host


def make_real_gpu(db: Database, host: Host, **given: Any) -> Gpu:
    """A real card that is listed and left alone."""
    fields: dict[str, Any] = {"key": "0000:41:00.0", "name": "NVIDIA L40S", "model": "L40S", "address": "0000:41:00.0"}
    fields |= {"facts": {"modes": ["passthrough"]}} | given
    with db.write() as session:
        gpu = Gpu(host_id=host.id, **fields)
        session.add(gpu)
    return gpu


def make_flavor(db: Database, name: str = "small", **given: Any) -> Flavor:
    """A size of VM without a card unless one is asked for."""
    with db.write() as session:
        flavor = Flavor(name=name, **{"vcpus": 2, "memory_mib": 2048, "disk_gib": 10} | given)
        session.add(flavor)
    return flavor


def make_image(db: Database, name: str = "base", *, owner: Actor | None = None, **given: Any) -> Image:
    """A ready image: everybody's, or its owner's."""
    fields = {"virtual_mib": 2048, "size_bytes": 1 << 29, "sha256": "0" * 64} | given
    with db.write() as session:
        image = Image(name=name, owner_id=owner.id if owner else None, **fields)
        session.add(image)
    return image


def make_vm(
    db: Database,
    owner: Actor,
    name: str = "s1",
    *,
    image: Image | None = None,
    host: Host | None = None,
    members: Sequence[Actor] = (),
    profile: str | None = None,
    **given: Any,
) -> VM:
    """A VM: pending, or running where a host is given; with a profile and a host it holds the first free slice."""
    with db.write() as session:
        image = image or session.exec(select(Image)).first()
        assert image, "make an image first"
        tickets = session.exec(select(func.count()).select_from(VM)).one()
        fields: dict[str, Any] = {
            "flavor": "small",
            "vcpus": 2,
            "memory_mib": 2048,
            "disk_gib": 10,
            "ticket": tickets + 1,
            "lease_seconds": 28800,
            "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ+nn8Cz1r0kDF3bGxqf7n6SgTTh5Xc1bGvK8mQmWf0k",
        }
        if host:
            fields |= {
                "host_id": host.id,
                "state": VMState.running,
                "holds": True,
                "has_disk": True,
                "address": "192.168.171.10",
            }
        vm = VM(id=new_id(), name=name, owner_id=owner.id, image_id=image.id, profile=profile, **fields | given)
        session.add(vm)
        session.flush()
        for person in (owner, *members):
            session.add(VMMember(vm_id=vm.id, user_id=person.id, login=person.name))
        session.add(Event(vm_id=vm.id, kind="requested", state="pending", who=owner.name))
        if host and profile:
            _cut(session, vm, host, profile)
    return vm


def _cut(session: Session, vm: VM, host: Host, profile: str) -> None:
    for gpu in session.exec(select(Gpu).where(Gpu.host_id == host.id).order_by(Gpu.key)).all():
        shape = placement.shape_of(gpu.model, placement.Mode(str(gpu.mode)))
        size = placement.profile(shape, profile)
        rows = session.exec(select(Slice).where(Slice.gpu_id == gpu.id)).all()
        taken = tuple(placement.Window(row.start, row.cells, row.compute, row.profile) for row in rows)
        for start in size.starts:
            window = placement.Window(start, size.cells, size.compute, size.name)
            if placement.legal(shape, (*taken, window)):
                session.add(
                    Slice(
                        gpu_id=gpu.id,
                        vm_id=vm.id,
                        profile=size.name,
                        start=start,
                        slot=len(rows),
                        cells=size.cells,
                        compute=size.compute,
                        memory_mib=size.memory_mib,
                    )
                )
                return
    raise AssertionError(f"no room for {profile} on {host.name}")
