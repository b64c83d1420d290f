"""The engine contract: what the drain and the interactive routes may rely on.

Who: one engine serves one process; the worker and (with `vllm`) the interactive routes share it.
Until when: from a `start()` that returned until `stop()`; between them the engine may die, and says so by `health()`
and by raising EngineDead from every call in flight within a second. A dead engine is never called again; a new one is
built.
In which order: `start()` once, then any number of concurrent `call()`s, then `stop()` once. `stop()` leaves nothing
running, also after a failed or unfinished `start()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from app.engine.exchange import Message, Receive, Send


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of one OpenAI request: HTTP status and body bytes, exactly as the engine wrote them."""

    status: int
    body: bytes


class Health(StrEnum):
    """States of an engine as `/ready` shows them."""

    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many requests the engine works on at once (`concurrent`), and the window that keeps it busy (`window`)."""

    concurrent: int
    window: int


class Engine(Protocol):
    """One model server, in this process or behind it."""

    async def start(self) -> None:
        """Load, without blocking the event loop. Raises SettingsInvalid when it can never work, EngineDead else."""

    async def stop(self) -> None:
        """Abort what is in flight and end every process and thread of the engine. Idempotent."""

    async def call(self, path: str, body: bytes) -> Reply:
        """Run one OpenAI request: `path` is the endpoint, `body` its JSON, passed on untouched.

        A bad request is a Reply with its 4xx status, never an exception. Cancelling the call aborts the request
        inside the engine before CancelledError propagates. Raises EngineDead when the engine died under the request,
        EngineBusy when it refused admission for now.
        """

    async def models(self) -> Sequence[str]:
        """Names a request's `model` may carry."""

    async def supports(self, path: str) -> bool:
        """True when the loaded model can answer requests to `path`."""

    def capacity(self) -> Capacity:
        """Sizes of this engine; fixed while it lives."""

    def health(self) -> Health:
        """The state now. Cheap: asked on every `/ready` and several times a second by the drain."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """Signs of life: how many requests are `inside`, and `beats`, which changes whenever something is done for one."""

    inside: int
    beats: int


@runtime_checkable
class Killable(Protocol):
    """What an engine offers besides, so that one which hangs can be told, and ended."""

    def pulse(self) -> Pulse:
        """Now, while it is ready. Cheap: asked several times a second."""

    async def kill(self) -> None:
        """End it the hard way. It is dead afterwards, as if it had died by itself; `stop()` still follows."""


@runtime_checkable
class Interactive(Protocol):
    """An engine that answers clients itself, with streams. For the others, app/engine/bridge.py answers by `call`."""

    async def handle(self, scope: Message, body: bytes, *, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, whose `body` has been read. What the engine answers goes out as it is made.

        A client that goes (`receive` says so) aborts the request inside the engine, and so does cancelling the call.
        Raises EngineDead when the engine died before it began to answer.
        """
