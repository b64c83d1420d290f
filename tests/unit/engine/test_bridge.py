"""Clients answered by an engine that only knows `call`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.engine import bridge
from app.engine.base import Interactive
from app.engine.echo import EchoEngine
from app.engine.exchange import Message
from app.engine.supervised import SupervisedEngine
from app.errors import InvalidRequest

CHAT = "/v1/chat/completions"


class Plain:
    """An EchoEngine reduced to the contract."""

    def __init__(self) -> None:
        inner = EchoEngine()
        self.start, self.stop, self.call, self.models = inner.start, inner.stop, inner.call, inner.models
        self.supports, self.capacity, self.health = inner.supports, inner.capacity, inner.health


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "echo", "messages": [{"role": "user", "content": "hi"}]} | fields).encode()


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def asked(engine: EchoEngine, raw: bytes, *, method: str = "POST", path: str = CHAT) -> tuple[int, bytes]:
    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    await bridge.handle(engine, {"method": method, "path": path}, raw, receive=never, send=keep)
    start, content = sent
    assert (b"content-length", b"%d" % len(content["body"])) in start["headers"]
    return start["status"], content["body"]


@pytest.fixture
async def engine() -> EchoEngine:
    engine = EchoEngine()
    await engine.start()
    return engine


async def test_handle_answers_by_call(engine: EchoEngine) -> None:
    assert await asked(engine, body()) == (200, (await engine.call(CHAT, body())).body)
    assert (await asked(engine, b"{"))[0] == 400


async def test_handle_lists_models(engine: EchoEngine) -> None:
    status, content = await asked(engine, b"", method="GET", path="/v1/models")
    assert (status, [card["id"] for card in json.loads(content)["data"]]) == (200, ["echo"])


async def test_handle_refuses_a_stream(engine: EchoEngine) -> None:
    with pytest.raises(InvalidRequest, match="does not stream"):
        await asked(engine, body(stream=True))


async def test_call_aborts_when_the_client_goes(engine: EchoEngine) -> None:
    async def gone() -> Message:
        await asyncio.sleep(0.02)
        return {"type": "http.disconnect"}

    assert await bridge.call(engine, CHAT, body(echo={"hang": True}), receive=gone) is None
    assert engine.pulse().inside == 0


async def test_call_cancelled_aborts(engine: EchoEngine) -> None:
    calling = asyncio.create_task(bridge.call(engine, CHAT, body(echo={"hang": True}), receive=never))
    await asyncio.sleep(0.02)
    calling.cancel()
    await asyncio.wait({calling})
    assert engine.pulse().inside == 0


async def test_supervised_engine_answers_by_either_way() -> None:
    for kind in (EchoEngine, Plain):
        inner = kind()
        assert isinstance(inner, Interactive) is (kind is EchoEngine)
        engine = SupervisedEngine(lambda inner=inner: inner)  # type: ignore[misc]
        await engine.start()
        assert await engine.wait_ready()
        sent: list[Message] = []

        async def keep(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        await engine.handle({"method": "POST", "path": CHAT}, body(), receive=never, send=keep)
        assert sent[0]["status"] == 200
        await engine.stop()
