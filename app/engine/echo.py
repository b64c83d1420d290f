"""The echo engine: deterministic answers without a model, for tests, dry runs, and measuring everything but the model.

It serves the model name `echo`. A chat answer repeats the last user message, a completion its prompt, a response its
input; an embedding is a unit vector made from a hash of its input. Tokens are whitespace-separated words; `max_tokens`
cuts the answer. Messages, score, rerank, tokens and batch lines with audio: app/engine/echo_more.py. The same body gets
the same bytes. What an endpoint's schema forbids is a 400 in OpenAI's envelope with its `param`.

A body may steer its own request by a field `echo`, an object (unknown keys are a 400):

    delay_ms   wait that long, in milliseconds, on top of the engine's own delay; then answer or crash
    repeat     the answer stands that many times, with spaces between (output size; at most 64 MiB)
    status     answer with this status (400..599) and an error body whose message is
    message    this text
    busy       refuse admission (EngineBusy) the first so many times this exact body is seen
    crash      the engine dies, and every call in flight with it; a number: the first so many times this body is seen
    hang       never answer; only an abort, the engine's death or its stop ends the call

With a `journal`, each request adds the line `NANOSECONDS PID DIGEST` to that file before it is worked on: the machine's
steady clock, the process, and `journal_digest` of the body. It survives the process, and says what ran, and how often.

How often a body was seen is kept in `seen`; hand the same counter to the next engine and it survives a rebuild.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from app.domain.endpoint import CHAT, SPEECH
from app.engine import bridge, echo_stream
from app.engine.base import Capacity, Health, Pulse, Reply
from app.engine.echo_answer import ANSWERS, MODEL, error, hear
from app.engine.echo_request import NO_STEERING, Steering
from app.engine.exchange import Message, Receive, Send
from app.engine.media import MediaRules
from app.errors import EngineBusy, EngineDead, InvalidRequest

# Above this size a body is worked on in a thread: below it, the hop costs more than the work.
_INLINE_MAX_BYTES = 256 * 1024
# Calls that may end without a pause in one turn of the event loop, about 2 ms of them.
_CALLS_A_TURN = 64


class EchoEngine:
    """See the module. Every call takes `delay_seconds`; at most `concurrent` delayed calls run, the others queue."""

    def __init__(
        self,
        *,
        delay_seconds: float = 0,
        concurrent: int = 256,
        load_seconds: float = 0,
        seen: Counter[bytes] | None = None,
        journal: Path | None = None,
        media: MediaRules | None = None,
    ) -> None:
        self._media = media or MediaRules()
        self._delay_seconds = delay_seconds
        self._load_seconds = load_seconds
        self._capacity = Capacity(concurrent=concurrent, window=max(64, 2 * concurrent))
        self._seats = asyncio.Semaphore(concurrent)
        self._seen: Counter[bytes] = Counter() if seen is None else seen
        self._journal = None if journal is None else journal.open("ab", buffering=0)
        self._health = Health.LOADING
        self._waiting: set[asyncio.Future[None]] = set()
        self._calls_this_turn = 0
        self._beats = 0

    async def start(self) -> None:
        """Ready after `load_seconds`."""
        if self._load_seconds:
            await asyncio.sleep(self._load_seconds)
        if self._health is Health.STOPPED:
            raise EngineDead("The echo engine was stopped while it loaded.")
        self._health = Health.READY

    async def stop(self) -> None:
        """Calls in flight raise EngineDead."""
        self._end(Health.STOPPED)
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def pulse(self) -> Pulse:
        """A beat is an answer."""
        return Pulse(len(self._waiting), self._beats)

    async def kill(self) -> None:
        """Calls in flight raise EngineDead."""
        self._end(Health.DEAD)

    async def call(self, path: str, body: bytes) -> Reply:
        """See Engine.call and the module."""
        if self._calls_this_turn >= _CALLS_A_TURN:
            await asyncio.sleep(0)
        elif not self._calls_this_turn:
            asyncio.get_running_loop().call_soon(self._turn)
        self._calls_this_turn += 1
        if self._journal is not None and self._health is Health.READY:
            self._journal.write(b"%d %d %b\n" % (time.monotonic_ns(), os.getpid(), journal_digest(body)))
        try:
            steering, reply = await self._answer(path, body)
        except InvalidRequest as exc:
            return error(400, exc.message, code=exc.code, param=exc.param)
        if self._health is not Health.READY:
            raise EngineDead(f"The echo engine is {self._health}.")
        if steering is not NO_STEERING:
            await self._steered(steering, path, body)
        elif self._delay_seconds:
            await self._occupied(self._delay_seconds)
        self._beats += 1
        return reply

    async def handle(self, scope: Message, body: bytes, *, receive: Receive, send: Send) -> None:
        """As Interactive.handle. Only chat streams."""
        if self._health is not Health.READY:
            raise EngineDead(f"The echo engine is {self._health}.")
        if scope["path"] != CHAT or not bridge.asks_for_stream(body):
            await bridge.handle(self, scope, body, receive=receive, send=send)
            return
        plain, include_usage = echo_stream.whole(body)
        reply = await bridge.call(self, CHAT, plain, receive=receive)
        if reply is None:
            return
        if reply.status != 200:
            await bridge.reply_with(reply, send)
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in echo_stream.events(reply.body, include_usage=include_usage):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def models(self) -> Sequence[str]:
        """The one name."""
        return [MODEL]

    async def supports(self, path: str) -> bool:
        """True for the endpoints of this module."""
        return path in ANSWERS or path in SPEECH

    def capacity(self) -> Capacity:
        """As constructed; the window is twice `concurrent`, as for a real engine."""
        return self._capacity

    def health(self) -> Health:
        """DEAD after a crash."""
        return self._health

    async def _answer(self, path: str, body: bytes) -> tuple[Steering, Reply]:
        """Raises InvalidRequest."""
        if path in SPEECH:
            return await hear(body, rules=self._media)
        answer = ANSWERS.get(path)
        if answer is None:
            return NO_STEERING, error(404, f"The echo engine does not serve {path}.", code="not_found")
        return answer(body) if len(body) <= _INLINE_MAX_BYTES else await asyncio.to_thread(answer, body)

    async def _steered(self, steering: Steering, path: str, body: bytes) -> None:
        if steering.busy and self._times_seen(b"busy", path, body) <= steering.busy:
            raise EngineBusy("The request asked the engine to be busy.")
        delay_seconds = self._delay_seconds + steering.delay_ms / 1000
        if steering.hang or delay_seconds:
            await self._occupied(None if steering.hang else delay_seconds)
        if steering.crash is True or (steering.crash and self._times_seen(b"crash", path, body) <= steering.crash):
            self._end(Health.DEAD)
            raise EngineDead("The request asked the engine to die.")

    def _times_seen(self, what: bytes, path: str, body: bytes) -> int:
        key = hashlib.blake2b(b"%b %b %b" % (what, path.encode(), body), digest_size=16).digest()
        self._seen[key] += 1
        return self._seen[key]

    async def _occupied(self, seconds: float | None) -> None:
        """Hold a seat for `seconds` (None: for ever). Raises EngineDead when the engine ends meanwhile."""
        async with self._seats:
            if self._health is not Health.READY:
                raise EngineDead("The echo engine ended while the request was queued.")
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()
            timer = None if seconds is None else loop.call_later(seconds, _finish, done)
            self._waiting.add(done)
            try:
                await done
            finally:
                self._waiting.discard(done)
                if timer is not None:
                    timer.cancel()

    def _end(self, health: Health) -> None:
        if self._health is not Health.STOPPED:
            self._health = health
        for done in self._waiting:
            if not done.done():
                done.set_exception(EngineDead("The echo engine ended with the request in flight."))

    def _turn(self) -> None:
        self._calls_this_turn = 0


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def journal_digest(body: bytes) -> bytes:
    """How the journal names a body: 32 hex digits."""
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()
