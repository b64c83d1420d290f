"""`/v1/chat/completions/batch`: many conversations in one request, and what such a request cannot ask for.

The answer has one choice a conversation, in their order, and the sum of their usage. vLLM's own check lets `stream`
and `tools` fall under the table and answers a wrong `messages` in its own words; this one stands in front of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

_UNSET = msgspec.UNSET
_Maybe = msgspec.Raw | msgspec.UnsetType
_OFF = (b"false", b"null")

_list = msgspec.json.Decoder(list[msgspec.Raw])


class _Body(msgspec.Struct):
    messages: _Maybe = _UNSET
    stream: _Maybe = _UNSET
    tools: _Maybe = _UNSET
    tool_choice: _Maybe = _UNSET
    functions: _Maybe = _UNSET
    use_beam_search: _Maybe = _UNSET
    n: _Maybe = _UNSET


_body = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is wrong with a body, in the terms of OpenAI's envelope; `param` is a path inside the body."""

    code: str
    message: str
    param: str


def refusal_of(body: bytes) -> Refusal | None:
    """The first thing that is wrong with `body`; None for a good one, and for text that is not even a JSON object."""
    try:
        head = _body.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return _unsupported(head) or _misshapen(head.messages)


def _unsupported(head: _Body) -> Refusal | None:
    asked = {
        "stream": ("streaming", _is_on(head.stream)),
        "tools": ("tools", _is_on(head.tools) and _text(head.tools) != b"[]"),
        "functions": ("tools", _is_on(head.functions) and _text(head.functions) != b"[]"),
        "tool_choice": ("tools", _is_on(head.tool_choice) and _text(head.tool_choice) != b'"none"'),
        "use_beam_search": ("beam search", _is_on(head.use_beam_search)),
        "n": ("more than one choice a conversation", _is_on(head.n) and _text(head.n) != b"1"),
    }
    for param, (what, is_asked) in asked.items():
        if is_asked:
            message = f"'{param}' is not supported here: /v1/chat/completions/batch knows no {what}."
            return Refusal("unsupported_parameter", message, param)
    return None


def _misshapen(messages: _Maybe) -> Refusal | None:
    if isinstance(messages, msgspec.UnsetType):
        return Refusal("missing_required_parameter", "Missing required parameter: 'messages'.", "messages")
    conversations = _items(messages)
    if conversations is None:
        return _wrong_type("messages", "an array of conversations")
    if not conversations:
        return _empty("messages", "conversation")
    for index, conversation in enumerate(conversations):
        where = f"messages[{index}]"
        turns = _items(conversation)
        if turns is None:
            return _wrong_type(where, "a conversation, which is an array of messages")
        if not turns:
            return _empty(where, "message")
        if not all(bytes(turn).startswith(b"{") for turn in turns):
            return _wrong_type(where, "an array of messages, each of them an object")
    return None


def _items(raw: msgspec.Raw) -> list[msgspec.Raw] | None:
    return _list.decode(raw) if bytes(raw).startswith(b"[") else None


def _is_on(value: _Maybe) -> bool:
    return not isinstance(value, msgspec.UnsetType) and bytes(value) not in _OFF


def _text(value: _Maybe) -> bytes:
    if isinstance(value, msgspec.UnsetType):
        return b""
    # `[ ]` and `1.0` say the same as `[]` and `1`.
    return msgspec.json.encode(number) if (number := _whole(value)) is not None else b"".join(bytes(value).split())


def _whole(value: msgspec.Raw) -> int | None:
    try:
        return int(msgspec.json.decode(value, type=float))
    except (msgspec.DecodeError, OverflowError, ValueError):
        return None


def _empty(param: str, item: str) -> Refusal:
    message = f"Invalid '{param}': empty array. Expected an array with at least one {item}."
    return Refusal("empty_array", message, param)


def _wrong_type(param: str, expected: str) -> Refusal:
    return Refusal("invalid_type", f"Invalid type for '{param}': expected {expected}.", param)
