"""Worlds for steps: a VM as plain values, and a small host that does what it is told and remembers what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vmgpu.errors import HostRefused, ReasonCode, reason
from vmgpu.hypervisor import (
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
from vmgpu.models import CopyState, VMState, Wanted
from vmgpu.settings import Settings
from vmgpu.views import CardView, Login, VMView

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
        "numa_node": None,
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
    card: str = "seen"
    card_there: bool = True
    boot: str = "boot-1"
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
        return b""

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

    def survey(self, gpu: GpuRef) -> tuple[str, ...]:
        return ()

    def carve(self, ref: SliceRef) -> tuple[HostDevice, ...]:
        self.host.asked.append(f"carve {ref.id}")
        return (DEVICE,)

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

    def carver(self, mode: str) -> PlayedCarver:
        return PlayedCarver(self.host)

    def store_path(self, image_id: str) -> Path:
        return self.settings.images_dir / f"image-{image_id}.qcow2"

    def progress(self, code: ReasonCode) -> Progress:
        return lambda percent: self.said.append((code, percent))
