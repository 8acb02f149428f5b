"""How hardware and driver say no: one refusal, read as an errno by sysfs and as a return code by NVML."""

from __future__ import annotations

import errno
from enum import IntEnum


class Nvml(IntEnum):
    """The return codes of nvml.h that this host uses."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    UNKNOWN = 999


class Refused(Exception):
    """The hardware, the driver or the kernel will not do this now."""

    def __init__(self, text: str, *, number: int = errno.EIO, code: Nvml = Nvml.UNKNOWN) -> None:
        super().__init__(text)
        self.errno = number
        self.code = code


class WouldHang(Refused):
    """A real host would not answer; where blocking is allowed the caller waits instead."""
