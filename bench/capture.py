"""What a capture costs: its copy step against `qemu-img convert`, and one whole capture through the product.

A guest of the product writes random data into its disk, an overlay on the imported base. With --quick it is the tiny
guest, which is stopped before its disk is written to from outside, and no whole capture is made.

The copy step is KvmHost.copy_flat on the stopped VM's disk in the pool; the other side is `qemu-img convert` of the
same file with the same formats and options. Both write into one folder; rounds alternate, and each begins with
everything written back to the disk.

The whole capture counts from the POST: the guest shuts down, the disk is copied, the guest boots and is checked again
(together the downtime), while the copy is generalised and its checksum taken; the total ends when the image is ready.
"""

# needs: libvirtd
from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import libvirt

from bench import figures
from bench.guests import URI, Lab, lab, ssh
from vmgpu.errors import SetupError
from vmgpu.hypervisor import HostRef, Network, NetworkRef, domain
from vmgpu.hypervisor.kvm import KvmHost
from vmgpu.hypervisor.volumes import FOLDER

BAR = 1.15
VM = "source"
CAPTURED = "bench/captured:1"
PLAIN = ("qemu-img", "convert", "-p", "-f", "qcow2", "-O", "qcow2")


def measure(report: figures.Report, options: argparse.Namespace) -> None:
    """The whole capture first, while the guest runs; then the copies of its stopped disk."""
    rounds, mib = (1, 32) if options.quick else (options.rounds, options.mib)
    with lab(tiny=options.quick) as at:
        vm = at.request(VM)[0]
        report.step("waiting for the guest")
        at.running(VM)
        disk = Path(FOLDER) / f"{vm['id']}{domain.DISK}"
        if options.quick:
            report.note("--quick: no whole capture is made; downtime, generalising and total are left out.")
            _stop(at)
            _fill_outside(disk, mib)
        else:
            _fill_inside(at, mib)
            _whole_capture(report, at, vm["id"])
            _stop(at)
        ours, plain = _copies(report, at, vm["id"], disk, rounds)
        at.release(VM)
    rows = [("copy_flat", *figures.spread(ours)), ("qemu-img convert", *figures.spread(plain))]
    report.table(f"Seconds of the copy, {rounds} rounds", ("by", "median", "min", "max"), rows)
    report.figure("copy_seconds", statistics.median(ours), "s")
    report.figure("copy_plain_seconds", statistics.median(plain), "s")
    # Of each round by itself: what disturbs a copy disturbs the one beside it more likely than one a minute later.
    # The few megabytes of a quick run are copied before libvirt has been asked where they lie.
    ratio = statistics.median(one / other for one, other in zip(ours, plain, strict=True))
    report.figure("copy_ratio", ratio, "x", bar=None if options.quick else BAR)


def _copies(report: figures.Report, at: Lab, vm_id: str, disk: Path, rounds: int) -> tuple[list[float], list[float]]:
    ours, plain = list[float](), list[float]()
    target = at.folder / "copy.qcow2"
    host = KvmHost(_ref(at, vm_id), on_change=lambda _vm_id: None)

    def by_product() -> None:
        host.copy_flat(vm_id, target, progress=lambda _percent: None)

    def by_hand() -> None:
        subprocess.run([*PLAIN, disk, target], stdout=subprocess.DEVNULL, check=True)

    try:
        # The first round fills the page cache and opens the connection; it is not counted.
        for number in range(-1, rounds):
            for copy, took in ((by_hand, plain), (by_product, ours))[:: -1 if number % 2 else 1]:
                target.unlink(missing_ok=True)
                os.sync()
                began = time.monotonic()
                copy()
                if number >= 0:
                    took.append(time.monotonic() - began)
            if number >= 0:
                report.step(f"copy, round {number + 1}: {ours[-1]:.2f} s, plain {plain[-1]:.2f} s")
    finally:
        host.close()
    report.note(f"The disk has {disk.stat().st_blocks // 2048} MiB over its base, its copy {_mib(target)} MiB.")
    return ours, plain


def _whole_capture(report: figures.Report, at: Lab, vm_id: str) -> None:
    connection = libvirt.open(URI)
    found = connection.lookupByUUIDString(vm_id)
    report.step("capturing")
    asked = datetime.now().astimezone()
    at.service.post(f"/vms/{VM}/snapshot", {"image": CAPTURED})
    at.service.wait("the guest is off", lambda: None if found.isActive() else True, every=0.05)
    off = datetime.now().astimezone()
    connection.close()
    image = at.service.wait("the image is ready", lambda: _ready(at))
    at.running(VM)
    moments = _moments(at)
    copied, running = moments["copied"] - asked, moments["running"] - asked
    generalising = moments["ready"] - moments["copied"]
    shutdown = off - asked
    rows = [
        ("shutting down", shutdown.total_seconds()),
        ("copying", (copied - shutdown).total_seconds()),
        ("booting and checking", (running - copied).total_seconds()),
        ("generalising, checksum", generalising.total_seconds()),
        ("until it is ready", (moments["ready"] - asked).total_seconds()),
    ]
    report.table(f"A whole capture of {image['size_bytes'] >> 20} MiB", ("phase", "seconds"), rows)
    report.figure("capture_downtime_seconds", running.total_seconds(), "s")
    report.figure("capture_generalise_seconds", generalising.total_seconds(), "s")
    report.figure("capture_total_seconds", (moments["ready"] - asked).total_seconds(), "s")


def _moments(at: Lab) -> dict[str, datetime]:
    """When the disk was copied, when the image was ready, and when the VM ran again."""
    events = at.service.items("/events?limit=1000")

    def last(kind: str, **wanted: str) -> datetime:
        found = [e for e in events if e["kind"] == kind and all(e[name] == value for name, value in wanted.items())]
        return datetime.fromisoformat(found[-1]["at"])

    return {
        "copied": last("image_generalising"),
        "ready": last("image_ready"),
        "running": last("state", vm=VM, state="running"),
    }


def _ready(at: Lab) -> dict[str, Any] | None:
    image: dict[str, Any] = at.service.get(f"/images/{CAPTURED}")
    if image["state"] == "failed":
        raise SetupError(f"The capture failed: {image['reason']}", hint=at.service.log_end())
    return image if image["state"] == "ready" else None


def _fill_inside(at: Lab, mib: int) -> None:
    """Let the guest itself write, as people do."""
    vm, known = at.vm(VM), at.folder / "known"
    known.write_text(f"{vm['address']} {vm['host_key']}\n")
    script = f"head -c {mib}M /dev/urandom >filled && sync"
    done = ssh(vm["address"], at.login(vm), at.key, known, script)
    if done.returncode:
        raise SetupError(f"The guest could not write {mib} MiB: {done.stderr.decode(errors='replace')}", hint="")


def _fill_outside(disk: Path, mib: int) -> None:
    for at in range(mib):
        source = disk.with_name("random")
        source.write_bytes(os.urandom(1 << 20))
        subprocess.run(
            ["qemu-io", "-f", "qcow2", "-c", f"write -q -s {source} {64 + at}M 1M", disk],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        source.unlink()


def _stop(at: Lab) -> None:
    at.service.post(f"/vms/{VM}/stop")
    at.service.wait("the VM is stopped", lambda: True if at.vm(VM)["state"] == "stopped" else None)


def _ref(at: Lab, vm_id: str) -> HostRef:
    """The host as the service opened it: only a domain of one's own installation is touched."""
    connection = libvirt.open(URI)
    installation, _build = domain.mark(connection.lookupByUUIDString(vm_id))
    connection.close()
    network = NetworkRef(Network.nat, "vmgpu")
    return HostRef("bench", "local", URI, installation or "", network, at.accel, at.folder / "state")


def _mib(file: Path) -> int:
    return file.stat().st_blocks // 2048


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=9, help="rounds of copies  [9]")
    options.add_argument("--mib", type=int, default=400, help="MiB of random data on the disk  [400]")
    sys.exit(figures.main("A capture's copy, downtime and total.", measure, options))
