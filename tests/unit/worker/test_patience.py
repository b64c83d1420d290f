"""Waiting out what does not answer."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.errors import Internal, Unavailable
from app.worker.patience import Bell, persist, rest


async def test_persist_until_it_works() -> None:
    answers = [Unavailable("no"), Unavailable("no"), None]

    async def act() -> str:
        fault = answers.pop(0)
        if fault is not None:
            raise fault
        return "done"

    assert await persist(act, doing="test") == "done"


async def test_persist_passes_other_errors_on() -> None:
    async def act() -> None:
        raise Internal("no")

    with pytest.raises(Internal):
        await persist(act, doing="test")


async def test_persist_gives_up_when_told() -> None:
    give_up = asyncio.Event()

    async def act() -> None:
        raise Unavailable("no")

    trying = asyncio.create_task(persist(act, doing="test", give_up=give_up))
    await asyncio.sleep(0.3)
    assert not trying.done()
    give_up.set()
    with pytest.raises(Unavailable):
        await trying


async def test_rest_is_bounded_and_wakes() -> None:
    event = asyncio.Event()
    assert not await rest(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    began = time.monotonic()
    assert await rest(event, 10)
    assert time.monotonic() - began < 1


async def test_bell_rung_before_the_wait_is_heard() -> None:
    bell = Bell()
    bell.ring()
    async with asyncio.timeout(1):
        await bell.wait(10)
    began = time.monotonic()
    await bell.wait(0.05)
    assert time.monotonic() - began >= 0.04
