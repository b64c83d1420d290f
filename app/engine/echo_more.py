"""Endpoints of the echo engine beyond OpenAI's batch list. Requests and replies.

Messages answer like chat. Two texts score by the share of words they have in common. A token is a byte of UTF-8. A line
with audio is answered by the size of what its `file_url` names and a digest of it.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.engine.echo_reply import cut, last_user_text, repeated, text_of, words
from app.engine.echo_request import Message, Request, Steering, check_messages, missing
from app.errors import InvalidRequest

_encode = msgspec.json.encode

_Texts = str | Annotated[list[str], Meta(min_length=1, max_length=2048)] | None


class MessagesRequest(Request, kw_only=True):
    """`/v1/messages`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)]
    system: str | list[dict[str, Any]] | None = None
    echo: Steering | None = None


class ScoreRequest(Request, kw_only=True):
    """`/v1/score` and `/score`."""

    queries: _Texts = None
    documents: _Texts = None
    items: _Texts = None
    text_1: _Texts = None
    text_2: _Texts = None
    data_1: _Texts = None
    data_2: _Texts = None
    echo: Steering | None = None


class RerankRequest(Request, kw_only=True):
    """`/v1/rerank`, `/rerank` and `/v2/rerank`."""

    query: str
    documents: Annotated[list[str], Meta(min_length=1, max_length=2048)]
    top_n: Annotated[int, Meta(ge=0)] = 0
    echo: Steering | None = None


class TokenizeRequest(Request, kw_only=True):
    """`/tokenize`."""

    model: str = "echo"
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    echo: Steering | None = None


class DetokenizeRequest(Request, kw_only=True):
    """`/detokenize`."""

    model: str = "echo"
    tokens: list[Annotated[int, Meta(ge=0, le=255)]]
    echo: Steering | None = None


class SpeechRequest(Request, kw_only=True):
    """A batch line to `/v1/audio/transcriptions` or `/v1/audio/translations`."""

    file_url: str
    echo: Steering | None = None


def message(request: MessagesRequest) -> bytes:
    """A `message` with one text block."""
    check_messages(request.messages)
    repeat = request.echo.repeat if request.echo else 1
    answer, tokens, finish = cut(repeated(last_user_text(request.messages), repeat), request.max_tokens)
    asked = sum(words(text_of(turn.content)) for turn in request.messages)
    asked += words(request.system) if isinstance(request.system, str) else 0
    return _encode(
        {
            "id": f"msg_{_name(request)}",
            "type": "message",
            "role": "assistant",
            "model": "echo",
            "content": [{"type": "text", "text": answer}],
            "stop_reason": "end_turn" if finish == b"stop" else "max_tokens",
            "stop_sequence": None,
            "usage": {"input_tokens": asked, "output_tokens": tokens},
        }
    )


def score(request: ScoreRequest) -> bytes:
    """A `list` of scores: one for each pair, or for each text of the second side with the only one of the first."""
    first = request.queries or request.text_1 or request.data_1
    second = request.documents or request.items or request.text_2 or request.data_2
    if first is None or second is None:
        raise missing("queries" if first is None else "documents")
    left, right = ([side] if isinstance(side, str) else side for side in (first, second))
    if len(left) == 1:
        left = left * len(right)
    if len(left) != len(right):
        message = "Invalid 'queries': one text, or as many as there are documents."
        raise InvalidRequest(message, code="invalid_value", param="queries")
    pairs = list(zip(left, right, strict=True))
    data = [{"index": at, "object": "score", "score": _likeness(*pair)} for at, pair in enumerate(pairs)]
    asked = sum(words(a) + words(b) for a, b in pairs)
    return _encode(
        {
            "id": f"score-{_name(request)}",
            "object": "list",
            "created": 1_700_000_000,
            "model": "echo",
            "data": data,
            "usage": {"prompt_tokens": asked, "total_tokens": asked, "completion_tokens": 0},
        }
    )


def rerank(request: RerankRequest) -> bytes:
    """The documents by their likeness to the query, the best first."""
    documents = request.documents
    results = [
        {"index": at, "document": {"text": document}, "relevance_score": _likeness(request.query, document)}
        for at, document in enumerate(documents)
    ]
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    asked = len(documents) * words(request.query) + sum(map(words, documents))
    return _encode(
        {
            "id": f"rerank-{_name(request)}",
            "model": "echo",
            "usage": {"prompt_tokens": asked, "total_tokens": asked},
            "results": results[: request.top_n or None],
        }
    )


def tokens(request: TokenizeRequest) -> bytes:
    """Token ids of a prompt or of all messages."""
    if request.prompt is None and request.messages is None:
        raise missing("prompt")
    given = request.prompt or "".join(text_of(turn.content) for turn in request.messages or ())
    found = list(given.encode())
    return _encode({"count": len(found), "max_model_len": 1 << 20, "tokens": found, "token_strs": None})


def text(request: DetokenizeRequest) -> bytes:
    """The text of token ids."""
    return _encode({"prompt": bytes(request.tokens).decode(errors="replace")})


def transcript(audio: bytes) -> bytes:
    """What an audio line is answered with; its usage is in seconds of 16 kHz samples of two bytes."""
    said = f"{len(audio)} bytes {hashlib.blake2b(audio, digest_size=12).hexdigest()}"
    return _encode({"text": said, "usage": {"type": "duration", "seconds": -(-len(audio) // 32_000)}})


def _likeness(a: str, b: str) -> float:
    left, right = set(a.lower().split()), set(b.lower().split())
    return len(left & right) / len(left | right) if left | right else 1.0


def _name(request: Request) -> str:
    return hashlib.blake2b(_encode(request), digest_size=12).hexdigest()
