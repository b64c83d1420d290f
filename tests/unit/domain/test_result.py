"""Result rows: strict JSON on one line, whatever the model says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.result import CANCELLED, answered, error_body, unanswered
from app.domain.usage import NO_USAGE, Usage

KEYS = ["id", "custom_id", "response", "error"]


def strict(row: bytes) -> Any:
    """The row as a strict reader sees it, after clients that cut at more than `\\n` had their way."""
    assert row.endswith(b"\n")
    assert len(row.decode().splitlines()) == 1
    value = json.loads(row, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(value) == KEYS
    assert value["id"].startswith("batch_req_")
    return value


def test_answered_keeps_the_bytes() -> None:
    usage = b'{"prompt_tokens":3,"completion_tokens":4,"total_tokens":9}'
    body = b'{"model":"m-1", "x":1.50, "y":"\\u00e9\xc3\xa9", "usage":%b}' % usage
    outcome = answered('a"b', status=200, body=body)
    row = strict(outcome.row)
    assert row["custom_id"] == 'a"b'
    assert row["response"]["status_code"] == 200
    assert body in outcome.row
    assert outcome.completed
    assert outcome.usage == Usage(input_tokens=3, output_tokens=4, total_tokens=7)
    assert outcome.model == "m-1"


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_answered_refusal_goes_to_the_error_file(status: int) -> None:
    body = error_body("no", type_="t", code="c", param="p")
    outcome = answered("a", status=status, body=body)
    row = strict(outcome.row)
    assert row["error"] is None
    assert row["response"]["body"] == {"error": {"message": "no", "type": "t", "param": "p", "code": "c"}}
    assert not outcome.completed
    assert outcome.usage == NO_USAGE
    assert outcome.model is None


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"", b"{", b"\xff", b'{"a":"\xff"}', b"[" * 100_000])
def test_answered_nonsense_is_an_error_row(body: bytes) -> None:
    outcome = answered("a", status=200, body=body)
    row = strict(outcome.row)
    assert row["response"]["status_code"] == 500
    assert row["response"]["body"]["error"]["code"] == "invalid_reply"
    assert not outcome.completed


def test_answered_no_constant_survives() -> None:
    body = b'{"a":NaN,"b":-Infinity,"c":[1e999],"model":"m","usage":{"prompt_tokens":1,"completion_tokens":2}}'
    outcome = answered("a", status=200, body=body)
    assert strict(outcome.row)["response"]["body"]["a"] is None
    assert outcome.usage.total_tokens == 3


def test_answered_lone_surrogate_keeps_usage() -> None:
    outcome = answered("a", status=200, body=b'{"x":"\\ud800","usage":{"prompt_tokens":1,"completion_tokens":2}}')
    assert strict(outcome.row)["response"]["body"]["x"] == "\ud800"
    assert outcome.usage.total_tokens == 3


def test_answered_pretty_printed() -> None:
    value = {"a": [1, {"b": "c"}], "model": "m"}
    assert (
        strict(answered("a", status=200, body=json.dumps(value, indent=2).encode() + b"\r\n").row)["response"]["body"]
        == value
    )


@given(text=st.text(), custom_id=st.text(), ascii_only=st.booleans())
def test_answered_any_text(text: str, custom_id: str, ascii_only: bool) -> None:
    body = json.dumps({"text": text}, ensure_ascii=ascii_only).encode()
    row = strict(answered(custom_id, status=200, body=body).row)
    assert row["custom_id"] == custom_id
    assert row["response"]["body"] == {"text": text}


@given(body=st.binary(max_size=40))
def test_answered_any_bytes(body: bytes) -> None:
    strict(answered("a", status=200, body=body).row)


@given(custom_id=st.text())
def test_unanswered(custom_id: str) -> None:
    code, message = CANCELLED
    outcome = unanswered(custom_id, code=code, message=message)
    row = strict(outcome.row)
    assert row["custom_id"] == custom_id
    assert row["response"] is None
    assert row["error"] == {"code": code, "message": message}
    assert not outcome.completed
