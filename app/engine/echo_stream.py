"""Chat answers of the echo engine as server-sent events: a word a chunk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_WORD = re.compile(r"\s*\S+|\s+")
_encode = msgspec.json.encode


def whole(body: bytes) -> tuple[bytes, bool]:
    """(the same request without the stream, whether usage is asked for at the end); `body` is a JSON object."""
    stated: dict[str, Any] = msgspec.json.decode(body)
    stated.pop("stream", None)
    options = stated.pop("stream_options", None)
    return _encode(stated), isinstance(options, dict) and options.get("include_usage") is True


def events(reply: bytes, *, include_usage: bool) -> Iterator[bytes]:
    """The events of a whole `chat.completion`, ended by `[DONE]`."""
    answer: dict[str, Any] = msgspec.json.decode(reply)
    for choice in answer["choices"]:
        yield _event(answer, choice["index"], {"role": "assistant", "content": ""})
        for word in _WORD.findall(choice["message"]["content"]):
            yield _event(answer, choice["index"], {"content": word})
        yield _event(answer, choice["index"], {}, finish=choice["finish_reason"])
    if include_usage:
        yield _line(_head(answer) | {"choices": [], "usage": answer["usage"]})
    yield b"data: [DONE]\n\n"


def _event(answer: dict[str, Any], index: int, delta: dict[str, str], *, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _line(_head(answer) | {"choices": [choice]})


def _head(answer: dict[str, Any]) -> dict[str, Any]:
    return {"id": answer["id"], "object": "chat.completion.chunk", "created": answer["created"], "model": "echo"}


def _line(chunk: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _encode(chunk)
