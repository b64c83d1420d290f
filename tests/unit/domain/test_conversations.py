"""Requests with many conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.conversations import refusal_of

TURN = {"role": "user", "content": "hello"}
GOOD = {"model": "m", "messages": [[TURN], [TURN, TURN]]}


def refused(**fields: Any) -> tuple[str, str] | None:
    refusal = refusal_of(json.dumps(GOOD | fields).encode())
    return None if refusal is None else (refusal.code, refusal.param)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": False},
        {"stream": None},
        {"tools": []},
        {"tools": None},
        {"tool_choice": "none"},
        {"n": 1},
        {"n": 1.0},
        {"use_beam_search": False},
        {"temperature": 0},
    ],
)
def test_accepts_what_the_endpoint_can_do(fields: dict[str, Any]) -> None:
    assert refused(**fields) is None


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("stream", True),
        ("stream", "true"),
        ("tools", [{"type": "function"}]),
        ("functions", [{}]),
        ("tool_choice", "auto"),
        ("use_beam_search", True),
        ("n", 2),
    ],
)
def test_refuses_what_it_cannot(param: str, value: Any) -> None:
    assert refused(**{param: value}) == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        ([], "empty_array", "messages"),
        ([[TURN], []], "empty_array", "messages[1]"),
        ([TURN], "invalid_type", "messages[0]"),
        ([[TURN], [[TURN]]], "invalid_type", "messages[1]"),
        ([["hello"]], "invalid_type", "messages[0]"),
        ("hello", "invalid_type", "messages"),
        (None, "invalid_type", "messages"),
    ],
)
def test_refuses_messages_of_another_shape(messages: Any, code: str, param: str) -> None:
    assert refused(messages=messages) == (code, param)


def test_refuses_missing_messages() -> None:
    refusal = refusal_of(b'{"model":"m"}')
    assert refusal is not None
    assert refusal.code == "missing_required_parameter"


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'"x"', b"\xff", b"["])
def test_leaves_what_is_no_object_to_others(body: bytes) -> None:
    assert refusal_of(body) is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x), max_leaves=8))
def test_any_messages_are_judged(messages: Any) -> None:
    assert refused(messages=messages) is not None
