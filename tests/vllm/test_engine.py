"""The real engine, in the order of its life: the last tests kill it and load another one."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.engine import embedded
from app.engine.base import Health, Reply
from app.engine.vllm import VllmEngine
from app.errors import EngineBusy, EngineDead
from tests.vllm.conftest import ARGUMENTS, SEATS, Loaded, engine_processes

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # torch and vLLM warn while they are imported, in our process
]

CHAT = "/v1/chat/completions"


async def _chat(engine: VllmEngine, text: str, **fields: Any) -> Reply:
    messages = [{"role": "user", "content": text}]
    body = {"model": embedded.MODEL_NAME, "messages": messages, "temperature": 0} | fields
    return await engine.call(CHAT, json.dumps(body).encode())


def _long(engine: VllmEngine, count: int) -> list[asyncio.Task[Reply]]:
    return [
        asyncio.create_task(_chat(engine, f"Tell me story {number}.", max_tokens=1800, ignore_eos=True))
        for number in range(count)
    ]


def _core() -> psutil.Process:
    return next(process for process in engine_processes() if "EngineCore" in process.name())


async def test_start_leaves_the_event_loop_free(loaded: Loaded) -> None:
    print(f"\nloaded in {loaded.load_seconds:.1f} s, longest stall of the loop {loaded.stall_seconds:.2f} s")
    assert loaded.engine.health() is Health.READY
    assert loaded.stall_seconds < 1.0


async def test_call_capital_of_france_answers_paris(engine: VllmEngine) -> None:
    reply = await _chat(engine, "What is the capital of France?")
    assert reply.status == 200
    answer = json.loads(reply.body)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 0


async def test_call_unknown_model_is_404(engine: VllmEngine) -> None:
    reply = await _chat(engine, "hello", model="gpt-4")
    assert reply.status == 404
    assert json.loads(reply.body)["error"]["code"] == 404


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"model":"x"}', b'{"model":"%s","messages":[]}' % embedded.MODEL_NAME.encode()],
    ids=["no json", "no object", "no messages", "empty messages"],
)
async def test_call_bad_body_is_a_4xx_reply(engine: VllmEngine, body: bytes) -> None:
    reply = await engine.call(CHAT, body)
    assert 400 <= reply.status < 500
    assert "error" in json.loads(reply.body)


async def test_supports_what_the_model_can_do(engine: VllmEngine) -> None:
    answers = {
        path: await engine.supports(path) for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings")
    }
    assert answers == {CHAT: True, "/v1/completions": True, "/v1/responses": True, "/v1/embeddings": False}


async def test_models_are_the_served_names(engine: VllmEngine) -> None:
    assert await engine.models() == [embedded.MODEL_NAME]


async def test_capacity_follows_the_scheduler(engine: VllmEngine) -> None:
    assert engine.capacity().concurrent == SEATS
    assert engine.capacity().window == 64


async def test_cancelled_calls_free_their_seats(engine: VllmEngine) -> None:
    running = _long(engine, 24)
    await asyncio.sleep(2)
    assert not any(task.done() for task in running)
    for task in running:
        task.cancel()
    async with asyncio.timeout(2):
        await asyncio.wait(running)
    assert all(task.cancelled() for task in running)
    async with asyncio.timeout(5):  # with the seats still held it would take minutes
        assert (await _chat(engine, "hello", max_tokens=4)).status == 200


async def test_interrupt_from_the_terminal_does_not_reach_the_engine(engine: VllmEngine) -> None:
    for process in engine_processes():
        process.send_signal(signal.SIGINT)
    await asyncio.sleep(0.5)
    assert engine.health() is Health.READY
    assert (await _chat(engine, "hello", max_tokens=4)).status == 200


async def test_engine_core_killed_ends_calls_within_a_second(engine: VllmEngine) -> None:
    running = _long(engine, 24)
    await asyncio.sleep(1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    _core().kill()
    async with asyncio.timeout(1):
        outcomes = await asyncio.gather(*running, return_exceptions=True)
    print(f"\n24 calls ended {loop.time() - began:.2f} s after the engine core was killed")
    assert all(isinstance(outcome, EngineDead) for outcome in outcomes)
    assert engine.health() is Health.DEAD
    with pytest.raises(EngineDead):
        await _chat(engine, "hello")
    await engine.stop()
    assert engine_processes() == []


async def test_rebuilt_in_the_same_process_answers_refuses_and_stops_clean(loaded: Loaded, model: Path) -> None:
    await loaded.engine.stop()  # whichever tests ran before: one engine at a time
    engine = VllmEngine(model=str(model), arguments=[*ARGUMENTS, "--max-num-queued-reqs", "3"])
    try:
        await engine.start()
        assert (await _chat(engine, "hello", max_tokens=4)).status == 200
        running = _long(engine, 3)
        await asyncio.sleep(0.5)
        with pytest.raises(EngineBusy):  # vLLM's 503
            await _chat(engine, "hello")
        assert engine.health() is Health.READY
    finally:
        await engine.stop()
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(outcome, EngineDead) for outcome in outcomes)
    assert engine.health() is Health.STOPPED
    assert engine_processes() == []
