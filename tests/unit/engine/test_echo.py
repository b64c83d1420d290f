"""The echo engine as an engine: answers, steering, death, abort."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.engine.base import Health, Reply
from app.engine.echo import EchoEngine, journal_digest
from app.errors import EngineBusy, EngineDead

CHAT = "/v1/chat/completions"


async def _started(**options: Any) -> EchoEngine:
    engine = EchoEngine(**options)
    await engine.start()
    return engine


def _body(text: str = "hello there", **fields: Any) -> bytes:
    return json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}], **fields}).encode()


def _said(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    content = json.loads(reply.body)["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


async def test_call_same_body_gets_same_bytes() -> None:
    first, second = await _started(), await _started()
    assert await first.call(CHAT, _body()) == await second.call(CHAT, _body())
    assert await first.call(CHAT, _body()) != await first.call(CHAT, _body("something else"))


async def test_journal_has_a_line_for_every_request_begun(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(b"earlier\n")
    engine = await _started(journal=journal)
    hanging = asyncio.create_task(engine.call(CHAT, _body("b", echo={"hang": True})))
    await asyncio.sleep(0.01)
    await engine.call(CHAT, _body("a"))
    assert (await engine.call(CHAT, _body("c", temperature=-5))).status == 400
    await engine.stop()
    with pytest.raises(EngineDead):
        await hanging
    with pytest.raises(EngineDead):
        await engine.call(CHAT, _body("after"))
    earlier, *lines = journal.read_bytes().splitlines()
    assert earlier == b"earlier"
    begun = [line.split() for line in lines]
    assert {int(process) for _, process, _ in begun} == {os.getpid()}
    bodies = (_body("a"), _body("b", echo={"hang": True}), _body("c", temperature=-5))
    assert sorted(digest for _, _, digest in begun) == sorted(map(journal_digest, bodies))


async def test_call_before_start_raises_engine_dead() -> None:
    engine = EchoEngine()
    assert engine.health() is Health.LOADING
    with pytest.raises(EngineDead):
        await engine.call(CHAT, _body())


async def test_call_unknown_model_is_404() -> None:
    reply = await (await _started()).call(CHAT, _body(model="gpt-4"))
    assert reply.status == 404
    assert json.loads(reply.body)["error"] == {
        "message": "The model 'gpt-4' does not exist.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


async def test_call_unknown_path_is_404() -> None:
    engine = await _started()
    assert (await engine.call("/v1/moderations", b"{}")).status == 404
    assert not await engine.supports("/v1/moderations")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings"])
async def test_supports_every_endpoint_it_answers(path: str) -> None:
    engine = await _started()
    assert await engine.supports(path)
    assert (await engine.call(path, b"{}")).status == 400


async def test_models_names_echo_only() -> None:
    assert await (await _started()).models() == ["echo"]


def test_capacity_window_keeps_a_request_behind_each() -> None:
    assert EchoEngine(concurrent=200).capacity().window == 400
    assert EchoEngine(concurrent=1).capacity().window == 64


async def test_call_status_fails_with_message() -> None:
    reply = await (await _started()).call(CHAT, _body(echo={"status": 429, "message": "slow down"}))
    assert reply.status == 429
    assert json.loads(reply.body)["error"]["message"] == "slow down"


async def test_call_repeat_sizes_the_answer() -> None:
    assert _said(await (await _started()).call(CHAT, _body("ab", echo={"repeat": 3}))) == "ab ab ab"


async def test_call_repeat_beyond_the_limit_is_400() -> None:
    reply = await (await _started()).call(CHAT, _body("x" * 1000, echo={"repeat": 1_000_000}))
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["param"] == "echo.repeat"


async def test_call_delay_ms_waits() -> None:
    engine = await _started()
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert _said(await engine.call(CHAT, _body(echo={"delay_ms": 60}))) == "hello there"
    assert loop.time() - began >= 0.055


async def test_call_delayed_queues_beyond_concurrent() -> None:
    engine = await _started(delay_seconds=0.05, concurrent=2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(engine.call(CHAT, _body()) for _ in range(6)))
    assert loop.time() - began >= 0.14


async def test_call_busy_refuses_the_first_times_only() -> None:
    engine = await _started()
    body = _body(echo={"busy": 2})
    for _ in range(2):
        with pytest.raises(EngineBusy):
            await engine.call(CHAT, body)
    assert _said(await engine.call(CHAT, body)) == "hello there"
    with pytest.raises(EngineBusy):  # another body has a count of its own
        await engine.call(CHAT, _body("other", echo={"busy": 2}))


async def test_call_crash_ends_every_call_in_flight() -> None:
    engine = await _started(concurrent=1)
    running = asyncio.create_task(engine.call(CHAT, _body(echo={"hang": True})))
    queued = [asyncio.create_task(engine.call(CHAT, _body(echo={"delay_ms": 9000}))) for _ in range(3)]
    await asyncio.sleep(0.01)
    with pytest.raises(EngineDead):
        await engine.call(CHAT, _body(echo={"crash": True}))
    assert engine.health() is Health.DEAD
    async with asyncio.timeout(1):
        outcomes = await asyncio.gather(running, *queued, return_exceptions=True)
    assert all(isinstance(outcome, EngineDead) for outcome in outcomes)
    with pytest.raises(EngineDead):
        await engine.call(CHAT, _body())


async def test_call_crash_counted_survives_a_rebuild_with_the_counter() -> None:
    seen: Counter[bytes] = Counter()
    body = _body(echo={"crash": 2})
    for _ in range(2):
        engine = await _started(seen=seen)
        with pytest.raises(EngineDead):
            await engine.call(CHAT, body)
    assert _said(await (await _started(seen=seen)).call(CHAT, body)) == "hello there"


async def test_call_hang_cancelled_frees_its_seat() -> None:
    engine = await _started(concurrent=1)
    hung = asyncio.create_task(engine.call(CHAT, _body(echo={"hang": True})))
    behind = asyncio.create_task(engine.call(CHAT, _body(echo={"delay_ms": 1})))
    await asyncio.sleep(0.03)
    assert not hung.done()
    assert not behind.done()
    hung.cancel()
    async with asyncio.timeout(1):
        assert _said(await behind) == "hello there"
    assert hung.cancelled()


async def test_stop_ends_calls_in_flight() -> None:
    engine = await _started()
    hung = asyncio.create_task(engine.call(CHAT, _body(echo={"hang": True})))
    await asyncio.sleep(0)
    await engine.stop()
    await engine.stop()
    with pytest.raises(EngineDead):
        await hung
    assert engine.health() is Health.STOPPED


async def test_stop_while_loading_makes_start_fail() -> None:
    engine = EchoEngine(load_seconds=0.02)
    start = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(EngineDead):
        await start
    assert engine.health() is Health.STOPPED


async def test_call_many_without_delay_lets_others_run() -> None:
    engine = await _started()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def drain() -> None:
        for _ in range(1000):
            await engine.call(CHAT, _body())

    watcher = asyncio.create_task(other())
    await asyncio.gather(*(drain() for _ in range(3)))
    watcher.cancel()
    assert turns >= 3000 / 128


async def test_call_large_body_answers_off_the_loop() -> None:
    engine = await _started()
    text = "word " * 400_000
    reply = await engine.call(CHAT, _body(text))
    assert _said(reply) == text
    assert json.loads(reply.body)["usage"]["completion_tokens"] == 400_000
