"""A host with 8 cards and 128 virtual functions is surveyed: hostctl's facts, and what the product makes of them.

The host is the tests' fake one: its /sys and /proc are a FUSE file system and its NVML a C library, both answered by
one process, so that a part of each second is the fake's own. A survey is hostctl as the service starts it, a child
with one line in and one line out, and the join into cards with what can be cut from each. Not in it: libvirt's list of
node devices. Files are counted where hostctl opens them, once all functions are on and half of them hold a vGPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench import figures
from tests.gpuhost import gpu_host, why_not
from tests.gpuhost.describe import many
from vmgpu.errors import SetupError
from vmgpu.hypervisor import inventory
from vmgpu.hypervisor.hostctl_client import LocalHostCtl

SECONDS, OPENED = 1.0, 50.0  # the bars


def measure(report: figures.Report, options: argparse.Namespace) -> None:
    """Some surveys of an idle host, and of one whose cards are cut."""
    if reason := why_not():
        raise SetupError(f"There is no fake GPU host here: {reason}", hint="Run: make setup")
    cards, rounds = (2, 2) if options.quick else (8, 10)
    with tempfile.TemporaryDirectory(prefix="vmgpu-bench-") as made, gpu_host(many("h100", cards), Path(made)) as host:
        os.environ.update(host.environment())
        ctl = LocalHostCtl(host.root)
        functions = _cut(ctl)
        seconds = []
        for _ in range(rounds):
            begun = time.monotonic()
            told = ctl.call("facts")
            found = inventory.cards(inventory.functions_of(told), told, ours={})
            seconds.append(time.monotonic() - begun)
    report.figure("cards", len(found), "")
    report.figure("functions", functions, "")
    report.figure("survey_seconds", statistics.median(seconds), "s", bar=SECONDS)
    report.figure("survey_seconds_worst", max(seconds), "s")
    report.figure("files_opened_per_card", told["opened"] / len(found), "", bar=OPENED)


def _cut(ctl: LocalHostCtl) -> int:
    """Switch every card's functions on, and give every second function a vGPU; the answer is how many there are."""
    told = ctl.call("facts")
    total = 0
    for card in inventory.cards(inventory.functions_of(told), told, ours={}):
        functions = ctl.call("vfs", {"address": card.address, "on": True})["vfs"]
        total += len(functions)
        smallest = min(card.cuts["vgpu"].pieces, key=lambda cut: cut.memory_mib)
        for address in functions[::2]:
            ctl.call("vgpu", {"action": "set", "address": address, "type": smallest.type})
    return total


if __name__ == "__main__":
    sys.exit(figures.main("A survey of many cards and functions.", measure, argparse.ArgumentParser()))
