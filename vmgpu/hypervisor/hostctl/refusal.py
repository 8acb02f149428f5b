"""The one way to say no: a code for the service, a sentence and a hint for a person."""

from __future__ import annotations

import errno
import os
from typing import Any

CODES = (
    "bad_argument",
    "unknown_verb",
    "not_root",
    "not_found",
    "not_supported",
    "in_use",
    "busy",
    "refused",
    "no_nvml",
    "dead",
    "timeout",
    "needs_reset",
    "failed",
)
_OF_KERNEL = {errno.EBUSY: "busy", errno.ENOENT: "not_found"}


class Refusal(Exception):
    """A verb that ends with `"ok": false`."""

    def __init__(self, code: str, message: str, *, hint: str = "", number: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.number = number

    def as_dict(self) -> dict[str, Any]:
        """The error as the answer carries it."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "errno": self.number}


def of_kernel(error: OSError, doing: str, *, hint: str = "") -> Refusal:
    """What the kernel or a driver answered to a write."""
    number = error.errno or 0
    code = _OF_KERNEL.get(number, "refused")
    if number in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
        code, hint = "not_root", "hostctl changes a host only as root: run it through sudo."
    name = errno.errorcode.get(number, str(number))
    return Refusal(code, f"{doing}: {os.strerror(number)} ({name})", hint=hint, number=error.errno)
