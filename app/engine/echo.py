"""The echo engine: deterministic answers without a model, for tests, dry runs, and measuring everything but the model.

It serves the model name `echo`. A chat answer repeats the last user message, a completion its prompt, a response its
input; an embedding is a unit vector made from a hash of its input. Tokens are whitespace-separated words; `max_tokens`
cuts the answer. The same body gets the same bytes. What an endpoint's schema forbids is a 400 in OpenAI's envelope
with its `param`.

A body may steer its own request by a field `echo`, an object (unknown keys are a 400):

    delay_ms   wait that long, in milliseconds, on top of the engine's own delay; then answer or crash
    repeat     the answer stands that many times, with spaces between (output size; at most 64 MiB)
    status     answer with this status (400..599) and an error body whose message is
    message    this text
    busy       refuse admission (EngineBusy) the first so many times this exact body is seen
    crash      the engine dies, and every call in flight with it; a number: the first so many times this body is seen
    hang       never answer; only an abort, the engine's death or its stop ends the call

How often a body was seen is kept in `seen`; hand the same counter to the next engine and it survives a rebuild.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from app.engine import echo_reply
from app.engine.base import Capacity, Health, Reply
from app.engine.echo_request import (
    NO_STEERING,
    OUTPUT_MAX_BYTES,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Request,
    ResponseRequest,
    Steering,
    check_chat,
    check_inputs,
    check_items,
    parse,
)
from app.errors import EngineBusy, EngineDead, InvalidRequest

MODEL = "echo"
# Above this size a body is worked on in a thread: below it, the hop costs more than the work.
_INLINE_MAX_BYTES = 256 * 1024
# Calls that may end without a pause in one turn of the event loop, about 2 ms of them.
_CALLS_A_TURN = 64

_chat = msgspec.json.Decoder(ChatRequest)
_completion = msgspec.json.Decoder(CompletionRequest)
_response = msgspec.json.Decoder(ResponseRequest)
_embedding = msgspec.json.Decoder(EmbeddingRequest)

_Answer = tuple[Steering, Reply]


class EchoEngine:
    """See the module. Every call takes `delay_seconds`; at most `concurrent` delayed calls run, the others queue."""

    def __init__(
        self,
        *,
        delay_seconds: float = 0,
        concurrent: int = 256,
        load_seconds: float = 0,
        seen: Counter[bytes] | None = None,
    ) -> None:
        self._delay_seconds = delay_seconds
        self._load_seconds = load_seconds
        self._capacity = Capacity(concurrent=concurrent, window=max(64, 2 * concurrent))
        self._seats = asyncio.Semaphore(concurrent)
        self._seen: Counter[bytes] = Counter() if seen is None else seen
        self._health = Health.LOADING
        self._waiting: set[asyncio.Future[None]] = set()
        self._calls_this_turn = 0

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

    async def call(self, path: str, body: bytes) -> Reply:
        """See Engine.call and the module."""
        if self._calls_this_turn >= _CALLS_A_TURN:
            await asyncio.sleep(0)
        elif not self._calls_this_turn:
            asyncio.get_running_loop().call_soon(self._turn)
        self._calls_this_turn += 1
        answer = _ANSWERS.get(path)
        if answer is None:
            return _error(404, f"The echo engine does not serve {path}.", code="not_found")
        try:
            steering, reply = answer(body) if len(body) <= _INLINE_MAX_BYTES else await asyncio.to_thread(answer, body)
        except InvalidRequest as exc:
            return _error(400, exc.message, code=exc.code, param=exc.param)
        if self._health is not Health.READY:
            raise EngineDead(f"The echo engine is {self._health}.")
        if steering is not NO_STEERING:
            await self._steered(steering, path, body)
        elif self._delay_seconds:
            await self._occupied(self._delay_seconds)
        return reply

    async def models(self) -> Sequence[str]:
        """The one name."""
        return [MODEL]

    async def supports(self, path: str) -> bool:
        """True for the endpoints of this module."""
        return path in _ANSWERS

    def capacity(self) -> Capacity:
        """As constructed; the window is twice `concurrent`, as for a real engine."""
        return self._capacity

    def health(self) -> Health:
        """DEAD after a crash."""
        return self._health

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


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=12).hexdigest().encode()


def _error(status: int, message: str, *, code: str | None, param: str | None = None) -> Reply:
    type_ = "invalid_request_error" if status < 500 else "server_error"
    return Reply(status, echo_reply.error(message, type_=type_, code=code, param=param))


def _early(request: Request, steering: Steering) -> Reply | None:
    """The answer of a request that needs none of its own: streams, other models, failures asked for."""
    if request.stream:
        raise InvalidRequest("The echo engine does not stream.", code="unsupported_value", param="stream")
    if request.model != MODEL:
        return _error(404, f"The model '{request.model}' does not exist.", code="model_not_found", param="model")
    if steering.status is not None:
        return _error(steering.status, steering.message, code="echo_failure")
    return None


def _sized(text_bytes: int, copies: int) -> None:
    if text_bytes * copies > OUTPUT_MAX_BYTES:
        message = f"The answer would be longer than {OUTPUT_MAX_BYTES} bytes."
        raise InvalidRequest(message, code="invalid_value", param="echo.repeat")


def _answer_chat(body: bytes) -> _Answer:
    request = parse(_chat, body)
    steering = request.echo or NO_STEERING
    check_chat(request)
    early = _early(request, steering)
    if early is not None:
        return steering, early
    if steering.repeat > 1 or (request.n or 1) > 1:
        _sized(len(body), steering.repeat * (request.n or 1))
    return steering, Reply(200, echo_reply.chat(request, digest=_digest(body), repeat=steering.repeat))


def _answer_completion(body: bytes) -> _Answer:
    request = parse(_completion, body)
    steering = request.echo if isinstance(request.echo, Steering) else NO_STEERING
    prompts = check_inputs(request.prompt, param="prompt")
    early = _early(request, steering)
    if early is not None:
        return steering, early
    _sized(len(body), (steering.repeat + (request.echo is True)) * (request.n or 1))
    return steering, Reply(200, echo_reply.completion(request, prompts, digest=_digest(body), repeat=steering.repeat))


def _answer_response(body: bytes) -> _Answer:
    request = parse(_response, body)
    steering = request.echo or NO_STEERING
    if isinstance(request.input, list):
        check_items(request.input)
    early = _early(request, steering)
    if early is not None:
        return steering, early
    _sized(len(body), steering.repeat)
    return steering, Reply(200, echo_reply.response(request, digest=_digest(body), repeat=steering.repeat))


def _answer_embedding(body: bytes) -> _Answer:
    request = parse(_embedding, body)
    steering = request.echo or NO_STEERING
    inputs = check_inputs(request.input, param="input")
    early = _early(request, steering)
    if early is not None:
        return steering, early
    return steering, Reply(200, echo_reply.embeddings(request, inputs))


_ANSWERS: dict[str, Callable[[bytes], _Answer]] = {
    "/v1/chat/completions": _answer_chat,
    "/v1/completions": _answer_completion,
    "/v1/responses": _answer_response,
    "/v1/embeddings": _answer_embedding,
}
