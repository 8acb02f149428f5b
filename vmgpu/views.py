"""Rows as the frozen values that steps are given: no session, no row, nothing that changes under them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlmodel import Session, col, select

from vmgpu.hypervisor import Emulated, GpuRef, HostDevice, ImageRef, Mdev, Network, NetworkRef, Pci, SliceRef
from vmgpu.models import (
    VM,
    CopyState,
    Gpu,
    Host,
    Image,
    ImageCopy,
    Key,
    OnStop,
    Slice,
    User,
    VMMember,
    VMState,
    Wanted,
)

_DEVICES = {"pci": Pci, "mdev": Mdev, "emulated": Emulated}
OUR_NETWORK = "vmgpu"
NVIDIA = "10de"
_LICENSED = ("vgpu", "mixed", "mig")


@dataclass(frozen=True)
class Login:
    """A member's Linux account in the guest, with that person's keys."""

    name: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class CardView:
    """What a card must look like from inside the guest."""

    emulated: bool
    pci_ids: tuple[str, ...]
    bars_mib: tuple[int, ...]
    memory_mib: int | None


@dataclass(frozen=True)
class LicenceView:
    """How a guest with a vGPU gets its licence: NVIDIA's feature type, an old server as NAME[:PORT], the token."""

    feature: int = 1
    server: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class NumaView:
    """The NUMA node of a VM's card, and what other VMs left free there; only of hosts that have several nodes."""

    node: int
    memory_free_mib: int
    threads_free: int


@dataclass(frozen=True)
class VMView:
    """A VM as its steps see it."""

    id: str
    name: str
    owner: str
    state: VMState
    wanted: Wanted
    build: int
    built: int
    boots: int
    booted: int
    on_stop: OnStop | None
    stop_mode: OnStop | None
    state_since: datetime
    step_since: datetime | None
    lease_seconds: int
    expires_at: datetime | None
    delete_at: datetime | None
    keep_until: datetime | None
    warned: tuple[str, ...]
    vcpus: int
    memory_mib: int
    disk_gib: int
    holds: bool
    has_disk: bool
    ever_ran: bool
    retry: bool
    tries: int
    restarts: int
    capture_as: str | None
    wakes: int
    console_asked: datetime | None
    host_id: str | None
    host_name: str
    host_boot_id: str
    simulated: bool
    network: NetworkRef
    accel: str
    installation: str
    image: ImageRef
    image_name: str
    cuda: bool
    copy_state: CopyState | None
    copy_percent: int
    copy_reason: Mapping[str, Any] | None
    slices: tuple[SliceRef, ...]
    gpu: CardView | None
    devices: tuple[HostDevice, ...]
    licensing: LicenceView | None
    licence: str | None
    licence_at: datetime | None
    ran_at: datetime | None
    numa: NumaView | None
    numa_node: int | None
    numa_why: str
    logins: tuple[Login, ...]
    address: str | None
    host_key: str
    host_key_private: str

    @property
    def mac(self) -> str:
        """Derived from the id, the same after any crash; 40 bits of it, so that no two on a bridge meet."""
        digest = sha256(self.id.encode()).digest()
        return "52:" + ":".join(f"{byte:02x}" for byte in digest[:5])  # 52: locally administered, for one machine

    @property
    def title(self) -> str:
        """The name that people know it by on every host."""
        return f"{self.owner}/{self.name}"


def view(session: Session, vm: VM, *, installation: str) -> VMView:
    """The VM with all its steps need, read in one go."""
    host = session.get(Host, vm.host_id) if vm.host_id else None
    image = session.get_one(Image, vm.image_id)
    copy = _copy(session, vm.image_id, vm.host_id) if vm.host_id else None
    cut = session.exec(
        select(Slice, Gpu).join(Gpu, col(Gpu.id) == Slice.gpu_id).where(Slice.vm_id == vm.id).order_by(Slice.start)  # type: ignore[arg-type]
    ).all()
    facts = (host.facts if host else None) or {}
    same = {
        name: getattr(vm, name)
        for name in VMView.__dataclass_fields__
        if name in VM.model_fields and name not in ("warned", "devices", "cuda")
    }
    return VMView(
        **same,
        warned=tuple(vm.warned),
        devices=devices_of(vm.devices),
        owner=session.get_one(User, vm.owner_id).name,
        host_name=host.name if host else "",
        simulated=bool(host and host.simulated),
        network=network_of(host),
        accel=str(facts.get("accel", "")),
        installation=installation,
        image=image_ref(image),
        image_name=image.name,
        cuda="cuda" in image.labels,
        copy_state=copy.state if copy else None,
        copy_percent=copy.percent if copy else 0,
        copy_reason=copy.reason if copy else None,
        slices=tuple(slice_ref(piece, gpu) for piece, gpu in cut),
        gpu=_card(cut[0][1]) if cut else None,
        licensing=_licensing(host, [gpu for _, gpu in cut]),
        numa=_numa(session, vm, facts, cut[0][1]) if cut else None,
        logins=_logins(session, vm.id),
    )


def image_ref(image: Image) -> ImageRef:
    """An image as hosts are told of it."""
    return ImageRef(
        id=image.id, volume=image.volume, virtual_mib=image.virtual_mib, has_init=image.labels.get("init") != "none"
    )


def network_of(host: Host | None) -> NetworkRef:
    """The host's way out for guests."""
    if host and host.bridge:
        return NetworkRef(Network.bridge, host.bridge)
    return NetworkRef(Network.nat, OUR_NETWORK)


def slice_ref(piece: Slice, gpu: Gpu) -> SliceRef:
    """A slice as carvers are told of it."""
    facts = gpu.facts
    card = GpuRef(
        gpu.id,
        gpu.mode or "",
        gpu.model,
        gpu.address,
        tuple(facts.get("companions", ())),
        facts.get("framework"),
        bool(facts.get("on_functions")),
        facts.get("parent"),
        tuple(facts.get("mates", ())),
        facts.get("partition"),
    )
    cuts = facts.get("cuts", {}).get(gpu.mode) or {"pieces": ()}
    type = next((each["type"] for each in cuts["pieces"] if each["name"] == piece.profile), None)
    return SliceRef(
        piece.id, piece.vm_id, card, piece.profile, piece.start, piece.cells, piece.compute, piece.memory_mib,
        piece.slot, type,
    )  # fmt: skip


def devices_of(stored: list[Mapping[str, Any]]) -> tuple[HostDevice, ...]:
    """The devices that `devices_as` stored."""
    return tuple(_DEVICES[one["kind"]](**{k: v for k, v in one.items() if k != "kind"}) for one in stored)


def devices_as(devices: tuple[HostDevice, ...]) -> list[Mapping[str, Any]]:
    """Devices in the form that rows keep."""
    return [{"kind": type(device).__name__.lower(), **vars(device)} for device in devices]


def _licensing(host: Host | None, cards: Iterable[Gpu]) -> LicenceView | None:
    """None where nothing is to be licensed: only a vGPU of NVIDIA's asks for it, and none that is played."""
    if host is None or host.simulated:
        return None
    asks = any(gpu.mode in _LICENSED and gpu.facts.get("vendor") == NVIDIA for gpu in cards)
    return LicenceView(**host.licence) if asks else None


def _numa(session: Session, vm: VM, facts: Mapping[str, Any], gpu: Gpu) -> NumaView | None:
    """None where the card's node is unknown, or the host's only one."""
    nodes = {each["id"]: each for each in facts.get("numa", ())}
    own = nodes.get(gpu.facts.get("numa_node"))
    if own is None or len(nodes) < 2 or gpu.emulated:
        return None
    there = select(VM).where(VM.host_id == vm.host_id, VM.id != vm.id, col(VM.holds), VM.numa_node == own["id"])
    others = session.exec(there).all()
    kept = -(-own["memory_mib"] // 20)  # as of the whole host
    return NumaView(
        own["id"],
        own["memory_mib"] - kept - sum(each.memory_mib for each in others),
        _how_many(own["cpus"]) - sum(each.vcpus for each in others),
    )


def _how_many(cpus: str) -> int:
    """The CPUs in a range list like `0-7,16`."""
    spans = [each.split("-") for each in cpus.split(",") if each]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def _card(gpu: Gpu) -> CardView:
    facts = gpu.facts
    pci = f"{facts.get('vendor', '')}:{facts.get('device', '')}"
    return CardView(gpu.emulated, (pci,), tuple(facts.get("bars_mib", ())), facts.get("memory_mib"))


def _copy(session: Session, image_id: str, host_id: str) -> ImageCopy | None:
    return session.exec(select(ImageCopy).where(ImageCopy.image_id == image_id, ImageCopy.host_id == host_id)).first()


def _logins(session: Session, vm_id: str) -> tuple[Login, ...]:
    members = session.exec(select(VMMember).where(VMMember.vm_id == vm_id).order_by(VMMember.login)).all()
    keys: dict[str, list[str]] = {}
    for key in session.exec(select(Key).where(col(Key.user_id).in_([m.user_id for m in members]))).all():
        keys.setdefault(key.user_id, []).append(key.line)
    return tuple(Login(member.login, tuple(keys.get(member.user_id, ()))) for member in members)
