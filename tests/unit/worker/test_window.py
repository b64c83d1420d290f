"""Seats, with engines that misbehave in ways the echo engine cannot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

import pytest

from app.engine.base import Capacity, Health, Reply
from app.worker.feed import Feed
from app.worker.ledger import Ledger
from app.worker.window import Window
from tests.unit.worker.test_feed import new_feed, new_ledger


class Stub:
    """The contract with nothing behind it; subclasses misbehave in `call`."""

    generation = 1

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def call(self, path: str, body: bytes) -> Reply:
        raise NotImplementedError

    async def models(self) -> Sequence[str]:
        return ["m"]

    async def supports(self, path: str) -> bool:
        return bool(path)

    def capacity(self) -> Capacity:
        return Capacity(1, 1)

    def health(self) -> Health:
        return Health.READY

    async def wait_ready(self, stop: asyncio.Event | None = None) -> bool:
        return stop is None or not stop.is_set()


class Defective(Stub):
    async def call(self, path: str, body: bytes) -> Reply:
        raise ValueError("a defect of the engine")


class Deaf(Stub):
    """Swallows the cancel, as an ASGI app that is disconnected does, and answers `null`."""

    async def call(self, path: str, body: bytes) -> Reply:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return Reply(200, b"null")


class Stubborn(Stub):
    """Ignores every cancel until it is let go."""

    def __init__(self) -> None:
        self.free = asyncio.Event()

    async def call(self, path: str, body: bytes) -> Reply:
        while not self.free.is_set():
            with suppress(asyncio.CancelledError):
                await self.free.wait()
        return Reply(200, b"null")


async def run(engine: Stub, feed: Feed, ledger: Ledger, *, timeout_seconds: float = 60) -> Window:
    """A window on `ledger`; returns once every seat has ended."""
    async with asyncio.TaskGroup() as group:
        window = Window(engine=engine, feed=feed, request_timeout_seconds=timeout_seconds, group=group)
        window.size = 2
        feed.add(ledger)
        await asyncio.sleep(0.05)
        window.time_out()
        await asyncio.sleep(0.2)
        feed.stop()
        window.abort_all()
    return window


async def test_defect_of_the_engine_is_an_error_row() -> None:
    ledger = new_ledger(5)
    await run(Defective(), new_feed(), ledger)
    rows = [json.loads(row.text) for row in ledger.pending]
    assert len(rows) == 5
    assert {row["response"]["status_code"] for row in rows} == {500}
    assert {row["response"]["body"]["error"]["code"] for row in rows} == {"engine_error"}


async def test_aborted_call_is_never_a_result() -> None:
    ledger, feed = new_ledger(3), new_feed()
    await run(Deaf(), feed, ledger, timeout_seconds=0.01)
    codes = [json.loads(row.text)["error"]["code"] for row in ledger.pending]
    assert codes == ["request_timeout", "request_timeout"], "two seats; the third line was aborted by the stop"
    assert ledger.left == 1
    assert feed.running == 0


async def test_torn_down_seat_ends_also_while_it_aborts() -> None:
    ledger, feed = new_ledger(3), new_feed()

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            window = Window(engine=Deaf(), feed=feed, request_timeout_seconds=60, group=group)
            window.size = 2
            feed.add(ledger)
            await asyncio.sleep(0.05)
            try:
                await asyncio.sleep(60)
            finally:
                window.abort(ledger)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.1)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=3)
    assert done
    assert task.cancelled()


async def test_seat_of_a_call_that_ignores_its_abort_comes_free() -> None:
    ledger, feed, engine = new_ledger(5), new_feed(), Stubborn()
    try:
        async with asyncio.TaskGroup() as group:
            window = Window(engine=engine, feed=feed, request_timeout_seconds=0.01, group=group)
            window.size = 2
            feed.add(ledger)
            for _ in range(3):
                await asyncio.sleep(0.05)
                window.time_out()
                window.give_up()
            seen = len(ledger.pending), feed.running
            feed.stop()
    finally:
        engine.free.set()
    assert seen == (5, 0)
    await asyncio.sleep(0.01)
    assert len(ledger.pending) == 5, "a late answer counts for nothing"
    assert feed.running == 0


async def test_defect_of_a_seat_ends_the_group() -> None:
    class Broken(Stub):
        def health(self) -> Health:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await run(Broken(), new_feed(), new_ledger(5))
    assert caught.group_contains(ZeroDivisionError)
