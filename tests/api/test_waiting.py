"""Calls that wait for the end: some may, and the others are answered with what is known."""

from __future__ import annotations

import threading
import time

from vmgpu.api.answers import WAITERS, until


def test_only_so_many_wait_at_once() -> None:
    looked = threading.Barrier(WAITERS + 1)
    began = threading.local()
    stopping = threading.Event()

    def look() -> str | None:
        began.times = getattr(began, "times", 0) + 1
        if began.times == 2:  # it waits
            looked.wait(30)
        return None

    waiting = [threading.Thread(target=until, args=(look, 60, stopping)) for _ in range(WAITERS)]
    for thread in waiting:
        thread.start()
    looked.wait(30)
    start = time.monotonic()
    assert until(lambda: None, 60, stopping) is None
    assert until(lambda: "known", 60, stopping) == "known"
    assert time.monotonic() - start < 5
    stopping.set()
    for thread in waiting:
        thread.join(30)
    answers = iter([None, None, "found"])
    assert until(lambda: next(answers), 60, threading.Event()) == "found"


def test_who_waits_no_time_takes_no_place() -> None:
    seen: list[int] = []
    assert until(lambda: seen.append(1), 0, threading.Event()) is None
    assert seen == [1]
