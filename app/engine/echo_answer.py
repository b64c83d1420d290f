"""What the echo engine answers, endpoint by endpoint: a body in, its steering and its reply out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from app.domain.conversations import refusal_of
from app.domain.endpoint import CONVERSATIONS
from app.engine import echo_more, echo_reply
from app.engine.base import Reply
from app.engine.echo_request import (
    NO_STEERING,
    OUTPUT_MAX_BYTES,
    ChatRequest,
    CompletionRequest,
    ConversationsRequest,
    EmbeddingRequest,
    Request,
    ResponseRequest,
    Steering,
    check_chat,
    check_inputs,
    check_items,
    check_messages,
    parse,
)
from app.engine.media import MediaRules, fetch
from app.errors import InvalidRequest

MODEL = "echo"

_chat = msgspec.json.Decoder(ChatRequest)
_completion = msgspec.json.Decoder(CompletionRequest)
_response = msgspec.json.Decoder(ResponseRequest)
_embedding = msgspec.json.Decoder(EmbeddingRequest)
_speech = msgspec.json.Decoder(echo_more.SpeechRequest)
_conversations = msgspec.json.Decoder(ConversationsRequest)

Answer = tuple[Steering, Reply]


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=12).hexdigest().encode()


def error(status: int, message: str, *, code: str | None, param: str | None = None) -> Reply:
    type_ = "invalid_request_error" if status < 500 else "server_error"
    return Reply(status, echo_reply.error(message, type_=type_, code=code, param=param))


def _early(request: Request, steering: Steering) -> Reply | None:
    """The answer of a request that needs none of its own: streams, other models, failures asked for."""
    if request.stream:
        raise InvalidRequest("The echo engine does not stream.", code="unsupported_value", param="stream")
    if request.model != MODEL:
        return error(404, f"The model '{request.model}' does not exist.", code="model_not_found", param="model")
    if steering.status is not None:
        return error(steering.status, steering.message, code="echo_failure")
    return None


def _sized(text_bytes: int, copies: int) -> None:
    if text_bytes * copies > OUTPUT_MAX_BYTES:
        message = f"The answer would be longer than {OUTPUT_MAX_BYTES} bytes."
        raise InvalidRequest(message, code="invalid_value", param="echo.repeat")


def _answer_chat(body: bytes) -> Answer:
    request = parse(_chat, body)
    steering = request.echo or NO_STEERING
    check_chat(request)
    early = _early(request, steering)
    if early is not None:
        return steering, early
    if steering.repeat > 1 or (request.n or 1) > 1:
        _sized(len(body), steering.repeat * (request.n or 1))
    return steering, Reply(200, echo_reply.chat(request, digest=_digest(body), repeat=steering.repeat))


def _answer_completion(body: bytes) -> Answer:
    request = parse(_completion, body)
    steering = request.echo if isinstance(request.echo, Steering) else NO_STEERING
    prompts = check_inputs(request.prompt, param="prompt")
    early = _early(request, steering)
    if early is not None:
        return steering, early
    _sized(len(body), (steering.repeat + (request.echo is True)) * (request.n or 1))
    return steering, Reply(200, echo_reply.completion(request, prompts, digest=_digest(body), repeat=steering.repeat))


def _answer_response(body: bytes) -> Answer:
    request = parse(_response, body)
    steering = request.echo or NO_STEERING
    if isinstance(request.input, list):
        check_items(request.input)
    early = _early(request, steering)
    if early is not None:
        return steering, early
    _sized(len(body), steering.repeat)
    return steering, Reply(200, echo_reply.response(request, digest=_digest(body), repeat=steering.repeat))


def _answer_embedding(body: bytes) -> Answer:
    request = parse(_embedding, body)
    steering = request.echo or NO_STEERING
    inputs = check_inputs(request.input, param="input")
    early = _early(request, steering)
    if early is not None:
        return steering, early
    return steering, Reply(200, echo_reply.embeddings(request, inputs))


def _answer_conversations(body: bytes) -> Answer:
    refusal = refusal_of(body)
    if refusal is not None:
        raise InvalidRequest(refusal.message, code=refusal.code, param=refusal.param)
    request = parse(_conversations, body)
    steering = request.echo or NO_STEERING
    for conversation in request.messages:
        check_messages(conversation)
    early = _early(request, steering)
    if early is not None:
        return steering, early
    _sized(len(body), steering.repeat)
    return steering, Reply(200, echo_reply.conversations(request, digest=_digest(body), repeat=steering.repeat))


async def hear(body: bytes, *, rules: MediaRules) -> Answer:
    """The answer of a line with audio, which is downloaded. Raises InvalidRequest."""
    request = parse(_speech, body)
    steering = request.echo or NO_STEERING
    early = _early(request, steering)
    if early is not None:
        return steering, early
    return steering, Reply(200, echo_more.transcript(await fetch(request.file_url, rules=rules)))


def _other(decoder: msgspec.json.Decoder[Any], reply: Callable[[Any], bytes]) -> Callable[[bytes], Answer]:
    """An endpoint of echo_more."""

    def answer(body: bytes) -> Answer:
        request = parse(decoder, body)
        steering = request.echo or NO_STEERING
        return steering, _early(request, steering) or Reply(200, reply(request))

    return answer


_score = _other(msgspec.json.Decoder(echo_more.ScoreRequest), echo_more.score)
_rerank = _other(msgspec.json.Decoder(echo_more.RerankRequest), echo_more.rerank)

ANSWERS: dict[str, Callable[[bytes], Answer]] = {
    "/v1/chat/completions": _answer_chat,
    "/v1/completions": _answer_completion,
    "/v1/responses": _answer_response,
    "/v1/embeddings": _answer_embedding,
    CONVERSATIONS: _answer_conversations,
    "/v1/messages": _other(msgspec.json.Decoder(echo_more.MessagesRequest), echo_more.message),
    "/v1/score": _score,
    "/score": _score,
    "/v1/rerank": _rerank,
    "/rerank": _rerank,
    "/v2/rerank": _rerank,
    "/tokenize": _other(msgspec.json.Decoder(echo_more.TokenizeRequest), echo_more.tokens),
    "/detokenize": _other(msgspec.json.Decoder(echo_more.DetokenizeRequest), echo_more.text),
}
