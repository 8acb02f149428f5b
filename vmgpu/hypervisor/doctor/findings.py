"""What the doctor is told beside the host's facts, and what it says: plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Level(StrEnum):
    """`warning`: something is slower, riskier or unknown; `broken`: something wanted cannot work."""

    ok = "ok"
    warning = "warning"
    broken = "broken"


@dataclass(frozen=True)
class Check:
    """One look at a host or at one card (`card-group:0000:41:00.0`); only `ok` may come without a cure."""

    id: str
    level: Level
    seen: str
    means: str
    cure: str = ""

    def as_dict(self) -> dict[str, str]:
        """The form that REST and --json answer."""
        return {name: str(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Cause:
    """Why a message was printed; `matched` is the line that led here."""

    id: str
    title: str
    means: str
    cure: str
    matched: str

    def as_dict(self) -> dict[str, str]:
        """The form that REST and --json answer."""
        return asdict(self)


@dataclass(frozen=True)
class LibvirtSeen:
    """What libvirt and vmgpu itself know of a host; None is unknown."""

    remote: bool | None = None
    libvirt: str | None = None
    qemu: str | None = None
    efi: bool | None = None  # a firmware that <os firmware="efi"> can choose
    iommu: bool | None = None  # libvirt's own word on the host's IOMMU
    hostdevs: tuple[str, ...] | None = None  # kinds of host devices that a domain may take: pci, mdev, usb, …
    accel: str | None = None  # kvm or tcg
    accel_why: str = ""
    pool: str | None = None
    pool_total_gib: int | None = None
    pool_free_gib: int | None = None
    network: str | None = None
    network_active: bool | None = None
    network_range: str = ""
    images: tuple[str, ...] | None = None  # copies of images in our pool, by their files' names
    mdev_parents: Mapping[str, bool | None] = field(default_factory=dict)  # named by the settings: known to libvirt?
    device_ids: tuple[str, ...] = ()  # ids of cards on this host beside those of the makers that we know


def ok(id: str, seen: str, means: str) -> Check:
    """Nothing to do."""
    return Check(id, Level.ok, seen, means)


def warning(id: str, seen: str, means: str, cure: str) -> Check:
    """Slower, riskier or unknown."""
    return Check(id, Level.warning, seen, means, cure)


def broken(id: str, seen: str, means: str, cure: str) -> Check:
    """Something wanted cannot work."""
    return Check(id, Level.broken, seen, means, cure)


def unseen(words: str, hint: str) -> Check:
    """The one finding at a host that nobody could look at."""
    cure = hint or "Check its network, its SSH and its libvirtd; then ask again."
    return broken("host", words, "Nothing on the host could be looked at; its VMs keep their state meanwhile.", cure)
