"""Rows of the output and error files (openai-contract 5.1): strict JSON, also for clients that cut at more."""

from __future__ import annotations

import json
import math
import random
import secrets
from json.encoder import encode_basestring_ascii
from typing import Any

import msgspec

from app.domain.usage import NO_USAGE, ReplyHead, Usage, usage_of

_head = msgspec.json.Decoder(ReplyHead)
# Characters at which Python's splitlines() and the SDK's iter_lines() cut, that may stand raw inside a JSON string.
_CUTTERS = (("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"), ("\u0085".encode(), b"\\u0085"))

CANCELLED = ("batch_cancelled", "This request was not executed because the batch was cancelled.")
EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
LOST = ("input_lost", "The content of the input file was lost on the server before this request was executed.")
POISONED = (
    "engine_error",
    "This request was not executed: too many requests of its batch ended the model server.",
)
TIMED_OUT = ("request_timeout", "The model did not answer this request in time.")

# Names, no secrets: a system call for each would cost more than the rest of a row.
_random = random.Random(secrets.randbits(256))  # noqa: S311


def random_hex(digits: int) -> bytes:
    """So many hex digits, for a name that nobody has to keep secret."""
    return b"%0*x" % (digits, _random.getrandbits(4 * digits))


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a line ended.

    `row` is the whole result line with its `\\n`; `completed` tells the output file from the error file.
    """

    row: bytes
    completed: bool
    usage: Usage = NO_USAGE
    model: str | None = None


def settled(status: int, body: bytes) -> tuple[int, bytes, ReplyHead]:
    """A reply fit for a result row: its status, its body as strict JSON on one line, and what the body says of itself.

    A reply that is no JSON, or a 2xx that is no object, becomes a 500.
    """
    strict, head = _strict(body)
    if strict is not None and (strict.startswith(b"{") or not 200 <= status < 300):
        return status, strict, head
    # No endpoint answers with anything but an object; an aborted call, for one, comes back as 200 with `null`.
    message = "The model's reply was not a JSON object."
    return 500, error_body(message, type_="server_error", code="invalid_reply"), ReplyHead()


def answered(custom_id: str, *, status: int, body: bytes) -> Outcome:
    """The outcome of a reply: 2xx goes to the output file, everything else to the error file with `error: null`."""
    status, strict, head = settled(status, body)
    completed = 200 <= status < 300
    names = random_hex(24 + 32)
    row = (
        b'{"id":"batch_req_%s","custom_id":%s,"response":{"status_code":%d,"request_id":"%s","body":%s},"error":null}\n'
        % (
            names[:24],
            encode_basestring_ascii(custom_id).encode(),
            status,
            names[24:],
            strict,
        )
    )
    return Outcome(row, completed, usage_of(head) if completed else NO_USAGE, head.model if completed else None)


def unanswered(custom_id: str | None, *, code: str, message: str) -> Outcome:
    """The outcome of a line without a reply: `response` is null and `error` says why.

    `custom_id` is None for a line that states none, where such a line is not refused with its file.
    """
    row = b'{"id":"batch_req_%s","custom_id":%s,"response":null,"error":{"code":%s,"message":%s}}\n' % (
        random_hex(24),
        json.dumps(custom_id).encode(),
        json.dumps(code).encode(),
        json.dumps(message).encode(),
    )
    return Outcome(row, completed=False)


def error_body(message: str, *, type_: str, code: str | None, param: str | None = None) -> bytes:
    """The OpenAI error envelope (openai-contract 3.1) as bytes."""
    return json.dumps({"error": {"message": message, "type": type_, "param": param, "code": code}}).encode()


def _strict(body: bytes) -> tuple[bytes | None, ReplyHead]:
    """The body fit for a result row, and its head. The bytes stay as they are wherever they already are strict JSON."""
    try:
        head = _head.decode(body)
        if not body.isascii():
            body.decode()  # msgspec does not look inside the strings it skips
            for raw, escaped in _CUTTERS:
                body = body.replace(raw, escaped)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _reserialised(body)
    if b"\n" in body or b"\r" in body:  # raw only between tokens: strict JSON has none inside strings
        body = body.replace(b"\r", b" ").replace(b"\n", b" ")
    return body.strip(), head


def _reserialised(body: bytes) -> tuple[bytes | None, ReplyHead]:
    """The slow path: a body with NaN or infinities (they become null), or of another shape than an object."""
    try:
        value = json.loads(body, parse_constant=lambda _name: None, parse_float=_finite)
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None, ReplyHead()
    try:
        return text.encode(), msgspec.convert(value, ReplyHead)
    except msgspec.ValidationError:
        return text.encode(), ReplyHead()


def _finite(text: str) -> Any:
    number = float(text)
    return number if math.isfinite(number) else None
