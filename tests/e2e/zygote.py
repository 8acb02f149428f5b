"""Forks `vmgpu serve` on demand, so that a test that kills it seventy times pays for the imports once.

A line in is one life: the child's environment as JSON. Two lines out: its process id, then how it ended.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path

import alembic.command
import uvicorn

import vmgpu.api
import vmgpu.hypervisor.fake
import vmgpu.hypervisor.kvm
import vmgpu.worker
from vmgpu.cli.serve import serve
from vmgpu.settings import settings

LOADED = (alembic.command, uvicorn, vmgpu.api, vmgpu.hypervisor.fake, vmgpu.hypervisor.kvm, vmgpu.worker)


def live(environment: dict[str, str]) -> None:
    """Be the service until it ends; what it says goes to its log."""
    log = os.open(Path(environment["VMGPU_DATA_DIR"]) / "serve.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for name in [name for name in os.environ if name.startswith("VMGPU_")]:
        del os.environ[name]
    os.environ.update(environment)
    settings.cache_clear()
    code = 0
    try:
        serve.main(args=[], prog_name="vmgpu", standalone_mode=False)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            live(json.loads(line))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
