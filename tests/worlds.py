"""Worlds for steps, a VM as plain values and a host on paper; and houses: whole installations on simulated hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlmodel import SQLModel, select

from vmgpu.connections import host_ref
from vmgpu.db import Database, setting
from vmgpu.errors import Conflict, HostRefused, ReasonCode, reason
from vmgpu.hypervisor import (
    Carved,
    DomainSeen,
    Emulated,
    GpuRef,
    HostDevice,
    ImageRef,
    Network,
    NetworkRef,
    Power,
    Progress,
    SliceRef,
    VMSpec,
)
from vmgpu.hypervisor.fake import FakeAdmin, fake_admin
from vmgpu.models import VM, CopyState, Event, Host, HostState, Slice, VMState, Wanted
from vmgpu.requests import FlavorRequest, HostRequest, VMRequest
from vmgpu.service import flavors, hosts, vms
from vmgpu.service.access import Actor
from vmgpu.settings import Settings
from vmgpu.views import CardView, Login, VMView
from vmgpu.worker import Worker

Row = TypeVar("Row", bound=SQLModel)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
VM_ID = "11111111-1111-4111-8111-111111111111"
DEVICE = Emulated(64, "A100-40GB 3g.20gb 19968 MiB")
CARD = GpuRef("gpu-1", "emulated", "A100-40GB", "0000:10:00.0")
CUT = SliceRef("slice-1", VM_ID, CARD, "3g.20gb", 0, 4, 3, 19968)


def a_view(**given: Any) -> VMView:
    """A VM in the middle of its life, with half a card; anything by name."""
    fields: dict[str, Any] = {
        "id": VM_ID,
        "name": "s1",
        "owner": "anna",
        "state": VMState.running,
        "wanted": Wanted.running,
        "build": 1,
        "built": 1,
        "boots": 1,
        "booted": 1,
        "on_stop": None,
        "stop_mode": None,
        "state_since": NOON,
        "step_since": None,
        "lease_seconds": 8 * 3600,
        "expires_at": None,
        "delete_at": None,
        "keep_until": None,
        "warned": (),
        "vcpus": 2,
        "memory_mib": 2048,
        "disk_gib": 10,
        "holds": True,
        "has_disk": True,
        "ever_ran": True,
        "retry": False,
        "tries": 0,
        "restarts": 0,
        "capture_as": None,
        "wakes": 0,
        "console_asked": None,
        "host_id": "host-1",
        "host_name": "h1",
        "host_boot_id": "boot-1",
        "simulated": True,
        "network": NetworkRef(Network.nat, "vmgpu"),
        "accel": "tcg",
        "installation": "here",
        "image": ImageRef("image-1", "base.qcow2", 1024),
        "image_name": "base",
        "cuda": False,
        "copy_state": CopyState.ready,
        "copy_percent": 100,
        "copy_reason": None,
        "slices": (CUT,),
        "gpu": CardView(emulated=True, pci_ids=("1234:1111",), bars_mib=(), memory_mib=40960),
        "devices": (DEVICE,),
        "licensing": None,
        "licence": None,
        "licence_at": None,
        "ran_at": None,
        "numa": None,
        "numa_node": None,
        "numa_why": "",
        "logins": (Login("anna", ("ssh-ed25519 AAAA anna",)),),
        "address": "192.0.2.7",
        "host_key": "ssh-ed25519 BBBB",
        "host_key_private": "-----BEGIN KEY-----\nsecret\n-----END KEY-----\n",
    }
    return VMView(**fields | given)


@dataclass
class PlayedHost:
    """A host of one VM. `asked` is every verb that changes something, in order."""

    power: Power = Power.running
    why: str = ""
    addr: str | None = "192.0.2.7"
    disk: bool = True
    ready: bool = True
    room: bool = True
    card: str = "seen"
    card_there: bool = True
    boot: str = "boot-1"
    text: bytes = b""
    asked: list[str] = field(default_factory=list)
    spec: VMSpec | None = None
    copied: Path | None = None

    def look(self, vm_id: str) -> DomainSeen:
        return DomainSeen(vm_id, "s1", self.power, self.why)

    def boot_id(self) -> str:
        return self.boot

    def has_disk(self, vm_id: str) -> bool:
        return self.disk

    def ensure_disk(self, spec: VMSpec) -> None:
        self._note("ensure_disk")
        self.disk = True

    def drop_disk(self, vm_id: str) -> None:
        self._note("drop_disk")
        self.disk = False

    def ensure_defined(self, spec: VMSpec) -> None:
        self._note("ensure_defined")
        self.spec = spec

    def ensure_running(self, vm_id: str) -> None:
        self._note("ensure_running")
        self.power = Power.running if self.power is not Power.absent else Power.absent

    def shutdown(self, vm_id: str) -> None:
        self._note("shutdown")

    def power_off(self, vm_id: str) -> None:
        self._note("power_off")
        self.power = Power.off if self.power is not Power.absent else Power.absent

    def erase(self, vm_id: str) -> None:
        self._note("erase")
        self.power, self.disk = Power.absent, False

    def address(self, vm_id: str, mac: str, network: NetworkRef) -> str | None:
        return self.addr

    def guest_checked(self, vm_id: str, devices: Sequence[HostDevice]) -> tuple[bool, str]:
        if not self.card_there:
            raise HostRefused("no card", reason=reason(ReasonCode.card_missing, wanted=""))
        return self.ready, self.card

    def console(self, vm_id: str, limit: int = 0) -> bytes:
        return self.text

    def wait_guest(self, vm_id: str, seconds: float) -> bool:
        return self.ready

    def dial(self, address: str, port: int) -> object | None:
        return None

    def see_room(self, vm_id: str, target: Path) -> None:
        if not self.room:
            short = reason(ReasonCode.no_room_for_copy, needed_mib=2048, free_mib=100, where="the image store of vmgpu")
            raise HostRefused(short.sentence(), reason=short)

    def copy_flat(self, vm_id: str, target: Path, *, progress: Progress) -> None:
        self._note("copy_flat")
        self.copied = target
        progress(50)

    def _note(self, verb: str) -> None:
        self.asked.append(verb)


@dataclass
class PlayedCarver:
    """Cuts and gives back on paper."""

    host: PlayedHost

    def carve(self, ref: SliceRef) -> Carved:
        self.host.asked.append(f"carve {ref.id}")
        return Carved((DEVICE,))

    def release(self, ref: SliceRef) -> None:
        self.host.asked.append(f"release {ref.id}")


class PlayedWorld:
    """What a step may touch, all on paper; `now` is NOON unless said."""

    def __init__(self, folder: Path, *, now: datetime = NOON, settings: dict[str, Any] | None = None, **host: Any):
        self.settings = Settings(data_dir=folder, **settings or {})
        self.now = now
        self.our_login, self.our_key, self.our_public_key = "vmgpu", "secret", "ssh-ed25519 CCCC vmgpu"
        self.host: Any = PlayedHost(**host)
        self.said: list[tuple[ReasonCode, int]] = []

    @property
    def asked(self) -> list[str]:
        """The verbs that changed something, in order."""
        return list(self.host.asked)

    @property
    def boot_id(self) -> str:
        return str(self.host.boot_id())

    def carver(self, mode: str, framework: str | None = None) -> PlayedCarver:
        return PlayedCarver(self.host)

    def store_path(self, image_id: str) -> Path:
        return self.settings.images_dir / f"image-{image_id}.qcow2"

    def progress(self, code: ReasonCode) -> Progress:
        return lambda percent: self.said.append((code, percent))


class House:
    """An installation that works, in this process: its rows, its worker, and a hand at each simulated host."""

    def __init__(self, settings: Settings, db: Database, me: Actor) -> None:
        self.settings, self.db, self.me = settings, db, me
        self.worker = Worker(db, settings)
        self.worker.start()
        self.hands: dict[str, FakeAdmin] = {}
        self.foreign: dict[str, str] = {}

    def host(
        self, name: str = "h1", cards: str = "A100-40GB", *, mood: str = "cheerful", **numbers: float
    ) -> FakeAdmin:
        """A simulated host with a domain of somebody else on it; its mood begins once it is surveyed."""
        hosts.add(self.db, self.me, HostRequest(name=name, uri=f"fake://{cards}"))
        self.until(lambda: self.row(Host, name).state is HostState.ready)
        with self.db.read() as session:
            installation = setting(session, "installation") or ""
        hand = self.hands[name] = fake_admin(host_ref(self.row(Host, name), installation, self.settings))
        self.foreign[name] = hand.define_foreign("somebody-elses", installation="another")
        hand.set_mood(mood, **{"boot": 0.05, "off": 0.02, "after": 0.1} | numbers)
        return hand

    def request(self, name: str = "s1", profile: str = "3g.20gb", **given: Any) -> VM:
        """One VM of a flavor with this profile."""
        with suppress(Conflict):  # the flavor is there already
            flavor = FlavorRequest(name=profile, vcpus=1, memory=1024, disk=2, profile=profile)
            flavors.add(self.db, self.me, flavor)
        asked = VMRequest(**{"name": name, "flavor": profile, "image": "base"} | given)
        return vms.request(self.db, self.settings, self.me, asked)[0]

    def row(self, kind: type[Row], name: str) -> Row:
        """The row of this name as it is now."""
        with self.db.read() as session:
            return session.exec(select(kind).where(kind.name == name)).one()  # type: ignore[attr-defined]

    def there(self, kind: type[Row], name: str) -> bool:
        """Whether there is a row of this name."""
        with self.db.read() as session:
            return session.exec(select(kind).where(kind.name == name)).first() is not None  # type: ignore[attr-defined]

    def vm(self, name: str = "s1") -> VM:
        """The VM of this name as it is now."""
        return self.row(VM, name)

    def vm_of(self, vm_id: str) -> VM:
        """The VM of this id as it is now."""
        with self.db.read() as session:
            return session.get_one(VM, vm_id)

    def slices(self, name: str = "s1") -> list[Slice]:
        """The rows of what the VM holds."""
        with self.db.read() as session:
            return list(session.exec(select(Slice).where(Slice.vm_id == self.vm(name).id)).all())

    def events(self, name: str = "s1") -> list[Event]:
        """What happened to the VM, in order."""
        with self.db.read() as session:
            return list(session.exec(select(Event).where(Event.vm_id == self.vm(name).id).order_by(Event.id)).all())  # type: ignore[arg-type]

    def until(self, true: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for something to become true."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                with self.db.read() as session:
                    rows = session.exec(select(VM)).all()
                raise AssertionError([(vm.name, vm.state.value, vm.wanted.value, vm.reason) for vm in rows])
            time.sleep(0.02)

    def reaches(self, state: VMState, name: str = "s1", *, seconds: float = 60) -> VM:
        """Wait until the VM has settled in a state."""
        self.until(lambda: self._settled(self.vm(name), state), seconds)
        return self.vm(name)

    def empty(self) -> None:
        """Release all; nothing is left of it anywhere, each slice went back once, what is foreign was not touched."""
        for hand in self.hands.values():
            hand.set_mood("cheerful")
        with self.db.read() as session:
            left = session.exec(select(VM).where(VM.state != VMState.gone)).all()
        for vm in left:
            vms.release(self.db, self.me, vm.id)
        for vm in left:
            self.until(lambda vm=vm: self.vm_of(vm.id).state is VMState.gone)  # type: ignore[misc]
        with self.db.read() as session:
            assert session.exec(select(Slice)).all() == []
        for name, hand in self.hands.items():
            seen, counts = hand.everything(), hand.counts()
            assert seen.leaks([self.foreign[name]]) == ()
            assert self.foreign[name] in [domain.id for domain in seen.domains]
            assert counts["freed"] == counts["cut"]
            assert [counts[what] for what in FORBIDDEN] == [0] * len(FORBIDDEN), counts

    def close(self) -> None:
        """End the worker and let go of everything."""
        self.worker.stop(5)
        for hand in self.hands.values():
            hand.close()
        self.db.close()

    def _settled(self, vm: VM, state: VMState) -> bool:
        wishes = vm.build > vm.built or vm.boots > vm.booted or vm.capture_as
        return vm.state is state and vm.claim_token is None and not (wishes and state is VMState.running)


FORBIDDEN = ("double_carve", "foreign_touched", "released_in_use", "uncut_device", "memory_overrun")
