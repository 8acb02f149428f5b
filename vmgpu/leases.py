"""What a VM's lease and its grace time ask for, and when: pure functions of a view and a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from vmgpu.errors import Reason, ReasonCode, reason
from vmgpu.models import OnStop, VMState, Wanted
from vmgpu.settings import Settings
from vmgpu.units import say_span, say_time
from vmgpu.views import VMView

S = VMState


@dataclass(frozen=True)
class LeaseNews:
    """What the lease asks for now: changes to the row, and what to tell."""

    changes: Mapping[str, Any]
    because: Reason
    kind: str


_WARNINGS = (timedelta(hours=24), timedelta(hours=1), timedelta(minutes=10))


def lease(vm: VMView, at: datetime, settings: Settings) -> LeaseNews | None:
    """The next thing that the lease or the grace time asks for at this moment; None: nothing."""
    if vm.state in (S.releasing, S.gone) or vm.wanted is Wanted.gone:
        return None
    if vm.delete_at and vm.delete_at <= at:
        return LeaseNews({"wanted": Wanted.gone}, reason(ReasonCode.grace_ended), "grace_ended")
    if vm.expires_at and vm.expires_at <= at and not vm.delete_at:
        delete_at = vm.expires_at + settings.grace
        changes: dict[str, Any] = {"delete_at": delete_at, "stop_mode": OnStop.release, "warned": passed(delete_at, at)}
        if vm.wanted is Wanted.running:
            changes["wanted"] = Wanted.stopped
        ended = reason(ReasonCode.lease_ended, delete_at=say_time(delete_at), vm=vm.title)
        return LeaseNews(changes, ended, "lease_ended")
    end, code = (vm.delete_at, ReasonCode.grace_warning) if vm.delete_at else (vm.expires_at, ReasonCode.lease_warning)
    if end:
        due = [key for key in passed(end, at) if key not in vm.warned]
        if due:
            warned = [*vm.warned, *due]
            return LeaseNews({"warned": warned}, reason(code, left=say_span(end - at), vm=vm.title), code.value)
    return None


def passed(end: datetime, at: datetime) -> list[str]:
    """The warnings that an end set at this moment does not get: a lease of two hours needs none a day before."""
    return [_key(warning) for warning in _WARNINGS if end - warning <= at]


def next_moment(vm: VMView) -> datetime | None:
    """When the lease, a warning or the time of keeping slices is next due."""
    if vm.state in (S.releasing, S.gone):
        return None
    end = vm.delete_at or vm.expires_at
    moments = [end, vm.keep_until if vm.holds and vm.state is S.stopped else None]
    if end:
        moments += [end - w for w in _WARNINGS if _key(w) not in vm.warned]
    return min((moment for moment in moments if moment), default=None)


def _key(warning: timedelta) -> str:
    return say_span(warning)
