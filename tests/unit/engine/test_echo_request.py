"""What each endpoint's schema forbids is a 400 in OpenAI's envelope, with the param that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.echo import EchoEngine

CHAT, TEXT, RESPONSES, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
HELLO = [{"role": "user", "content": "hello"}]
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": "echo", "messages": HELLO},
    TEXT: {"model": "echo", "prompt": "hello"},
    RESPONSES: {"model": "echo", "input": "hello"},
    EMBED: {"model": "echo", "input": "hello"},
}


async def _answer(path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    engine = EchoEngine()
    await engine.start()
    reply = await engine.call(path, body)
    return reply.status, json.loads(reply.body)


def _messages(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": list(messages)}


REFUSALS: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"messages": []}, "messages", "invalid_value"),
    (CHAT, {"messages": "hello"}, "messages", "invalid_type"),
    (CHAT, {"messages": None}, "messages", "invalid_type"),
    (CHAT, {"messages": ["hello"]}, "messages[0]", "invalid_type"),
    (CHAT, _messages(*HELLO, {"content": "x"}), "messages[1].role", "missing_required_parameter"),
    (CHAT, _messages(*HELLO, {"role": "wizard", "content": "x"}), "messages[1].role", "invalid_value"),
    (CHAT, _messages(*HELLO, {"role": "user"}), "messages[1].content", "missing_required_parameter"),
    (CHAT, _messages({"role": "user", "content": None}), "messages[0].content", "invalid_type"),
    (CHAT, _messages({"role": "user", "content": 5}), "messages[0].content", "invalid_type"),
    (CHAT, _messages({"role": "user", "content": []}), "messages[0].content", "invalid_value"),
    (CHAT, _messages({"role": "assistant", "content": None}), "messages[0].content", "invalid_type"),
    (CHAT, _messages({"role": "tool", "content": "x"}), "messages[0].tool_call_id", "missing_required_parameter"),
    (
        CHAT,
        _messages(*HELLO, {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "smell"}]}),
        "messages[1].content[1].type",
        "invalid_value",
    ),
    (
        CHAT,
        _messages({"role": "user", "content": [{"type": "text"}]}),
        "messages[0].content[0].text",
        "missing_required_parameter",
    ),
    (CHAT, {"n": 0}, "n", "invalid_value"),
    (CHAT, {"n": 129}, "n", "invalid_value"),
    (CHAT, {"n": 1.5}, "n", "invalid_type"),
    (CHAT, {"n": True}, "n", "invalid_type"),
    (CHAT, {"temperature": 2.1}, "temperature", "invalid_value"),
    (CHAT, {"temperature": -0.1}, "temperature", "invalid_value"),
    (CHAT, {"temperature": "hot"}, "temperature", "invalid_type"),
    (CHAT, {"top_p": 1.1}, "top_p", "invalid_value"),
    (CHAT, {"top_p": -1}, "top_p", "invalid_value"),
    (CHAT, {"max_tokens": 0}, "max_tokens", "invalid_value"),
    (CHAT, {"max_completion_tokens": -1}, "max_completion_tokens", "invalid_value"),
    (CHAT, {"presence_penalty": 3}, "presence_penalty", "invalid_value"),
    (CHAT, {"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    (CHAT, {"stop": ["a"] * 5}, "stop", "invalid_value"),
    (CHAT, {"logit_bias": {"a": 1, "b": "x"}}, "logit_bias.b", "invalid_type"),
    (CHAT, {"model": None}, "model", "invalid_type"),
    (CHAT, {"stream": True}, "stream", "unsupported_value"),
    (CHAT, {"stream": 1}, "stream", "invalid_type"),
    (CHAT, {"echo": {"dealy_ms": 1}}, "echo.dealy_ms", "unknown_parameter"),
    (CHAT, {"echo": {"delay_ms": -1}}, "echo.delay_ms", "invalid_value"),
    (CHAT, {"echo": {"status": 200}}, "echo.status", "invalid_value"),
    (CHAT, {"echo": True}, "echo", "invalid_type"),
    (TEXT, {"prompt": []}, "prompt", "invalid_value"),
    (TEXT, {"prompt": ["a", 5]}, "prompt", "invalid_type"),
    (TEXT, {"prompt": {"a": 1}}, "prompt", "invalid_type"),
    (TEXT, {"logprobs": -1}, "logprobs", "invalid_value"),
    (TEXT, {"echo": {"sleep": 1}}, "echo.sleep", "unknown_parameter"),
    (RESPONSES, {"input": []}, "input", "invalid_value"),
    (RESPONSES, {"input": [{"content": "x"}]}, "input[0].role", "missing_required_parameter"),
    (RESPONSES, {"input": [*HELLO, {"role": "user"}]}, "input[1].content", "missing_required_parameter"),
    (RESPONSES, {"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
    (RESPONSES, {"input": [{"role": "user", "content": None}]}, "input[0].content", "invalid_type"),
    (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    (EMBED, {"input": ""}, "input", "empty_string"),
    (EMBED, {"input": []}, "input", "invalid_value"),
    (EMBED, {"input": ["a", ""]}, "input", "empty_string"),
    (EMBED, {"input": [[1, 2], []]}, "input[1]", "invalid_value"),
    (EMBED, {"input": [[1], [2, -1]]}, "input[1][1]", "invalid_value"),
    (EMBED, {"input": ["a"] * 2049}, "input", "invalid_value"),
    (EMBED, {"input": ["a", [1]]}, "input", "invalid_type"),
    (EMBED, {"dimensions": 0}, "dimensions", "invalid_value"),
    (EMBED, {"encoding_format": "hex"}, "encoding_format", "invalid_value"),
]


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    REFUSALS,
    ids=[f"{path[4:8]}-{param}-{code}" for path, _, param, code in REFUSALS],
)
async def test_call_refuses_what_the_schema_forbids(path: str, fields: dict[str, Any], param: str, code: str) -> None:
    status, answer = await _answer(path, json.dumps(GOOD[path] | fields).encode())
    assert status == 400
    error = answer["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert param in error["message"]


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("missing", ["model", "content"])
async def test_call_refuses_a_body_without_a_required_field(path: str, missing: str) -> None:
    body = dict(GOOD[path])
    name = "model" if missing == "model" else next(key for key in body if key != "model")
    del body[name]
    status, answer = await _answer(path, json.dumps(body).encode())
    assert status == 400
    assert (answer["error"]["param"], answer["error"]["code"]) == (name, "missing_required_parameter")


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"model":"\xff"}', b'{"model":NaN}', b"[" * 100_000])
async def test_call_refuses_what_is_not_json(path: str, body: bytes) -> None:
    status, answer = await _answer(path, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", GOOD)
async def test_call_refuses_a_body_that_is_no_object(path: str) -> None:
    status, answer = await _answer(path, b"[1]")
    assert (status, answer["error"]["param"]) == (400, "body")


GOOD_CHATS: list[dict[str, Any]] = [
    _messages(*HELLO, {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}, *HELLO),
    _messages(*HELLO, {"role": "tool", "content": "x", "tool_call_id": "a"}),
    _messages({"role": "developer", "content": [{"type": "text", "text": "x"}]}, *HELLO),
    _messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}),
    {"temperature": None, "top_p": None, "n": None, "max_tokens": None, "stop": None, "echo": None, "stream": None},
    {"temperature": 2, "top_p": 0, "n": 128, "stop": "x", "stream": False},
    {"an_extra_of_some_engine": {"guided": True}, "top_k": -1},
]


@pytest.mark.parametrize("fields", GOOD_CHATS)
async def test_call_takes_what_the_schema_allows(fields: dict[str, Any]) -> None:
    status, answer = await _answer(CHAT, json.dumps(GOOD[CHAT] | fields).encode())
    assert status == 200, answer


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.floats(allow_nan=False) | st.text("ab é", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "messages", "input"]), inner, max_size=4)
    ),
    max_leaves=12,
)


# The first draws are slow on a busy machine.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    path=st.sampled_from(list(GOOD)), junk=st.dictionaries(st.sampled_from(["messages", "prompt", "input", "n"]), _json)
)
async def test_call_answers_anything_with_an_object(path: str, junk: dict[str, Any]) -> None:
    status, answer = await _answer(path, json.dumps(GOOD[path] | junk).encode())
    assert status in (200, 400)
    assert isinstance(answer.get("error"), dict) == (status == 400)
