"""One line of a batch input file: envelope, body, and everything that can be wrong with it (openai-contract 4).

The body's bytes are kept as the user wrote them; only the few fields that the rules need are looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from app.domain.batch import BatchProblem

_UNSET = msgspec.UNSET
_Maybe = msgspec.Raw | msgspec.UnsetType

#: Fields of a body that reach beyond their own request: into other requests, other users' caches, the server's files.
FOREIGN_FIELDS = ("priority", "cache_salt", "request_id", "kv_transfer_params", "chat_template")

_REQUIRED = {
    "/v1/chat/completions": ("messages",),
    "/v1/embeddings": ("input",),
    "/v1/moderations": ("input",),
    "/v1/completions": ("prompt",),
}
_ENDPOINT_NAMES = {
    "/v1/chat/completions": "Chat Completions",
    "/v1/completions": "Completions",
    "/v1/responses": "Responses",
    "/v1/moderations": "Moderations",
    "/v1/embeddings": "Embeddings",
}
# One pass whatever the text: possessive, and an unfinished string runs to the end instead of being tried again from
# each quote inside it. The interpreter's lock is held during a match, so this must stay linear.
_STRINGS_AND_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class LineRules:
    """What a line is checked against. Sizes in bytes, characters or levels, as named."""

    endpoint: str
    line_max_bytes: int = 32 * 1024 * 1024
    json_max_depth: int = 256
    custom_id_max_chars: int = 512
    trust_chat_template: bool = False


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A good line. `body` is the JSON object as written; `inputs` counts embedding inputs (1 elsewhere)."""

    custom_id: str
    body: bytes
    model: str
    inputs: int


class _Envelope(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    model: _Maybe = _UNSET
    stream: _Maybe = _UNSET
    messages: _Maybe = _UNSET
    input: _Maybe = _UNSET
    prompt: _Maybe = _UNSET
    prompt_embeds: _Maybe = _UNSET
    priority: _Maybe = _UNSET
    cache_salt: _Maybe = _UNSET
    request_id: _Maybe = _UNSET
    kv_transfer_params: _Maybe = _UNSET
    chat_template: _Maybe = _UNSET


_envelope = msgspec.json.Decoder(_Envelope)
_body = msgspec.json.Decoder(_Body)
_loose = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
_text = msgspec.json.Decoder(str)

_NOT_JSON = "This line is not parseable as valid JSON."


def parse_line(raw: bytes, *, line: int, rules: LineRules) -> RequestLine | tuple[BatchProblem, ...]:
    """The request on one line (without its line end), or every problem it has, in the order of the envelope's keys.

    `line` is the physical, 1-based number that problems carry. Never raises.
    """
    problem = _unreadable(raw, line=line, rules=rules)
    if problem is not None:
        return (problem,)
    try:
        envelope = _envelope.decode(raw)
    except msgspec.ValidationError:
        return _diagnose(raw, line=line, rules=rules)
    except (msgspec.DecodeError, RecursionError):
        return (BatchProblem("invalid_json_line", _NOT_JSON, line=line),)
    problems = _envelope_problems(envelope, line=line, rules=rules)
    return _finish(envelope.custom_id, bytes(envelope.body), problems, line=line, rules=rules)


def custom_id_of(raw: bytes) -> str:
    """The custom_id of a line that `parse_line` has accepted before."""
    return _envelope.decode(raw).custom_id


def stated_custom_id(raw: bytes) -> str | None:
    """The custom_id of a line that may be bad in other ways; None when it states none."""
    try:
        return _text.decode(_loose.decode(raw)["custom_id"])
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError):
        return None


def envelope_of(raw: bytes) -> tuple[str, bytes]:
    """(custom_id, body bytes) of a line that `parse_line` has accepted before."""
    envelope = _envelope.decode(raw)
    return envelope.custom_id, bytes(envelope.body)


def _unreadable(raw: bytes, *, line: int, rules: LineRules) -> BatchProblem | None:
    if len(raw) > rules.line_max_bytes:
        return line_too_long(line=line, limit_bytes=rules.line_max_bytes)
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError:
            return BatchProblem("invalid_json_line", "This line is not valid UTF-8.", line=line)
    if _deeper_than(raw, rules.json_max_depth):
        message = f"This line nests deeper than the limit of {rules.json_max_depth} levels."
        return BatchProblem("json_too_deep", message, line=line)
    return None


def line_too_long(*, line: int, limit_bytes: int) -> BatchProblem:
    """The problem of a line above the limit; its text need not be at hand."""
    return BatchProblem("line_too_long", f"This line is longer than the limit of {limit_bytes} bytes.", line=line)


def _deeper_than(raw: bytes, limit: int) -> bool:
    if raw.count(b"[") + raw.count(b"{") <= limit:  # the usual line: no scan
        return False
    depth = 0
    for match in _STRINGS_AND_BRACKETS.finditer(raw):
        token = match[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth > limit:
                return True
        elif token in (b"]", b"}"):
            depth -= 1
    return False


def _diagnose(raw: bytes, *, line: int, rules: LineRules) -> tuple[BatchProblem, ...]:
    """The slow path: the line did not have the envelope's shape; say which keys are missing or of the wrong type."""
    try:
        keys = _loose.decode(raw)
    except msgspec.ValidationError:
        if not _is_json(raw):
            return (BatchProblem("invalid_json_line", _NOT_JSON, line=line),)
        return (BatchProblem("invalid_type", "Each line must be a JSON object.", line=line),)
    except (msgspec.DecodeError, RecursionError):
        return (BatchProblem("invalid_json_line", _NOT_JSON, line=line),)
    problems: list[BatchProblem] = []
    texts: dict[str, str] = {}
    for key in ("custom_id", "method", "url"):
        if key not in keys:
            problems.append(_missing(key, param=key, line=line))
            continue
        try:
            texts[key] = _text.decode(keys[key])
        except msgspec.DecodeError:
            problems.append(_wrong_type(key, "a string", bytes(keys[key]), line=line))
    if "body" not in keys:
        problems.append(_missing("body", param="body", line=line))
    body = bytes(keys.get("body", b"{}"))
    known = _Envelope(
        custom_id=texts.get("custom_id", ""),
        method=texts.get("method", "POST"),
        url=texts.get("url", rules.endpoint),
        body=msgspec.Raw(body),
    )
    problems += _envelope_problems(known, line=line, rules=rules)
    if "body" in keys:
        problems += _body_problems(body, line=line, rules=rules)[0]
    return tuple(problems) or (BatchProblem("invalid_json_line", _NOT_JSON, line=line),)


def _is_json(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _envelope_problems(envelope: _Envelope, *, line: int, rules: LineRules) -> list[BatchProblem]:
    problems = []
    length, limit = len(envelope.custom_id), rules.custom_id_max_chars
    if length > limit:
        message = (
            f"Invalid 'custom_id': string too long. Expected a string with maximum length {limit}, "
            f"but got a string with length {length} instead."
        )
        problems.append(BatchProblem("string_above_max_length", message, "custom_id", line))
    if envelope.method != "POST":
        message = f"Invalid method: '{envelope.method[:32]}'. Only 'POST' is supported."
        problems.append(BatchProblem("invalid_method", message, "method", line))
    if envelope.url != rules.endpoint:
        message = "The URL provided for this request does not match the batch endpoint."
        problems.append(BatchProblem("invalid_url", message, "url", line))
    return problems


def _finish(
    custom_id: str, body: bytes, problems: list[BatchProblem], *, line: int, rules: LineRules
) -> RequestLine | tuple[BatchProblem, ...]:
    found, model, inputs = _body_problems(body, line=line, rules=rules)
    problems += found
    if problems:
        return tuple(problems)
    return RequestLine(custom_id=custom_id, body=body, model=model, inputs=inputs)


def _body_problems(body: bytes, *, line: int, rules: LineRules) -> tuple[list[BatchProblem], str, int]:
    """(problems, model, embedding inputs) of a body; shallow, as OpenAI does (openai-contract 4.1)."""
    if not body.startswith(b"{"):
        return [_wrong_type("body", "an object", body, line=line)], "", 0
    head = _body.decode(body)
    problems = []
    model = ""
    if head.model is _UNSET:
        problems.append(_missing("model", param="body.model", line=line))
    else:
        try:
            model = _text.decode(head.model)
        except msgspec.DecodeError:
            problems.append(_wrong_type("model", "a string", bytes(head.model), line=line, param="body.model"))
    for key in _REQUIRED.get(rules.endpoint, ()):
        stated = getattr(head, key) is not _UNSET or (key == "prompt" and head.prompt_embeds is not _UNSET)
        if not stated:
            problems.append(_missing(key, param=f"body.{key}", line=line))
    problems += _stream_problems(head.stream, line=line, rules=rules)
    problems += _foreign_problems(head, line=line, rules=rules)
    inputs = _count_inputs(head.input) if rules.endpoint == "/v1/embeddings" else 1
    return problems, model, inputs


def _stream_problems(stream: _Maybe, *, line: int, rules: LineRules) -> list[BatchProblem]:
    if isinstance(stream, msgspec.UnsetType) or bytes(stream) in (b"false", b"null"):
        return []
    if bytes(stream) == b"true":
        name = _ENDPOINT_NAMES.get(rules.endpoint, rules.endpoint)
        message = f"{name}: Streaming is not supported in the Batch API."
        return [BatchProblem("streaming_unsupported", message, "body.stream", line)]
    # The engine would coerce "true" or 1 to a stream.
    return [_wrong_type("stream", "a boolean", bytes(stream), line=line, param="body.stream")]


def _foreign_problems(head: _Body, *, line: int, rules: LineRules) -> list[BatchProblem]:
    problems = []
    for field in FOREIGN_FIELDS:
        if getattr(head, field) is _UNSET or (field == "chat_template" and rules.trust_chat_template):
            continue
        message = f"The parameter '{field}' is not supported in a batch: it reaches beyond the request."
        problems.append(BatchProblem("unsupported_parameter", message, f"body.{field}", line))
    return problems


def _count_inputs(value: _Maybe) -> int:
    """A string or a list of token ids is one input; a list of strings or of token lists is that many."""
    if isinstance(value, msgspec.UnsetType) or not bytes(value).startswith(b"["):
        return 1
    items = _raw_list.decode(value)
    if items and bytes(items[0])[:1] in (b'"', b"["):
        return len(items)
    return 1


def _missing(key: str, *, param: str, line: int) -> BatchProblem:
    return BatchProblem("missing_required_parameter", f"Missing required parameter: '{key}'.", param, line)


def _wrong_type(key: str, expected: str, raw: bytes, *, line: int, param: str | None = None) -> BatchProblem:
    names = {b'"': "a string", b"{": "an object", b"[": "an array", b"t": "a boolean", b"f": "a boolean", b"n": "null"}
    got = names.get(raw[:1], "a number")
    message = f"Invalid type for '{param or key}': expected {expected}, but got {got} instead."
    return BatchProblem("invalid_type", message, param or key, line)
