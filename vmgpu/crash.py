"""Points at which this process kills itself when VMGPU_CRASH_AT names them: recovery is tested, not believed."""

from __future__ import annotations

import os
import signal

from vmgpu.settings import settings


def point(name: str) -> None:
    """Die here, as by kill -9, if this point is the named one."""
    if settings().crash_at == name:
        os.kill(os.getpid(), signal.SIGKILL)
