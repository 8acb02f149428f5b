"""What a step of a VM's way is given, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from vmgpu.errors import Reason, ReasonCode
from vmgpu.hypervisor import Carver, Hypervisor, Progress
from vmgpu.models import VMState
from vmgpu.settings import Settings
from vmgpu.views import VMView


@dataclass(frozen=True)
class Hop:
    """On to another state. `slices_back`: the hardware has them, the rows may go; `moved`: slices lie elsewhere now."""

    state: VMState
    changes: Mapping[str, Any] = field(default_factory=dict)
    because: Reason | None = None
    slices_back: bool = False
    moved: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Nap:
    """Stay, and look again after so many seconds; None: when a wish, the lease or the host says so.

    `news`: the kind of Event that `because` is worth.
    """

    seconds: float | None
    because: Reason | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    slices_back: bool = False
    news: str = ""


@dataclass(frozen=True)
class Fail:
    """This cannot go on. `blame` (card, host) earns the one retry elsewhere."""

    because: Reason
    blame: str = ""


Outcome = Hop | Nap | Fail


class World(Protocol):
    """What a step may touch: the VM's host, the carvers, and what this installation knows."""

    settings: Settings
    now: datetime
    our_login: str
    our_key: str
    our_public_key: str

    @property
    def host(self) -> Hypervisor: ...
    @property
    def boot_id(self) -> str: ...
    def carver(self, mode: str, framework: str | None) -> Carver: ...
    def store_path(self, image_id: str) -> Path: ...
    def progress(self, code: ReasonCode) -> Progress: ...


Step = Callable[[VMView, World], Outcome]


@dataclass(frozen=True)
class StepOf:
    """A state's step, and how long it may keep a thread."""

    run: Step
    within: timedelta
