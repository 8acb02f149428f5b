"""From a request to the first login: through the product, and by a script that runs plain QEMU.

Our clock starts when the client sends the POST to a running `vmgpu serve`; the script's when it begins to make the
overlay. Both make overlay, firmware variables, seed disk (the same content by the same functions, with other keys) and
network device inside their clocks; keys are made before the script's, inside ours. Both clocks end when `true` was run
by ssh with the owner's key and the pinned host key. The same function waits on both sides: every 250 ms it asks for
the addresses (the list of our REST API; the network's DHCP leases), and once its guest's is known it tries ssh, as
often; the answers about addresses are shared by guests that start together.

Both guests have one base image in one folder, firmware, machine, CPU model, acceleration, memory, devices and cache
modes. Not counted: a first start on either side, in which the base image comes into the pool and into the page cache.
Rounds alternate (ours, plain; plain, ours), and in each everything is made anew.
"""

# needs: libvirtd
from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bench import figures
from bench.guests import Addresses, Arrival, Lab, arrive, lab
from bench.plain_qemu import Boot, Plain, booted, likeness

COLD, FOUR = 1.05, 1.10  # the bars
TOGETHER = 4
STATES = ("pending", "carving", "building", "booting", "checking")


@dataclass(frozen=True)
class Ours:
    """One start through the product: the clock's moments, the seconds of each state, and when it was `running`."""

    boot: Boot
    states: dict[str, float]
    running: float


def measure(report: figures.Report, options: argparse.Namespace) -> None:
    """All rounds, and what they come to."""
    rounds, fours = (1, 0) if options.quick else (options.rounds, options.four)
    with lab(tiny=options.quick) as at:
        report.step("warm-up: one start through the product, one of plain QEMU")
        warm = at.request("warm")[0]
        at.running("warm")
        plain = Plain(at, likeness(warm["id"]), at.login(at.vm("warm")))
        at.release("warm")
        _one_plain(plain)
        try:
            ours, theirs = _cold(report, at, plain, rounds)
            together = _together(report, at, plain, fours)
        finally:
            plain.close()
    _tell(report, ours, theirs)
    cold = statistics.median(o.boot.login for o in ours), statistics.median(t.login for t in theirs)
    report.figure("cold_seconds", cold[0], "s")
    report.figure("cold_plain_seconds", cold[1], "s")
    report.figure("cold_running_seconds", statistics.median(o.running for o in ours), "s")
    # A tiny guest is up so soon that the ratio says nothing of a real one.
    report.figure("cold_ratio", cold[0] / cold[1], "x", bar=None if options.quick else COLD)
    if together:
        four = statistics.median(o for o, _ in together), statistics.median(t for _, t in together)
        rows = [(number, o, t, o / t) for number, (o, t) in enumerate(together, 1)]
        report.table(f"{TOGETHER} at once, until the last is in (s)", ("round", "vmgpu", "plain", "ratio"), rows)
        report.figure("four_at_once_seconds", four[0], "s")
        report.figure("four_at_once_plain_seconds", four[1], "s")
        report.figure("four_at_once_ratio", four[0] / four[1], "x", bar=FOUR)


def _cold(report: figures.Report, at: Lab, plain: Plain, rounds: int) -> tuple[list[Ours], list[Boot]]:
    ours, theirs = list[Ours](), list[Boot]()
    for number in range(rounds):
        for side in _order(number, lambda: ours.append(_one_ours(at)), lambda: theirs.append(_one_plain(plain))):
            side()
        report.step(f"round {number + 1}: {ours[-1].boot.login:.2f} s, plain {theirs[-1].login:.2f} s")
    return ours, theirs


def _together(report: figures.Report, at: Lab, plain: Plain, rounds: int) -> list[tuple[float, float]]:
    ours, theirs = list[float](), list[float]()
    for number in range(rounds):
        for side in _order(number, lambda: ours.append(_four_ours(at)), lambda: theirs.append(_four_plain(plain))):
            side()
        report.step(f"{TOGETHER} at once, round {number + 1}: {ours[-1]:.2f} s, plain {theirs[-1]:.2f} s")
    return list(zip(ours, theirs, strict=True))


def _order(number: int, ours: Callable[[], None], theirs: Callable[[], None]) -> list[Callable[[], None]]:
    return [theirs, ours] if number % 2 else [ours, theirs]


def _one_ours(at: Lab) -> Ours:
    addresses = Addresses(at.addresses)
    asked, began = datetime.now().astimezone(), time.monotonic()
    vm = at.request("cold")[0]
    arrival = _arrived(at, vm, addresses, began)
    boot = booted(_pid(vm), arrival, began)
    at.running("cold")
    moves = [event for event in at.service.items("/vms/cold/events") if event["kind"] == "state"]
    states = {state: sum(e["seconds"] for e in moves if e["was"] == state) for state in STATES}
    ready = next(datetime.fromisoformat(event["at"]) for event in moves if event["state"] == "running")
    at.release("cold")
    return Ours(boot, states, (ready - asked).total_seconds())


def _one_plain(plain: Plain) -> Boot:
    with plain.guest() as guest:
        return guest.start()


def _four_ours(at: Lab) -> float:
    addresses, began = Addresses(at.addresses), time.monotonic()
    vms = at.request("four-{n}", TOGETHER)
    with ThreadPoolExecutor(TOGETHER) as pool:
        last = max(arrival.login for arrival in pool.map(lambda vm: _arrived(at, vm, addresses, began), vms))
    at.release(*(vm["name"] for vm in vms))
    return last


def _four_plain(plain: Plain) -> float:
    with ExitStack() as guests, ThreadPoolExecutor(TOGETHER) as pool:
        made = [guests.enter_context(plain.guest()) for _ in range(TOGETHER)]
        began = time.monotonic()
        list(pool.map(lambda guest: guest.start(), made))
        return time.monotonic() - began


def _arrived(at: Lab, vm: dict[str, str], addresses: Addresses, began: float) -> Arrival:
    return arrive(
        lambda: addresses.of(vm["name"]),
        login=at.login(vm),
        key=at.key,
        host_key=vm["host_key"],
        began=began,
    )


def _pid(vm: dict[str, str]) -> int:
    """Its QEMU, as libvirt notes it under the domain's name."""
    return int((Path("/run/libvirt/qemu") / f"{vm['name']}-{vm['id'][:8]}.pid").read_text())


def _tell(report: figures.Report, ours: list[Ours], theirs: list[Boot]) -> None:
    rows = []
    moments = {"qemu": "QEMU's process", "address": "address known", "login": "logged in"}
    for moment, name in (moments | {"processor": "QEMU's processor time"}).items():
        both = [getattr(o.boot, moment) for o in ours], [getattr(t, moment) for t in theirs]
        rows.append((name, *figures.spread(both[0]), *figures.spread(both[1])))
    head = ("until", "vmgpu", "min", "max", "plain", "min", "max")
    report.table(f"One VM, {len(ours)} rounds: seconds until", head, rows)
    phases = [(state, *figures.spread([o.states[state] for o in ours])) for state in STATES]
    phases.append(("POST to running", *figures.spread([o.running for o in ours])))
    report.table("Seconds in each state", ("state", "median", "min", "max"), phases)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5, help="rounds of one VM  [5]")
    options.add_argument("--four", type=int, default=3, help="rounds of four at once  [3]")
    sys.exit(figures.main("Time from a request to the first login, against plain QEMU.", measure, options))
