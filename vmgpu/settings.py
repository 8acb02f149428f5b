"""The only reader of the environment."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from vmgpu.errors import SetupError
from vmgpu.units import parse_duration


class Accel(StrEnum):
    """How guests are run: `auto` asks the host once whether KVM really runs one."""

    auto = "auto"
    kvm = "kvm"
    tcg = "tcg"


def _duration(value: Any) -> Any:
    return parse_duration(value, bare="s") if isinstance(value, str) else value


Duration = Annotated[timedelta, BeforeValidator(_duration)]


class Settings(BaseSettings):
    """Everything that can be set from outside, with its default; names are VMGPU_ + the field's name."""

    model_config = SettingsConfigDict(env_prefix="VMGPU_", extra="ignore")

    data_dir: Path = Field(default_factory=lambda: Path.home() / ".local/share/vmgpu")
    database_url: str = ""
    bind: str = "127.0.0.1:8000"
    public_url: str = ""
    admin_token: str | None = None
    accel: Accel = Accel.auto
    lease: Duration = timedelta(hours=8)
    max_lease: Duration = timedelta(days=30)
    grace: Duration = timedelta(days=7)
    keep_gpu: Duration = timedelta(minutes=15)
    max_vms_per_request: int = 500
    ssh_user: str = "vmgpu"
    guest_timeout: Duration = timedelta(minutes=15)
    # how long libvirt may take to start a VM; all memory of one with a real card is pinned first
    start_timeout: Duration = timedelta(seconds=60)
    start_timeout_per_gib: Duration = timedelta(seconds=1)
    shutdown_timeout: Duration = timedelta(seconds=90)
    host_call_timeout: Duration = timedelta(seconds=60)
    sync_every: Duration = timedelta(seconds=30)
    claim_hold: Duration = timedelta(seconds=45)  # how long a claim outlives the process that made it
    workers: int = 64
    # guest images that a checkout built; a place that QEMU's own user can read, which a home folder is not
    cache_dir: Path = Path("/var/cache/vmgpu")
    log: str = "json"
    crash_at: str = ""

    @field_validator("admin_token")
    @classmethod
    def _token(cls, value: str | None) -> str | None:
        if value is None:
            return None
        token = value.strip(" ")  # HTTP drops blanks at a header's end, so they are no part of it on either side
        if len(token) < 16 or not token.isprintable():
            raise ValueError("it must be 16 or more printable characters, blanks at its ends not counted")
        return token

    @property
    def url(self) -> str:
        """The database's address: PostgreSQL where set, else SQLite in the data folder."""
        return self.database_url or f"sqlite:///{self.data_dir / 'vmgpu.sqlite'}"

    @property
    def embedded(self) -> bool:
        """True on SQLite: one process does everything."""
        return self.url.startswith("sqlite")

    @property
    def host(self) -> str:
        return self.bind.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.bind.rpartition(":")[2])

    @property
    def base_url(self) -> str:
        """Where people reach this service; no slash at the end."""
        return (self.public_url or f"http://{self.bind}").rstrip("/")

    @property
    def images_dir(self) -> Path:
        """Where the master copy of every image lies."""
        return self.data_dir / "images"

    @property
    def fake_dir(self) -> Path:
        """Where simulated hosts keep their state, outside the database."""
        return self.data_dir / "fake"


def read_settings(**overrides: Any) -> Settings:
    """The settings as the environment has them now; SetupError names what is wrong."""
    try:
        return Settings(**overrides)
    except ValidationError as bad:
        first = bad.errors()[0]
        name = "VMGPU_" + "_".join(str(part) for part in first["loc"]).upper()
        said = first["msg"].removeprefix("Value error, ")
        raise SetupError(f"{name}: {said}", hint=f"Correct {name} and start again.") from None


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once."""
    return read_settings()
