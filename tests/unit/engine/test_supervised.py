"""Loading, death, rebuild and stop of the supervised engine, over the echo engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from app.engine.base import Engine, Health
from app.engine.echo import EchoEngine
from app.engine.supervised import SupervisedEngine
from app.errors import EngineDead, SettingsInvalid

CHAT = "/v1/chat/completions"


def _body(**steering: Any) -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": "echo", "messages": messages, "echo": steering}).encode()


class Unloadable(EchoEngine):
    """Fails its first loads, as an engine without its model does."""

    def __init__(self, *failures: SettingsInvalid | EngineDead) -> None:
        super().__init__()
        self.failures = failures

    async def start(self) -> None:
        for failure in self.failures:
            raise failure
        await super().start()


class Factory:
    """Builds engines, and remembers them."""

    def __init__(self, make: Callable[[int], EchoEngine]) -> None:
        self.make = make
        self.built: list[EchoEngine] = []

    def __call__(self) -> Engine:
        self.built.append(self.make(len(self.built)))
        return self.built[-1]


@asynccontextmanager
async def _supervised(
    make: Callable[[int], EchoEngine] = lambda _: EchoEngine(), **options: Any
) -> AsyncIterator[tuple[SupervisedEngine, Factory]]:
    factory = Factory(make)
    engine = SupervisedEngine(factory, **({"first_backoff_seconds": 0.01, "max_backoff_seconds": 0.05} | options))
    await engine.start()
    try:
        async with asyncio.timeout(10):
            yield engine, factory
    finally:
        await engine.stop()
        assert engine.health() is Health.STOPPED
        assert all(built.health() is Health.STOPPED for built in factory.built)
        assert engine.task is not None
        assert engine.task.done()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - asks what has no event
        await asyncio.sleep(0.002)


async def test_start_returns_while_the_engine_loads() -> None:
    async with _supervised(lambda _: EchoEngine(load_seconds=0.05)) as (engine, _):
        assert engine.health() is Health.LOADING
        for asked in (engine.call(CHAT, _body()), engine.models(), engine.supports(CHAT)):
            with pytest.raises(EngineDead, match="loading"):
                await asked
        with pytest.raises(EngineDead):
            engine.capacity()
        assert await engine.wait_ready()
        assert engine.health() is Health.READY
        assert engine.generation == 1
        assert (await engine.call(CHAT, _body())).status == 200
        assert await engine.models() == ["echo"]
        assert await engine.supports(CHAT)
        assert engine.capacity().concurrent == 256


async def test_death_is_rebuilt_with_the_next_generation() -> None:
    deaths: list[str] = []
    async with _supervised(on_death=lambda: deaths.append("died")) as (engine, factory):
        for generation in (1, 2, 3):
            assert await engine.wait_ready()
            assert engine.generation == generation
            hung = asyncio.create_task(engine.call(CHAT, _body(hang=True)))
            await asyncio.sleep(0)
            with pytest.raises(EngineDead):
                await engine.call(CHAT, _body(crash=True))
            assert engine.health() is Health.DEAD
            assert engine.current is None
            with pytest.raises(EngineDead):
                await hung
        assert await engine.wait_ready()
        assert (await engine.call(CHAT, _body())).status == 200
        assert deaths == ["died"] * 3
        assert len(factory.built) == 4


async def test_death_nobody_called_is_noticed() -> None:
    async with _supervised() as (engine, factory):
        assert await engine.wait_ready()
        with pytest.raises(EngineDead):
            await factory.built[0].call(CHAT, _body(crash=True))
        async with asyncio.timeout(1):
            await _until(lambda: engine.generation == 2)


async def test_names_and_sizes_stay_known_during_a_rebuild() -> None:
    async with _supervised(lambda n: EchoEngine(load_seconds=60 * n)) as (engine, factory):
        assert await engine.wait_ready()
        assert await engine.supports(CHAT)
        with pytest.raises(EngineDead):
            await engine.call(CHAT, _body(crash=True))
        await _until(lambda: len(factory.built) == 2)
        assert engine.health() is Health.LOADING
        assert await engine.models() == ["echo"]
        assert await engine.supports(CHAT)
        assert engine.capacity().concurrent == 256
        with pytest.raises(EngineDead, match="The engine died"):
            await engine.call(CHAT, _body())


async def test_failed_loads_are_told_and_tried_again() -> None:
    def make(number: int) -> EchoEngine:
        return Unloadable(*[EngineDead("no memory")] * (number < 2))

    async with _supervised(make) as (engine, factory):
        await _until(lambda: engine.failure == "no memory")
        assert await engine.wait_ready()
        assert engine.failure is None
        assert engine.generation == 1
        assert len(factory.built) == 3


async def test_settings_that_never_worked_end_it() -> None:
    engine = SupervisedEngine(lambda: Unloadable(SettingsInvalid("no such model")))
    await engine.start()
    assert not await engine.wait_ready()
    assert engine.task is not None
    assert isinstance(engine.task.exception(), SettingsInvalid)
    assert engine.failure == "no such model"
    assert engine.health() is Health.DEAD
    await engine.stop()


async def test_settings_that_worked_before_wait_longest() -> None:
    make = lambda n: Unloadable(*[SettingsInvalid("the model is gone")] * bool(n))  # noqa: E731
    async with _supervised(make, first_backoff_seconds=0.001, max_backoff_seconds=60) as (engine, factory):
        assert await engine.wait_ready()
        await factory.built[0].kill()
        await _until(lambda: engine.failure == "the model is gone")
        await asyncio.sleep(0.1)
        assert engine.health() is Health.DEAD
        assert len(factory.built) == 2


async def test_rebuilds_are_bounded() -> None:
    async with _supervised(rebuilds_max=2) as (engine, factory):
        for _ in range(3):
            assert await engine.wait_ready()
            await factory.built[-1].kill()
        assert not await engine.wait_ready()
        assert engine.task is not None
        assert isinstance(engine.task.exception(), EngineDead)
        assert engine.health() is Health.DEAD
        assert engine.generation == len(factory.built) == 3


async def test_loads_that_fail_count_as_rebuilds() -> None:
    async with _supervised(lambda _: Unloadable(EngineDead("no memory")), rebuilds_max=3) as (engine, factory):
        assert not await engine.wait_ready()
        assert len(factory.built) == 4


async def test_engine_that_hangs_is_killed_and_rebuilt() -> None:
    loop = asyncio.get_running_loop()
    async with _supervised(hang_seconds=0.6) as (engine, factory):
        assert await engine.wait_ready()
        began = loop.time()
        with pytest.raises(EngineDead) as caught:
            await engine.call(CHAT, _body(hang=True))
        assert not caught.value.killed
        assert 0.6 <= loop.time() - began < 3
        assert await engine.wait_ready()
        assert engine.generation == len(factory.built) == 2


async def test_engine_that_answers_others_does_not_hang() -> None:
    async with _supervised(hang_seconds=0.6) as (engine, _):
        assert await engine.wait_ready()
        hung = asyncio.create_task(engine.call(CHAT, _body(hang=True)))
        for _ in range(15):
            assert (await engine.call(CHAT, _body(delay_ms=100))).status == 200
        assert engine.generation == 1
        hung.cancel()
        await asyncio.sleep(1)
        assert engine.generation == 1, "an engine without requests does not hang"


async def test_backoff_doubles_up_to_its_maximum() -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []

    def make(_: int) -> EchoEngine:
        times.append(loop.time())
        return Unloadable(EngineDead("no"))

    async with _supervised(make, first_backoff_seconds=0.02, max_backoff_seconds=0.08):
        await _until(lambda: len(times) == 6)
    pauses = [after - before for before, after in pairwise(times)]
    for pause, longest in zip(pauses, [0.02, 0.04, 0.08, 0.08, 0.08], strict=True):
        assert pause >= longest / 2


async def test_stop_while_loading_ends_the_load() -> None:
    async with _supervised(lambda _: EchoEngine(load_seconds=60)) as (engine, _):
        waiting = asyncio.create_task(engine.wait_ready())
        await asyncio.sleep(0.01)
        await engine.stop()
        assert not await waiting
        assert not await engine.wait_ready()


async def test_stop_during_a_backoff_ends_it() -> None:
    async with _supervised(lambda _: Unloadable(EngineDead("no")), first_backoff_seconds=60) as (engine, _):
        await _until(lambda: engine.failure is not None)
        await engine.stop()
        await engine.stop()
        assert engine.health() is Health.STOPPED


async def test_wait_ready_ends_with_the_stop_event() -> None:
    async with _supervised(lambda _: EchoEngine(load_seconds=60)) as (engine, _):
        stop = asyncio.Event()
        waiting = asyncio.create_task(engine.wait_ready(stop))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        stop.set()
        assert not await waiting
        assert not await engine.wait_ready(stop)


async def test_builder_that_raises_ends_the_supervisor_loudly() -> None:
    def broken() -> Engine:
        raise ZeroDivisionError

    engine = SupervisedEngine(broken)
    await engine.start()
    assert not await engine.wait_ready()
    assert engine.task is not None
    assert isinstance(engine.task.exception(), ZeroDivisionError)
    assert engine.health() is Health.DEAD
    assert engine.failure is not None
    await engine.stop()
