"""The shapes that REST answers, the command line prints and the pages draw.

Those that come by the thousand are plain dataclasses: pydantic tells and writes them all the same, and one is made in a
tenth of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel


@dataclass(slots=True)
class Said:
    """A Reason in words."""

    code: str
    sentence: str
    cure: str


@dataclass(slots=True)
class SliceOut:
    """A piece of a card. Sizes in cells of the card's memory grid, compute slices, and MiB."""

    gpu: str
    model: str
    emulated: bool
    profile: str
    start: int
    cells: int
    compute: int
    memory_mib: int
    memory_share: float
    compute_share: float
    vm: str | None = None


@dataclass(slots=True)
class OtherOut:
    """A piece of a card that none of our VMs holds: somebody else's, or an orphan domain's. In cells of its grid."""

    profile: str
    start: int
    cells: int


@dataclass(slots=True)
class VMOut:
    """A virtual machine."""

    id: str
    name: str
    owner: str
    members: list[str]
    state: str
    wanted: str
    since: datetime
    position: int | None
    reason: Said | None
    address: str | None
    login: str | None
    flavor: str
    image: str
    host: str | None
    simulated: bool
    vcpus: int
    memory_mib: int
    disk_gib: int
    profile: str | None
    fgpu: str | None
    slices: list[SliceOut]
    card: str | None
    licence: str | None
    licence_at: datetime | None
    warnings: list[str]
    on_stop: str | None
    capturing: str | None
    lease_ends: datetime | None
    lease_seconds: int
    delete_at: datetime | None
    keeps_slices_until: datetime | None
    host_key: str
    created_at: datetime


class GpuOut(BaseModel):
    """A card with what is cut from it. `mode` None: listed and left alone; `now`: the mode that the host shows it in.

    `offers`: mode → the names of what can be cut; `per_card`: the same, with how many of each an empty card holds;
    `free`: how many more of each fit in its mode now, each instead of the others; `to_cut_again`: what a reboot took
    and VMs still hold; `foreign`: what was cut by others, which is left alone; `orphans`: what domains of ours hold
    that have no row any more; `companions`: functions that go where it goes; `link`: the PCIe link as it runs, and as
    it could.
    """

    id: str
    host: str
    name: str
    model: str
    address: str | None
    emulated: bool
    simulated: bool
    mode: str | None
    state: str
    reason: Said | None
    cells: int
    compute: int
    memory_mib: int | None
    numa_node: int | None
    iommu_group: int | None
    driver: str | None
    uuid: str
    serial: str
    now: str | None
    framework: str | None
    reset_methods: list[str] | None
    companions: list[str]
    bars_mib: list[int]
    link: str
    held_by: str
    offers: dict[str, list[str]]
    per_card: dict[str, dict[str, int]]
    free: dict[str, int]
    to_cut_again: list[str]
    refusals: dict[str, str]
    foreign: list[str]
    others: list[OtherOut]
    orphans: list[str]
    slices: list[SliceOut]


class LicenceOut(BaseModel):
    """How guests with a vGPU get their licence. The token itself is never shown."""

    feature: int
    server: str
    has_token: bool


class HostOut(BaseModel):
    """A host. Memory in MiB; `memory_held_mib` and `vcpus_held` are promised to VMs. None is unknown."""

    id: str
    name: str
    uri: str
    simulated: bool
    state: str
    draining: bool
    reason: Said | None
    threads: int
    vcpus_held: int
    overcommit: float
    memory_mib: int
    memory_held_mib: int
    memory_reserve_mib: int
    disk_gib: int
    disk_free_gib: int | None
    vms: int
    bridge: str | None
    device_ids: list[str]
    mdev_parents: list[str]
    orphans: list[str]
    surveyed_at: datetime | None
    facts: dict[str, Any] | None
    gpus: list[GpuOut]
    licence: LicenceOut | None


class CheckOut(BaseModel):
    """One finding of the doctor. `level`: ok, warning or broken; `means` and `cure` are sentences."""

    id: str
    level: str
    seen: str
    means: str
    cure: str


class DoctorOut(BaseModel):
    """The doctor's answer about a host; `at` is null, and nothing listed, while there is none."""

    host: str
    at: datetime | None
    items: list[CheckOut]


class ShareOut(BaseModel):
    """What a wish becomes on one model of card."""

    model: str
    profile: str
    per_card: int
    memory_percent: int
    compute_percent: int
    says: str


class CarvingOut(BaseModel):
    """All of a host's cards of a model cut into one size: `seats` VMs; `enough`: for as many as were asked for."""

    mode: str
    model: str
    profile: str
    memory_mib: int
    cuda: bool
    per_card: int
    cards: int
    seats: int
    enough: bool


class FlavorOut(BaseModel):
    """A size of VM, and what its GPU wish means on each model that this installation has.

    `warning`: that no host here could ever hold it, where one size is asked for.
    """

    name: str
    vcpus: int
    memory_mib: int
    disk_gib: int
    profile: str | None
    fgpu: str | None
    cuda: bool
    on_stop: str | None
    becomes: list[ShareOut]
    warning: Said | None = None


class ImageOut(BaseModel):
    """A bootable disk. `owner` None: everybody's."""

    id: str
    name: str
    owner: str | None
    state: str
    reason: Said | None
    labels: dict[str, str]
    format: str
    virtual_mib: int
    size_bytes: int
    sha256: str
    copies: list[dict[str, Any]]
    created_at: datetime


class UserOut(BaseModel):
    """A person."""

    id: str
    name: str
    admin: bool
    keys: int
    vms: int
    created_at: datetime


class KeyOut(BaseModel):
    """A public SSH key."""

    id: str
    user: str
    comment: str
    fingerprint: str
    line: str
    created_at: datetime


class TokenOut(BaseModel):
    """A token; its secret is in `secret` only in the answer that made it."""

    id: str
    user: str
    name: str
    kind: str
    created_at: datetime
    expires_at: datetime | None
    secret: str | None = None


class UnitOut(BaseModel):
    """What 1 fGPU is on one model, and what it becomes there. `is_set` false: nobody has said it, so it is a card."""

    model: str
    share: str
    is_set: bool
    becomes: ShareOut | None


class EventOut(BaseModel):
    """What happened. `seconds`: how long the state that ended here took."""

    id: int
    at: datetime
    kind: str
    vm: str | None
    vm_id: str | None
    host: str | None
    state: str | None
    was: str | None
    seconds: float | None
    who: str | None
    reason: Said | None


class StepOut(BaseModel):
    """One filter of the placement, and how many places it left."""

    filter: str
    left: int
    reason: Said | None


class ReachOut(BaseModel):
    """The way into a VM by SSH. `known_hosts`: a line that pins its host key to `alias` (HostKeyAlias).

    `jump`: the host whose SSH server leads to it, where one does; `jump_alias` and `jump_known_hosts` pin that one.
    """

    vm: str
    address: str
    port: int
    login: str
    logins: dict[str, str]
    host_key: str
    alias: str
    known_hosts: str
    jump: str | None
    jump_alias: str | None
    jump_known_hosts: str | None
    command: str
    says: str


class WhyOut(BaseModel):
    """Why a VM waits: each filter of the placement in order, and how many places it left."""

    vm: str
    position: int | None
    reason: Said | None
    steps: list[StepOut]


class LinkOut(BaseModel):
    """A link that signs a person in once."""

    user: str
    url: str
    expires_at: datetime
