"""What the service itself costs: its start, its memory, and a long list.

A start counts from the process's creation to the first 200 on /healthz, asked every 5 ms: with an empty folder (tables,
admin and keys are made) and with the folder as the last start left it. The list is a GET of /api/v1/vms by an admin on
an open connection to loopback, from the request's first byte to the answer's last: 1,000 VMs on 20 hosts, which are
written into the database while the service runs and are due for no step, so that nothing else goes on meanwhile.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import figures
from bench.serving import Serving, serving
from tests import factories
from vmgpu.db import Database
from vmgpu.errors import SetupError
from vmgpu.service import people
from vmgpu.settings import Settings

START, MEMORY, LIST = 1.5, 120, 50  # the bars: seconds, megabytes, milliseconds


def measure(report: figures.Report, options: argparse.Namespace) -> None:
    """The figures, each from processes of its own."""
    starts, vms, lists, calls = (1, 50, 3, 20) if options.quick else (5, 1000, 20, 1000)
    with tempfile.TemporaryDirectory(prefix="vmgpu-bench-") as made:
        folder = Path(made)
        first, again = zip(*(_starts(folder / f"start{n}", report) for n in range(starts)), strict=True)
        with serving(folder / "listed", VMGPU_LOG="json") as service:
            at_start = _settled(service.pid)
            _fill(service, vms)
            milliseconds = sorted(_listed(service, vms, lists))
            _listed(service, vms, calls)
            after = _megabytes(service.pid)
            command = statistics.median(_command(service) for _ in range(1 if options.quick else 5))
    rows = [("empty folder", *figures.spread(first)), ("known folder", *figures.spread(again))]
    report.table(f"Seconds to the first answer, {starts} starts each", ("start", "median", "min", "max"), rows)
    report.figure("start_new_seconds", statistics.median(first), "s", bar=START)
    report.figure("start_again_seconds", statistics.median(again), "s", bar=START)
    report.figure("memory_after_start", at_start, "MB", bar=MEMORY)
    report.figure(f"memory_after_{calls}_lists", after, "MB", bar=MEMORY)
    report.figure(f"list_{vms}_vms", statistics.median(milliseconds), "ms", bar=LIST)
    report.figure(f"list_{vms}_vms_slowest", milliseconds[-1], "ms")
    report.figure("command_vm_list_seconds", command, "s")


def _starts(folder: Path, report: figures.Report) -> tuple[float, float]:
    """The first and the second start on one folder."""
    took = []
    for _ in range(2):
        service = Serving(folder)
        took.append(service.start())
        service.stop()
    report.step(f"start: {took[0]:.2f} s, again {took[1]:.2f} s")
    return took[0], took[1]


def _fill(service: Serving, vms: int) -> None:
    """Write rows of VMs that run, with owners, members, slices and events, straight into the service's database."""
    db = Database(Settings(data_dir=service.folder).url)
    try:
        owners = [factories.make_user(db, f"student{n}") for n in range(20)]
        image, me = factories.make_image(db), people.who(db, service.token)
        for number in range(20):
            host = factories.make_host(db, f"gpu{number}", cards=("A100-40GB",) * 8)
            for vm in range(number, vms, 20):
                owner = owners[vm % len(owners)]
                # seven slices fit on a card, 56 on a host
                factories.make_vm(db, owner, f"s{vm}", image=image, host=host, members=[me], profile="1g.5gb")
    finally:
        db.close()


def _listed(service: Serving, vms: int, times: int) -> list[float]:
    """Milliseconds of each of so many list calls."""
    line = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    took = []
    for _ in range(times):
        began = time.perf_counter()
        line.request("GET", "/api/v1/vms", headers={"Authorization": f"Bearer {service.token}"})
        answer = line.getresponse()
        body = answer.read()
        took.append((time.perf_counter() - began) * 1000)
        if answer.status != 200 or body.count(b'"lease_seconds"') != vms:
            raise SetupError(f"The list is not whole: {answer.status}, {len(body)} bytes", hint=service.log_end())
    line.close()
    return took


def _command(service: Serving) -> float:
    """The seconds of a whole `vmgpu vm list`, its own start included."""
    began = time.monotonic()
    program = Path(sys.executable).with_name("vmgpu")
    subprocess.run(
        [program, "vm", "list"],
        env=os.environ | {"VMGPU_URL": f"http://127.0.0.1:{service.port}", "VMGPU_TOKEN": service.token},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - began


def _settled(pid: int) -> float:
    """What it keeps once the worker is up, too, whose imports come after the first answer."""
    seen, still = _megabytes(pid), 0
    while still < 8:
        time.sleep(0.25)
        before, seen = seen, _megabytes(pid)
        still = still + 1 if abs(seen - before) < 0.1 else 0
    return seen


def _megabytes(pid: int) -> float:
    """What a process keeps in memory (RSS)."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(figures.main("The service's start, memory and list.", measure, argparse.ArgumentParser()))
