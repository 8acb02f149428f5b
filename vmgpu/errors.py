"""Deliberate errors, and the Reasons that rows keep."""

from __future__ import annotations

from typing import Any

from vmgpu.reasons import Reason as Reason
from vmgpu.reasons import ReasonCode as ReasonCode
from vmgpu.reasons import reason as reason


class VmgpuError(Exception):
    """What went wrong on purpose: code, HTTP status, message, hint; `retry`: the same call may work later."""

    code = "error"
    status = 500
    retry = False

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def as_dict(self) -> dict[str, Any]:
        """The error as REST answers it and the command line prints it."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "field": self.where, "retry": self.retry}


class Invalid(VmgpuError):
    """The request itself is wrong."""

    code, status = "invalid", 422


class Unauthenticated(VmgpuError):
    """Nobody, or nobody we know, asked."""

    code, status = "unauthenticated", 401


class Forbidden(VmgpuError):
    """This person may not do this."""

    code, status = "forbidden", 403


class NotFound(VmgpuError):
    """No such thing, or none that this person may see."""

    code, status = "not_found", 404


class Conflict(VmgpuError):
    """The thing is not in a state for this."""

    code, status = "conflict", 409


class Impossible(VmgpuError):
    """No host could ever hold this, even when empty."""

    code, status = "impossible", 409


class TooLarge(VmgpuError):
    """More bytes or more items than one call takes."""

    code, status = "too_large", 413


class Unavailable(VmgpuError):
    """A part that answers the question is not there now."""

    code, status, retry = "unavailable", 503, True


class SetupError(VmgpuError):
    """This machine or its settings lack something; the hint says what to do."""

    code, status = "setup", 500


class HostUnreachable(VmgpuError):
    """The host did not answer: its VMs keep state and slices, and take no step until it does."""

    code, status, retry = "host_unreachable", 503, True


class HostRefused(VmgpuError):
    """The host answered, and said no; `reason` names the cause where we know it."""

    code, status = "host_refused", 502

    def __init__(self, message: str, *, hint: str = "", where: str = "", reason: Reason | None = None) -> None:
        super().__init__(message, hint=hint, where=where)
        self.reason = reason
