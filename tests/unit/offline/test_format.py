from __future__ import annotations

import json

import pytest

from app.offline.format import Rows, rows_of

VLLM, OPENAI = rows_of("vllm"), rows_of("openai")


def test_vllm_row_of_an_answer_keeps_the_bodys_bytes() -> None:
    body = b'{"a":1.10,"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}'
    outcome = VLLM.answered("a", status=200, body=body)
    assert body in outcome.row
    assert (outcome.completed, outcome.usage.total_tokens) == (True, 7)
    assert json.loads(outcome.row)["error"] is None


def test_vllm_row_of_an_error_has_it_in_error_and_no_body() -> None:
    outcome = VLLM.answered("a", status=404, body=b'{"error":{"message":"no","code":404}}')
    row = json.loads(outcome.row)
    assert row["response"] == {"status_code": 404, "request_id": row["response"]["request_id"], "body": None}
    assert row["error"] == {"error": {"message": "no", "code": 404}}
    assert not outcome.completed


def test_vllm_row_of_a_line_that_never_ran_has_a_sentence() -> None:
    row = json.loads(VLLM.unanswered(None, code="invalid_json_line", message="why").row)
    assert (row["custom_id"], row["response"]["status_code"], row["error"]) == (None, 400, "why")


def test_openai_rows_are_those_of_the_hosted_service() -> None:
    good = json.loads(OPENAI.answered("a", status=200, body=b"{}").row)
    bad = json.loads(OPENAI.unanswered(None, code="c", message="why").row)
    assert (good["response"]["body"], good["error"]) == ({}, None)
    assert (bad["custom_id"], bad["response"], bad["error"]) == (None, None, {"code": "c", "message": "why"})


@pytest.mark.parametrize("rows", [VLLM, OPENAI], ids=["vllm", "openai"])
def test_row_is_one_line_of_strict_json_whatever_the_engine_wrote(rows: Rows) -> None:
    row = rows.answered("a\u2028", status=200, body=b'{"x": NaN,\n "y": "\xe2\x80\xa8"}').row
    assert row.endswith(b"\n")
    assert len(row.decode().splitlines()) == 1
    assert "NaN" not in row.decode()
