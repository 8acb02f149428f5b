"""The only programs that hostctl runs: NVIDIA's own, each from its fixed place, arguments as a list."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from .deadline import Deadline, end
from .files import Files
from .refusal import Refusal

SRIOV_MANAGE = "usr/lib/nvidia/sriov-manage"
FMPM = "usr/bin/fmpm"
NVIDIA_SMI = "usr/bin/nvidia-smi"
_SHOWN = 600


@dataclass(frozen=True)
class Ran:
    """How a program ended; `output` is all it said, on both channels."""

    status: int
    output: str

    def said(self) -> str:
        """The last of it, for a message."""
        return " ".join(self.output.split())[-_SHOWN:] or f"exit status {self.status}"


def run(files: Files, program: str, arguments: Sequence[str], deadline: Deadline, *, seconds: float = 110.0) -> Ran:
    """Run it to its end; what outlives the time-out is killed."""
    seconds = min(seconds, deadline.left())
    files.doing = f"running {program} {' '.join(arguments)}"
    environment = {**os.environ, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    try:
        child = subprocess.Popen(
            [str(files.root / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise Refusal(
            "failed", f"{program} cannot be run: {error.strerror}", hint="Is it installed whole?", number=error.errno
        ) from error
    deadline.watch(child)
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as late:
        end(child)
        raise Refusal(
            "timeout",
            f"{program} did not end within {seconds:.0f} s",
            hint="The NVIDIA driver may hang; the kernel log says more.",
        ) from late
    return Ran(child.returncode, output.decode("utf-8", "replace"))
