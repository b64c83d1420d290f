"""Requests that clients wait for, answered by the same engine that runs the batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

import msgspec
import structlog

from app import telemetry
from app.domain.conversations import refusal_of
from app.domain.endpoint import BATCH_ENDPOINTS, CONVERSATIONS
from app.engine.base import Health
from app.engine.exchange import Exchange
from app.errors import EngineBusy, EngineDead, InvalidRequest, NotFound, Unavailable

log = structlog.get_logger()

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

MODELS = "/v1/models"

#: Paths beside those a batch may name, and what their requests are for.
EXTRA_PATHS: Mapping[str, str] = {
    "/tokenize": "Tokens of a text",
    "/detokenize": "Text of tokens",
    "/v1/messages/count_tokens": "Tokens of a message request",
    "/pooling": "Raw outputs of a pooling model",
    "/classify": "Classes of texts",
}
#: A model takes half a minute to load, and a client that asks every two seconds costs nothing.
RETRY_AFTER_SECONDS = 2
#: Above this size a body is looked at in a thread.
_INLINE_MAX_BYTES = 256 * 1024


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


class InteractiveEngine(Protocol):
    """What this service asks of an engine."""

    def health(self) -> Health: ...

    async def supports(self, path: str) -> bool: ...

    async def handle(self, scope: _Message, body: bytes, *, receive: _Receive, send: _Send) -> None: ...


class InteractiveService:
    """Hands requests to the engine of this process; without one, says where they are answered."""

    def __init__(self, *, engine: InteractiveEngine | None, enabled: bool = True) -> None:
        self._engine = engine
        self._enabled = enabled

    async def check(self, path: str) -> None:
        """Refuse what cannot be answered now, before a body is read.

        Raises NotFound without an engine or for an endpoint that its model does not serve; Unavailable, with the time
        to come again, while the engine loads.
        """
        if not self._enabled:
            raise NotFound("This server answers no interactive requests: they are switched off.", code="not_served")
        engine = self._engine
        if engine is None:
            message = "This server takes batches and has no model of its own: ask a server that runs one."
            raise NotFound(message, code="not_served")
        if engine.health() is not Health.READY:
            raise _unavailable(engine.health())
        try:
            if path == MODELS or await engine.supports(path):
                return
            served = [known for known in (*BATCH_ENDPOINTS, *EXTRA_PATHS) if await engine.supports(known)]
        except EngineDead as exc:
            raise _unavailable(engine.health()) from exc
        raise NotFound(
            f"The model served here does not answer {path}. It answers: {', '.join(served) or 'nothing'}.",
            code="unsupported_endpoint",
        )

    async def model(self, name: str) -> dict[str, Any]:
        """The entry of `/v1/models` with this id. Raises as `check`, and NotFound when there is none."""
        await self.check(MODELS)
        engine = self._engine
        assert engine is not None  # `check` says so
        exchange = Exchange(MODELS, method="GET")
        try:
            await exchange.run(lambda scope, receive, send: engine.handle(scope, b"", receive=receive, send=send))
        except EngineDead as exc:
            raise _unavailable(engine.health()) from exc
        for card in msgspec.json.decode(exchange.body, type=_Models).data:
            if card.get("id") == name:
                return card
        raise NotFound(f"The model '{name[:256]}' does not exist.", code="model_not_found", param="model")

    async def answer(self, scope: _Message, body: bytes, *, receive: _Receive, send: _Send) -> None:
        """Let the engine answer the client. `body` has been read; the answer goes to `send` as the engine makes it.

        Raises as `check`, and InvalidRequest for a request that the endpoint would misunderstand; nothing once the
        answer has begun but what the engine itself raises.
        """
        await self.check(scope["path"])
        engine = self._engine
        assert engine is not None  # `check` says so
        if scope["path"] == CONVERSATIONS:
            await _check_conversations(body)
        with telemetry.INTERACTIVE_INFLIGHT.track_inprogress():
            try:
                await engine.handle(scope, body, receive=receive, send=send)
            except EngineDead as exc:
                raise _unavailable(engine.health()) from exc
            except EngineBusy as exc:
                raise Unavailable(
                    "The model server has no room for more requests now.", retry_after_seconds=exc.retry_after_seconds
                ) from exc


async def _check_conversations(body: bytes) -> None:
    refusal = refusal_of(body) if len(body) <= _INLINE_MAX_BYTES else await asyncio.to_thread(refusal_of, body)
    if refusal is not None:
        raise InvalidRequest(refusal.message, code=refusal.code, param=refusal.param)


def _unavailable(health: Health) -> Unavailable:
    words = {
        Health.LOADING: "The model is loading. Try again in a moment.",
        Health.STOPPED: "The server is stopping.",
    }
    message = words.get(health, "The model server is being restarted. Try again in a moment.")
    return Unavailable(message, retry_after_seconds=RETRY_AFTER_SECONDS, code="engine_not_ready")
