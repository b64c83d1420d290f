"""The worker as a whole: start, wake, stop, and the death of a side task."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.settings import WorkerSettings
from tests.unit.worker.yard import Yard, jsonl, line


async def test_stop_of_an_idle_worker_is_quick(yard: Yard) -> None:
    running = yard.start()
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await running.finish()
    assert time.monotonic() - began < 0.5


async def test_wake_beats_the_poll(yard: Yard) -> None:
    running = yard.start(settings=WorkerSettings(poll_seconds=30))
    await asyncio.sleep(0.2)
    batch_id = await yard.create(jsonl([line("a")]))
    async with asyncio.timeout(3):
        while not (await yard.batch(batch_id)).is_terminal:
            running.worker.wake()
            await asyncio.sleep(0.05)
    began = time.monotonic()
    await running.finish()
    assert time.monotonic() - began < 1


async def test_death_of_a_side_task_ends_the_worker(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    running = yard.start()
    await asyncio.sleep(0.1)

    async def broken() -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(running.worker._heartbeat, "_beat", broken)
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(5):
            await running.task
