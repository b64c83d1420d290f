"""The order in which a chunk's lines are sent: shared prefixes side by side, then long answers first.

Lines with the same leading messages run next to each other, so that the engine's prefix cache holds what they share;
among those, the longest expected answer goes first, which shortens the tail. Results are put back into input order
when the chunk is sealed, so this order is never seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.domain.request import envelope_of

# A last message is compared up to here: what follows is the part that differs, in documents with questions below them.
_LAST_COMPARED_BYTES = 1024
# Shorter last messages share too little with each other to outweigh the expected length.
_LAST_MIN_BYTES = 1024
_UNSTATED_TOKENS = 1 << 40  # an answer without a limit may be the longest

_Key = tuple[bytes, bytes, int, int]


class _Shape(msgspec.Struct):
    """The fields of a body that decide its place."""

    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    max_tokens: msgspec.Raw = msgspec.Raw(b"")
    max_completion_tokens: msgspec.Raw = msgspec.Raw(b"")
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"")


_shape = msgspec.json.Decoder(_Shape)
_items = msgspec.json.Decoder(list[msgspec.Raw])
_count = msgspec.json.Decoder(int)
_GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})


def dispatch_order(lines: Sequence[bytes], *, endpoint: str) -> list[int]:
    """Indices of `lines` (texts of good lines) in the order to send them. Never raises for a good line."""
    indices = list(range(len(lines)))
    if len(lines) > 1 and endpoint in _GENERATING:
        keys = [_key(line, index) for index, line in enumerate(lines)]
        indices.sort(key=keys.__getitem__)
    return indices


def _key(line: bytes, index: int) -> _Key:
    shape = _shape.decode(envelope_of(line)[1])
    leading, last = _prefix(shape)
    shared = last[:_LAST_COMPARED_BYTES] if len(last) >= _LAST_MIN_BYTES else b""
    return leading, shared, -_expected_tokens(shape), index


def _prefix(shape: _Shape) -> tuple[bytes, bytes]:
    """(what comes before the last message, the last message)."""
    instructions = bytes(shape.instructions)
    messages = bytes(shape.messages) or bytes(shape.input)
    if not messages.startswith(b"["):
        return instructions, messages or bytes(shape.prompt)
    items = _items.decode(messages)
    if not items:
        return instructions, b""
    last = bytes(items.pop())
    return instructions + b",".join(map(bytes, items)), last


def _expected_tokens(shape: _Shape) -> int:
    for stated in (shape.max_completion_tokens, shape.max_tokens, shape.max_output_tokens):
        text = bytes(stated)
        if text.isdigit() and len(text) < 10:
            return _count.decode(text)
    return _UNSTATED_TOKENS
