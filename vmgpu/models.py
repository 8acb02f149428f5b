"""The nouns as tables. Times are UTC; sizes are in MiB or GiB as the column's name says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Enum,
    Index,
    LargeBinary,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.engine import Dialect
from sqlmodel import Field, SQLModel

from vmgpu.states import CopyState as CopyState
from vmgpu.states import GpuState as GpuState
from vmgpu.states import HostState as HostState
from vmgpu.states import ImageState as ImageState
from vmgpu.states import OnStop as OnStop
from vmgpu.states import TokenKind as TokenKind
from vmgpu.states import VMState as VMState
from vmgpu.states import Wanted as Wanted


def new_id() -> str:
    """A fresh identity; a VM's is its domain's UUID."""
    return str(uuid4())


def now() -> datetime:
    """The present moment, in UTC."""
    return datetime.now(UTC)


class _Utc(TypeDecorator[datetime]):
    """SQLite forgets time zones; everything here is UTC, so it is put back."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def _time(default: Any = None, **column: Any) -> Any:
    return Field(default=default, sa_type=_Utc, **column)


def _made() -> Any:
    return Field(default_factory=now, sa_type=_Utc)


def _enum(kind: type[StrEnum], default: StrEnum | None) -> Any:
    return Field(default=default, sa_type=Enum(kind, native_enum=False, length=20))


def _json(default: Any) -> Any:
    return Field(default_factory=default, sa_type=JSON)


class Row(SQLModel):
    """A table's row. Nobody validates one, so what pydantic would do that with is made when first asked for."""

    model_config = {"defer_build": True}


class Claimed(Row):
    """A row whose machine takes steps: when the next is due, and who is on it until when."""

    due_at: datetime | None = _time(None, index=True)
    wakes: int = 0  # raised by whoever sets due_at from outside, so that a step at work does not sleep through it
    claim_token: str | None = None
    claim_until: datetime | None = _time(None)


class Setting(Row, table=True):
    """What this installation knows of itself: its id, its SSH keys in guests and on hosts, counters."""

    name: str = Field(primary_key=True)
    value: str = Field(sa_type=Text)


class User(Row, table=True):
    """A person."""

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str = Field(unique=True)
    admin: bool = False
    created_at: datetime = _made()


class Key(Row, table=True):
    """A person's public SSH key."""

    __table_args__ = (UniqueConstraint("user_id", "fingerprint"),)
    id: str = Field(default_factory=new_id, primary_key=True)
    user_id: str = Field(foreign_key="user.id", index=True, ondelete="CASCADE")
    line: str = Field(sa_type=Text)
    comment: str = ""
    fingerprint: str
    created_at: datetime = _made()


class Token(Row, table=True):
    """A secret that stands for a person; only its SHA-256 is kept."""

    id: str = Field(default_factory=new_id, primary_key=True)
    user_id: str = Field(foreign_key="user.id", index=True, ondelete="CASCADE")
    kind: TokenKind = _enum(TokenKind, TokenKind.api)
    name: str = ""
    digest: str = Field(unique=True)
    created_at: datetime = _made()
    expires_at: datetime | None = _time(None)


class Flavor(Row, table=True):
    """A size of VM: processors, memory, disk, and the wish for a piece of a card."""

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str = Field(unique=True)
    vcpus: int
    memory_mib: int
    disk_gib: int
    profile: str | None = None
    fgpu: str | None = None
    cuda: bool = False
    on_stop: OnStop | None = _enum(OnStop, None)
    created_at: datetime = _made()


class GpuUnit(Row, table=True):
    """The share of a card of this model that 1 fGPU is; exact, as decimal text."""

    model: str = Field(primary_key=True)
    share: str


class Image(Claimed, table=True):
    """A bootable disk. `owner_id` None: everybody's; else its owner's alone."""

    __table_args__ = (
        UniqueConstraint("owner_id", "name"),
        # in SQL no two NULLs are equal: everybody's images need a rule of their own
        Index(
            "one_public_name",
            "name",
            unique=True,
            sqlite_where=text("owner_id IS NULL"),
            postgresql_where=text("owner_id IS NULL"),
        ),
    )
    id: str = Field(default_factory=new_id, primary_key=True)
    name: str = Field(index=True)
    owner_id: str | None = Field(default=None, foreign_key="user.id", index=True)
    state: ImageState = _enum(ImageState, ImageState.ready)
    reason: Mapping[str, Any] | None = Field(default=None, sa_type=JSON)
    labels: Mapping[str, str] = _json(dict)
    format: str = "qcow2"
    virtual_mib: int = 0
    size_bytes: int = Field(default=0, sa_type=BigInteger)
    sha256: str = ""
    source_vm: str | None = None
    logins: list[str] = _json(list)
    created_at: datetime = _made()

    @property
    def simulated(self) -> bool:
        """Whether it is one of simulated hosts, where nothing is in it."""
        return bool(self.labels.get("simulated"))

    @property
    def volume(self) -> str:
        """The file's name in the store and in every pool; simulated hosts have `base` from the start."""
        if self.simulated and self.source_vm is None:
            return "base.qcow2"
        return f"image-{self.id}.{self.format}"

    @property
    def copy_mib(self) -> int:
        """The room that a copy takes in a host's pool; simulated hosts count what the disk would be."""
        if self.simulated:
            return self.virtual_mib if self.source_vm else 0
        return -(-self.size_bytes // 2**20)


class ImageCopy(Claimed, table=True):
    """An image in one host's pool; made at first use."""

    __table_args__ = (UniqueConstraint("image_id", "host_id"),)
    id: str = Field(default_factory=new_id, primary_key=True)
    image_id: str = Field(foreign_key="image.id", index=True)
    host_id: str = Field(foreign_key="host.id", index=True)
    state: CopyState = _enum(CopyState, CopyState.wanted)
    percent: int = 0
    reason: Mapping[str, Any] | None = Field(default=None, sa_type=JSON)


class Host(Claimed, table=True):
    """A machine that runs guests. `version` guards its processors, memory and disk against two placements at once."""

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str = Field(unique=True)
    uri: str
    state: HostState = _enum(HostState, HostState.new)
    reason: Mapping[str, Any] | None = Field(default=None, sa_type=JSON)
    draining: bool = False
    version: int = 0
    overcommit: float = 4.0
    bridge: str | None = None
    emulate: list[str] = _json(list)
    device_ids: list[str] = _json(list)
    mdev_parents: list[str] = _json(list)
    licence: Mapping[str, Any] = _json(dict)
    host_key: str | None = Field(default=None, sa_type=Text)
    boot_id: str = ""
    facts: Mapping[str, Any] | None = Field(default=None, sa_type=JSON)
    orphans: list[str] = _json(list)
    surveyed_at: datetime | None = _time(None)
    survey_asked: datetime | None = _time(None)
    doctor_asked: datetime | None = _time(None)
    doctor: list[Mapping[str, str]] = _json(list)
    doctor_at: datetime | None = _time(None)
    unreachable_since: datetime | None = _time(None)
    threads: int = 0
    memory_mib: int = 0
    disk_gib: int = 0
    created_at: datetime = _made()

    @property
    def simulated(self) -> bool:
        """True for fake:// hosts; they are called simulated wherever they show."""
        return self.uri.startswith("fake:")


class Gpu(Claimed, table=True):
    """A card. `version` guards its slices against two placements at once; `key` finds it again in the next survey.

    Its claim is held by the one step that cuts or gives back at a time; nothing is ever due of itself.
    """

    __table_args__ = (UniqueConstraint("host_id", "key"),)
    id: str = Field(default_factory=new_id, primary_key=True)
    host_id: str = Field(foreign_key="host.id", index=True)
    key: str
    name: str = ""
    model: str
    address: str | None = None
    mode: str | None = None
    state: GpuState = _enum(GpuState, GpuState.ready)
    reason: Mapping[str, Any] | None = Field(default=None, sa_type=JSON)
    emulated: bool = False
    version: int = 0
    facts: Mapping[str, Any] = _json(dict)
    created_at: datetime = _made()


class Slice(Row, table=True):
    """One piece of one card, held by one VM. The row is deleted last, when the hardware has it back."""

    __table_args__ = (UniqueConstraint("gpu_id", "start"), UniqueConstraint("gpu_id", "slot"))
    id: str = Field(default_factory=new_id, primary_key=True)
    gpu_id: str = Field(foreign_key="gpu.id", index=True)
    vm_id: str = Field(foreign_key="vm.id", index=True)
    profile: str
    start: int
    slot: int = 0  # which of the card's virtual functions is its: the lowest that no other slice has
    cells: int
    compute: int
    memory_mib: int
    created_at: datetime = _made()


class VM(Claimed, table=True):
    """A virtual machine, and at the same time its entry in the queue. People set wishes; the machine sets the state."""

    __table_args__ = (
        Index(
            "one_name_per_owner",
            "owner_id",
            "name",
            unique=True,
            sqlite_where=text("state != 'gone'"),
            postgresql_where=text("state != 'gone'"),
        ),
        Index("vm_by_state", "state", "ticket"),
    )
    id: str = Field(default_factory=new_id, primary_key=True)
    name: str
    owner_id: str = Field(foreign_key="user.id", index=True)
    image_id: str = Field(foreign_key="image.id", index=True)
    flavor: str
    vcpus: int
    memory_mib: int
    disk_gib: int
    profile: str | None = None
    fgpu: str | None = None
    cuda: bool = False

    # the wishes
    wanted: Wanted = _enum(Wanted, Wanted.running)
    build: int = 1
    boots: int = 1
    capture_as: str | None = None
    on_stop: OnStop | None = _enum(OnStop, None)
    stop_mode: OnStop | None = _enum(OnStop, None)
    lease_seconds: int = 0
    expires_at: datetime | None = _time(None)
    delete_at: datetime | None = _time(None)

    # the machine's own
    state: VMState = _enum(VMState, VMState.pending)
    state_since: datetime = _made()
    step_since: datetime | None = _time(None)
    reason: Mapping[str, Any] | None = Field(default=None, sa_type=JSON)
    stopped_because: Mapping[str, Any] | None = Field(default=None, sa_type=JSON)
    ticket: int = 0
    host_id: str | None = Field(default=None, foreign_key="host.id", index=True)
    holds: bool = False
    has_disk: bool = False
    built: int = 0
    booted: int = 0
    ever_ran: bool = False
    tries: int = 0
    restarts: int = 0
    retry: bool = False
    excluded: list[str] = _json(list)
    keep_until: datetime | None = _time(None)
    host_boot_id: str = ""
    devices: list[Mapping[str, Any]] = _json(list)
    numa_node: int | None = None
    numa_why: str = ""
    address: str | None = None
    card: str | None = None
    licence: str | None = None
    licence_at: datetime | None = _time(None)
    warnings: list[str] = _json(list)
    warned: list[str] = _json(list)
    console_asked: datetime | None = _time(None)
    host_key: str = Field(default="", sa_type=Text)
    host_key_private: str = Field(default="", sa_type=Text)
    created_at: datetime = _made()
    ran_at: datetime | None = _time(None)
    gone_at: datetime | None = _time(None)


class VMMember(Row, table=True):
    """A person who sees and uses a VM; its owner is one."""

    vm_id: str = Field(foreign_key="vm.id", primary_key=True)
    user_id: str = Field(foreign_key="user.id", primary_key=True, index=True)
    login: str


class Console(Row, table=True):
    """The end of a VM's serial console, kept when it fails or goes."""

    vm_id: str = Field(foreign_key="vm.id", primary_key=True)
    text: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    at: datetime = _made()


class Event(Row, table=True):
    """What happened, in order. `seconds`: how long the state that ended here took."""

    id: int | None = Field(default=None, primary_key=True)
    at: datetime = Field(default_factory=now, sa_type=_Utc, index=True)
    vm_id: str | None = Field(default=None, index=True)
    host_id: str | None = Field(default=None, index=True)
    image_id: str | None = Field(default=None, index=True)
    kind: str
    state: str | None = None
    was: str | None = None
    seconds: float | None = None
    who: str | None = None
    reason: Mapping[str, Any] | None = Field(default=None, sa_type=JSON)
