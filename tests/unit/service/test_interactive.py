"""What is refused before an engine has the request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.engine.base import Health
from app.engine.echo import EchoEngine
from app.engine.supervised import SupervisedEngine
from app.errors import InvalidRequest, NotFound, Unavailable
from app.service.interactive import InteractiveService

CHAT = "/v1/chat/completions"


async def never() -> Any:
    await asyncio.Event().wait()


async def nowhere(message: Any) -> None:
    raise AssertionError(message)


class Engine:
    """In a state of the test's choice."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def health(self) -> Health:
        return self._health

    async def supports(self, path: str) -> bool:
        return path == CHAT

    async def handle(self, scope: Any, body: bytes, **_: Any) -> None:
        raise AssertionError("it must not be asked")


async def test_check_without_an_engine_or_switched_off() -> None:
    with pytest.raises(NotFound, match="no model of its own"):
        await InteractiveService(engine=None).check(CHAT)
    with pytest.raises(NotFound, match="switched off"):
        await InteractiveService(engine=Engine(Health.READY), enabled=False).check(CHAT)


@pytest.mark.parametrize(
    ("health", "words"), [(Health.LOADING, "loading"), (Health.DEAD, "restarted"), (Health.STOPPED, "stopping")]
)
async def test_check_while_the_engine_is_away(health: Health, words: str) -> None:
    with pytest.raises(Unavailable, match=words) as caught:
        await InteractiveService(engine=Engine(health)).check(CHAT)
    assert caught.value.headers() == {"retry-after": "2"}


async def test_check_endpoint_of_another_model() -> None:
    service = InteractiveService(engine=Engine(Health.READY))
    await service.check(CHAT)
    await service.check("/v1/models")
    with pytest.raises(NotFound, match=f"does not answer /v1/embeddings. It answers: {CHAT}."):
        await service.check("/v1/embeddings")


async def test_check_before_the_engine_was_ever_ready() -> None:
    engine = SupervisedEngine(lambda: EchoEngine(load_seconds=60))
    with pytest.raises(Unavailable):
        await InteractiveService(engine=engine).check(CHAT)


@pytest.mark.parametrize("padding", [0, 300_000])
async def test_answer_refuses_conversations_in_front_of_the_engine(padding: int) -> None:
    engine = SupervisedEngine(EchoEngine)
    await engine.start()
    assert await engine.wait_ready()
    body = b'{"model":"echo","messages":[{"role":"user","content":"%b"}]}' % (b"x" * padding)
    try:
        with pytest.raises(InvalidRequest) as caught:
            await InteractiveService(engine=engine).answer(
                {"method": "POST", "path": f"{CHAT}/batch"}, body, receive=never, send=nowhere
            )
        assert caught.value.param == "messages[0]"
    finally:
        await engine.stop()
