"""What can be wrong with a line of an offline file before the engine sees it.

Less than in a hosted batch: the file's owner also owns the engine. So a line may leave the model out, name any
endpoint, share a custom_id, and use fields that reach beyond its request; the engine judges the body.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from app.domain.lines import Line
from app.domain.request import LineRules, line_too_long, parse_line, stated_custom_id
from app.settings import LimitSettings
from app.worker.job import Request

#: The parts of a line that are ours to judge.
_ENVELOPE = frozenset({None, "custom_id", "method", "url", "body", "body.stream"})


class Fault(NamedTuple):
    """Why a line is malformed. `custom_id` is None when the line states none that can be read."""

    custom_id: str | None
    code: str
    message: str


class _Envelope(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    stream: msgspec.Raw = msgspec.Raw(b"false")


class _Url(msgspec.Struct):
    url: str = ""


_envelope = msgspec.json.Decoder(_Envelope)
_body = msgspec.json.Decoder(_Body)
_url = msgspec.json.Decoder(_Url)


def request_of(text: bytes) -> Request:
    """The request of a line without a fault. Its path is whatever the line names."""
    envelope = _envelope.decode(text)
    return Request(envelope.custom_id, envelope.url, bytes(envelope.body))


def fault_finder(limits: LimitSettings) -> Callable[[Line], Fault | None]:
    """What finds the fault of a line, None for a good one."""

    def find(line: Line) -> Fault | None:
        if line.text is None:
            problem = line_too_long(line=line.number, limit_bytes=limits.line_max_bytes)
            return Fault(None, problem.code, f"Line {line.number}: {problem.message}")
        if _is_plain(line.text, depth=limits.json_max_depth):
            return None
        return _diagnosed(line.text, number=line.number, limits=limits)

    return find


def _is_plain(text: bytes, *, depth: int) -> bool:
    """The quick look that nearly every line passes. False says only that a closer look is needed."""
    try:
        if not text.isascii():
            text.decode()
        envelope = _envelope.decode(text)
        body = bytes(envelope.body)
        if envelope.method != "POST" or not body.startswith(b"{"):
            return False
        if text.count(b"[") + text.count(b"{") > depth:
            return False
        return bytes(_body.decode(body).stream) in (b"false", b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _diagnosed(text: bytes, *, number: int, limits: LimitSettings) -> Fault | None:
    rules = LineRules(
        endpoint=_stated_url(text),
        line_max_bytes=limits.line_max_bytes,
        json_max_depth=limits.json_max_depth,
        custom_id_max_chars=sys.maxsize,
    )
    found = parse_line(text, line=number, rules=rules)
    problems = [problem for problem in found if problem.param in _ENVELOPE] if isinstance(found, tuple) else []
    if not problems:
        return None
    return Fault(stated_custom_id(text), problems[0].code, f"Line {number}: {problems[0].message}")


def _stated_url(text: bytes) -> str:
    try:
        return _url.decode(text).url
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
