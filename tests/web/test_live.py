from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest
from fastapi.testclient import TestClient

from tests.factories import make_user
from vmgpu.api import live
from vmgpu.db import Database


def test_only_who_is_signed_in_hears_anything(stranger: TestClient) -> None:
    assert stranger.get("/live").status_code == 401


def test_a_stream_begins_with_the_news(db: Database) -> None:
    async def story() -> None:
        stream = live.Hub(db, asyncio.get_running_loop()).stream()
        assert await _next(stream) == live.CHANGED
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(story())


def test_a_burst_of_commits_is_told_once_to_each(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "GATHER", 1.0)  # a burst is over by then on a busy machine, too

    async def story() -> None:
        hub = live.Hub(db, asyncio.get_running_loop())
        streams = [hub.stream() for _ in range(3)]
        for stream in streams:
            await _next(stream)
        threads = [threading.Thread(target=make_user, args=(db, f"u{number}")) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        for stream in streams:
            assert await _next(stream) == live.CHANGED
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.5)

    asyncio.run(story())


def test_silence_is_broken_now_and_then(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ALIVE", 0.05)

    async def story() -> None:
        stream = live.Hub(db, asyncio.get_running_loop()).stream()
        assert [await _next(stream) for _ in range(3)] == [live.CHANGED, live.QUIET, live.QUIET]

    asyncio.run(story())


def test_streams_end_at_once_when_the_service_stops(db: Database) -> None:
    async def story() -> None:
        hub = live.Hub(db, asyncio.get_running_loop())
        streams = [hub.stream() for _ in range(3)]
        for stream in streams:
            await _next(stream)
        rest = [asyncio.create_task(_rest(stream)) for stream in streams]
        began = time.monotonic()
        threading.Thread(target=hub.end).start()
        assert await asyncio.gather(*rest) == [[], [], []]
        assert time.monotonic() - began < 1

    asyncio.run(story())


def test_commits_after_the_end_of_the_loop_hurt_nobody(db: Database) -> None:
    async def story() -> live.Hub:
        return live.Hub(db, asyncio.get_running_loop())

    hub = asyncio.run(story())
    make_user(db, "late")
    hub.end()
    hub.end()


async def _next(stream: AsyncIterator[str]) -> str:
    return await asyncio.wait_for(anext(stream), 5)


async def _rest(stream: AsyncIterator[str]) -> list[str]:
    return [line async for line in stream]
