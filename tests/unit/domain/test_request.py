"""Lines of an input file: what passes, and everything that can be wrong with one."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import request
from app.domain.batch import BatchProblem
from app.domain.endpoint import BATCH_ENDPOINTS
from app.domain.fields import REFUSED, REFUSED_INSIDE
from app.domain.request import (
    LineRules,
    RequestLine,
    custom_id_of,
    envelope_of,
    parse_line,
    stated_custom_id,
)

CHAT = LineRules("/v1/chat/completions")
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def parse(value: Any, rules: LineRules = CHAT) -> RequestLine | tuple[BatchProblem, ...]:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_line(raw, line=7, rules=rules)


def found(value: Any, rules: LineRules = CHAT) -> list[tuple[str, str | None]]:
    result = parse(value, rules)
    assert isinstance(result, tuple), "the line passed"
    assert all(problem.line == 7 for problem in result)
    return [(problem.code, problem.param) for problem in result]


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != key}


def body(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "body": {**BODY, **fields}}


def test_parse_good_line_keeps_the_body_as_written() -> None:
    written = b'{"model" : "m","messages":[ ], "x":1.50e0 ,"t":"\\u00e9\xc3\xa9"}'
    rest = b'"custom_id":"\\u0061", "method":"POST","url":"/v1/chat/completions","more":[1]'
    raw = b' { "body" :  %b  ,%b} ' % (written, rest)
    result = parse(raw)
    assert result == RequestLine("a", written, "m", 1)
    assert envelope_of(raw) == (result.custom_id, result.body)
    assert custom_id_of(raw) == "a"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"a":1,}',
        b"{} {}",
        b'{"a":NaN}',
        b'{"a":"\n"}',
        b'\xef\xbb\xbf{"custom_id":"a"}',
        b'{"custom_id":"\\ud800"}',
        b'{"custom_id":"\xff"}',
        b"{'custom_id':'a'}",
    ],
)
def test_parse_not_json(raw: bytes) -> None:
    assert found(raw) == [("invalid_json_line", None)]


@pytest.mark.parametrize("value", [[], 7, "text", None, True])
def test_parse_not_an_object(value: Any) -> None:
    assert found(value) == [("invalid_type", None)]


@pytest.mark.parametrize("key", GOOD)
def test_parse_missing_key(key: str) -> None:
    assert found(without(key)) == [("missing_required_parameter", key)]


def test_parse_every_problem_of_a_line_is_told() -> None:
    line = {"custom_id": "x" * 513, "method": "GET", "url": "/v1/x", "body": {"stream": True}}
    assert found(line) == [
        ("string_above_max_length", "custom_id"),
        ("invalid_method", "method"),
        ("invalid_url", "url"),
        ("missing_required_parameter", "body.model"),
        ("missing_required_parameter", "body.messages"),
        ("streaming_unsupported", "body.stream"),
    ]
    assert found({}) == [("missing_required_parameter", key) for key in GOOD]


@pytest.mark.parametrize("key", ["custom_id", "method", "url"])
@pytest.mark.parametrize("value", [None, 7, ["a"], {}, True])
def test_parse_key_of_wrong_type(key: str, value: Any) -> None:
    assert found({**GOOD, key: value}) == [("invalid_type", key)]


@pytest.mark.parametrize("value", [None, 7, "text", [], True])
def test_parse_body_of_wrong_type(value: Any) -> None:
    assert found({**GOOD, "body": value}) == [("invalid_type", "body")]


@pytest.mark.parametrize("value", [None, 7, [], {}])
def test_parse_model_of_wrong_type(value: Any) -> None:
    assert found(body(model=value)) == [("invalid_type", "body.model")]


@pytest.mark.parametrize(
    ("stream", "problem"), [(True, "streaming_unsupported"), ("true", "invalid_type"), (1, "invalid_type")]
)
def test_parse_stream(stream: Any, problem: str) -> None:
    assert found(body(stream=stream)) == [(problem, "body.stream")]


@pytest.mark.parametrize("stream", [False, None])
def test_parse_no_stream(stream: Any) -> None:
    assert isinstance(parse(body(stream=stream)), RequestLine)


def test_parse_field_that_reaches_beyond_the_request() -> None:
    assert found(body(priority=1, vllm_xargs={})) == [
        ("unsupported_parameter", "body.priority"),
        ("unsupported_parameter", "body.vllm_xargs"),
    ]


def test_parse_trusted_chat_template() -> None:
    trusting = LineRules(CHAT.endpoint, allowed_fields=frozenset({"chat_template"}))
    assert isinstance(parse(body(chat_template="x"), trusting), RequestLine)


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        ("/v1/embeddings", "input"),
        ("/v1/moderations", "input"),
        ("/v1/completions", "prompt"),
        ("/v1/chat/completions", "messages"),
    ],
)
def test_parse_required_field_of_an_endpoint(endpoint: str, field: str) -> None:
    rules = LineRules(endpoint)
    line = {**GOOD, "url": endpoint, "body": {"model": "m"}}
    assert found(line, rules) == [("missing_required_parameter", f"body.{field}")]
    assert isinstance(parse({**line, "body": {"model": "m", field: "x"}}, rules), RequestLine)


@pytest.mark.parametrize(
    ("endpoint", "stated", "missing"),
    [
        ("/v1/score", {}, ["queries", "documents"]),
        ("/v1/score", {"text_2": "b"}, ["text_1"]),
        ("/score", {"queries": "a", "items": "b"}, []),
        ("/score", {"text_1": "a", "text_2": ["b"]}, []),
        ("/v1/rerank", {"documents": ["a"]}, ["query"]),
        ("/v2/rerank", {"query": "a", "documents": ["a"]}, []),
        ("/v1/messages", {"messages": []}, ["max_tokens"]),
        ("/v1/completions", {"prompt_embeds": "x"}, []),
        ("/v1/embeddings", {"messages": []}, []),
        ("/v1/audio/transcriptions", {}, ["file_url"]),
        ("/v1/responses", {}, []),
    ],
)
def test_parse_required_fields_in_their_forms(endpoint: str, stated: dict[str, Any], missing: list[str]) -> None:
    line = {**GOOD, "url": endpoint, "body": {"model": "m", **stated}}
    result = parse(line, LineRules(endpoint))
    expected = [("missing_required_parameter", f"body.{field}") for field in missing]
    assert (found(line, LineRules(endpoint)) if missing else []) == expected
    assert isinstance(result, RequestLine) is not bool(missing)


def test_every_required_field_is_looked_at() -> None:
    known = set(request._Body.__struct_fields__)
    for endpoint in BATCH_ENDPOINTS.values():
        assert {field for form in endpoint.forms for field in form} <= known


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"file_url": "data:audio/wav;base64,AAAA"}, None),
        ({"file_url": "HTTPS://example.org/a.wav", "response_format": "verbose_json"}, None),
        ({"file_url": "file:///etc/passwd"}, ("invalid_value", "body.file_url")),
        ({"file_url": "a.wav"}, ("invalid_value", "body.file_url")),
        ({"file_url": 5}, ("invalid_type", "body.file_url")),
        ({"file_url": "http://x/", "file": "x"}, ("unsupported_parameter", "body.file")),
        ({"file_url": "http://x/", "response_format": "srt"}, ("invalid_value", "body.response_format")),
        ({"file_url": "http://x/", "prompt": "\ud800"}, ("invalid_json_line", None)),
    ],
)
def test_parse_audio_line(stated: dict[str, Any], problem: tuple[str, str | None] | None) -> None:
    endpoint = "/v1/audio/transcriptions"
    line = {**GOOD, "url": endpoint, "body": {"model": "m", **stated}}
    result = parse(line, LineRules(endpoint))
    if problem is None:
        assert isinstance(result, RequestLine)
    else:
        assert found(line, LineRules(endpoint)) == [problem]


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({}, None),
        ({"tools": [{}]}, ("unsupported_parameter", "body.tools")),
        ({"messages": [{"role": "user", "content": "flat"}]}, ("invalid_type", "body.messages[0]")),
        ({"stream": True}, ("streaming_unsupported", "body.stream")),
    ],
)
def test_parse_line_of_conversations(stated: dict[str, Any], problem: tuple[str, str] | None) -> None:
    endpoint = "/v1/chat/completions/batch"
    talk = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]
    line = {**GOOD, "url": endpoint, "body": {"model": "m", "messages": talk, **stated}}
    if problem is None:
        assert isinstance(parse(line, LineRules(endpoint)), RequestLine)
    else:
        assert found(line, LineRules(endpoint)) == [problem]


def test_parse_response_in_the_background() -> None:
    line = {**GOOD, "url": "/v1/responses", "body": {"model": "m", "input": "a", "background": True}}
    assert found(line, LineRules("/v1/responses")) == [("unsupported_parameter", "body.background")]


@pytest.mark.parametrize(
    ("value", "inputs"), [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2], [3]], 3), ([], 1), (None, 1)]
)
def test_parse_counts_embedding_inputs(value: Any, inputs: int) -> None:
    line = {**GOOD, "url": "/v1/embeddings", "body": {"model": "m", "input": value}}
    result = parse(line, LineRules("/v1/embeddings"))
    assert isinstance(result, RequestLine)
    assert result.inputs == inputs


def test_parse_length_limits() -> None:
    assert isinstance(parse({**GOOD, "custom_id": "\U0001f600" * 512}), RequestLine)
    raw = json.dumps(GOOD).encode()
    assert isinstance(parse(raw, LineRules(CHAT.endpoint, line_max_bytes=len(raw))), RequestLine)
    assert found(raw, LineRules(CHAT.endpoint, line_max_bytes=len(raw) - 1)) == [("line_too_long", None)]


@given(depth=st.integers(0, 40), limit=st.integers(3, 30), noise=st.text(alphabet='[]{}"\\x', max_size=30))
def test_parse_depth_limit(depth: int, limit: int, noise: str) -> None:
    nested: Any = noise
    for _ in range(depth):
        nested = [nested]
    line = {**GOOD, "body": {"model": "m", "messages": [], "x": nested, "y": ["["] * 20}}
    result = parse(line, LineRules(CHAT.endpoint, json_max_depth=limit))
    if 2 + max(depth, 1) > limit:
        assert isinstance(result, tuple)
        assert result[0].code == "json_too_deep"
    else:
        assert isinstance(result, RequestLine)


@pytest.mark.parametrize(
    "raw",
    [
        b'"' + b'\\"' * 2_000_000 + b"[" * 300,
        b'{"a":"' + b"[" * 4_000_000 + b'"}',
        b"[" * 4_000_000,
        b'"' * 2_000_000 + b"[" * 300,
    ],
    ids=["unfinished", "long string", "deep", "quotes"],
)
def test_parse_hostile_line_is_quick(raw: bytes) -> None:
    began = time.monotonic()
    assert isinstance(parse(raw), tuple)
    assert time.monotonic() - began < 10


@given(value=JSON)
def test_parse_any_json_is_a_line_or_problems(value: Any) -> None:
    result = parse(value)
    assert isinstance(result, tuple)
    assert result


@given(
    custom_id=st.text(max_size=20),
    extra=st.dictionaries(st.text(max_size=8).filter(lambda key: key not in GOOD), JSON, max_size=3),
    fields=st.dictionaries(
        st.text(max_size=8).filter(lambda key: key not in ("stream", *REFUSED, *REFUSED_INSIDE)), JSON, max_size=4
    ),
    ascii_only=st.booleans(),
)
def test_parse_any_good_line(custom_id: str, extra: dict[str, Any], fields: dict[str, Any], ascii_only: bool) -> None:
    whole = {**fields, **BODY}
    line = {**extra, **GOOD, "custom_id": custom_id, "body": whole}
    raw = json.dumps(line, ensure_ascii=ascii_only).encode()
    result = parse(raw)
    assert isinstance(result, RequestLine)
    assert result.custom_id == custom_id == stated_custom_id(raw)
    assert result.body in raw
    assert json.loads(result.body) == whole


@given(raw=st.binary(max_size=60))
def test_parse_any_bytes(raw: bytes) -> None:
    assert isinstance(parse(raw), tuple)


@given(cut=st.integers(0, len(json.dumps(GOOD)) - 1))
def test_parse_any_cut_line_is_not_json(cut: int) -> None:
    assert found(json.dumps(GOOD).encode()[:cut]) == [("invalid_json_line", None)]


@pytest.mark.parametrize("raw", [b"x", b"[]", b"{}", b'{"custom_id":7}', b'{"custom_id":"\xff"}'])
def test_stated_custom_id_of_a_line_without_one(raw: bytes) -> None:
    assert stated_custom_id(raw) is None
