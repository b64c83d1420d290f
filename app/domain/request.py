"""One line of a batch input file: envelope, body, and everything that can be wrong with it (openai-contract 4).

The body's bytes are kept as the user wrote them; only the few fields that the rules need are looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from app.domain import conversations, fields, speech
from app.domain.batch import BatchProblem
from app.domain.endpoint import BATCH_ENDPOINTS, CONVERSATIONS, EMBEDDINGS, SPEECH, Endpoint

_UNSET = msgspec.UNSET
_Maybe = msgspec.Raw | msgspec.UnsetType

_NAMELESS = Endpoint("This endpoint")
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
    allowed_fields: frozenset[str] = frozenset()


class RequestLine(msgspec.Struct, frozen=True, gc=False):
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
    max_tokens: _Maybe = _UNSET
    input: _Maybe = _UNSET
    prompt: _Maybe = _UNSET
    prompt_embeds: _Maybe = _UNSET
    query: _Maybe = _UNSET
    queries: _Maybe = _UNSET
    documents: _Maybe = _UNSET
    items: _Maybe = _UNSET
    text_1: _Maybe = _UNSET
    text_2: _Maybe = _UNSET
    data_1: _Maybe = _UNSET
    data_2: _Maybe = _UNSET
    file_url: _Maybe = _UNSET


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
    endpoint = BATCH_ENDPOINTS.get(rules.endpoint, _NAMELESS)
    problems += [_missing(key, param=f"body.{key}", line=line) for key in _missing_fields(head, endpoint)]
    if head.stream is not _UNSET:
        problems += _stream_problems(head.stream, line=line, name=endpoint.name)
    problems += fields.problems(body, line=line, endpoint=rules.endpoint, allowed=rules.allowed_fields)
    problems += _endpoint_problems(head, body, line=line, endpoint=rules.endpoint)
    inputs = _count_inputs(head.input) if rules.endpoint == EMBEDDINGS else 1
    return problems, model, inputs


def _missing_fields(head: _Body, endpoint: Endpoint) -> list[str]:
    """What the body lacks of the form that it fills best; nothing when it fills one."""
    usual = endpoint.forms[0]
    if len(usual) == 1 and getattr(head, usual[0]) is not _UNSET:  # nearly every line
        return []
    lacking = [[key for key in form if getattr(head, key) is _UNSET] for form in endpoint.forms]
    stated = [len(form) - len(lacks) for form, lacks in zip(endpoint.forms, lacking, strict=True)]
    if not all(lacking):
        return []
    return lacking[stated.index(max(stated))]


def _endpoint_problems(head: _Body, body: bytes, *, line: int, endpoint: str) -> list[BatchProblem]:
    """What one endpoint alone asks of its lines."""
    if endpoint in SPEECH and (wrong := speech.problem_of(body)) is not None:
        code, message, field = wrong
        return [BatchProblem(code, message, f"body.{field}", line)]
    if endpoint == CONVERSATIONS and head.messages is not _UNSET:
        refusal = conversations.refusal_of(body)
        if refusal is not None and refusal.param != "stream":  # that one is said for every endpoint
            return [BatchProblem(refusal.code, refusal.message, f"body.{refusal.param}", line)]
    return []


def _stream_problems(stream: _Maybe, *, line: int, name: str) -> list[BatchProblem]:
    if isinstance(stream, msgspec.UnsetType) or bytes(stream) in (b"false", b"null"):
        return []
    if bytes(stream) == b"true":
        message = f"{name}: Streaming is not supported in the Batch API."
        return [BatchProblem("streaming_unsupported", message, "body.stream", line)]
    # The engine would coerce "true" or 1 to a stream.
    return [_wrong_type("stream", "a boolean", bytes(stream), line=line, param="body.stream")]


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
