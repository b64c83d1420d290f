"""Checklist of openai-contract 9, execution and results: items 75-81."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2
import openai
import pytest

from tests.acceptance.batch import answer, by_id, chat, counts, refused, rows, run
from tests.acceptance.wire import error_of

CUTTERS = "a\u2028b\u2029c\u0085d\u000be\u000cf\u001cg\u001dh\u001ei\r\nj\x00k"


def test_item_75_all_succeed(client: openai.OpenAI) -> None:
    batch = run(client, [chat(f"line-{number}", f"say {number}") for number in range(30)])
    assert batch.status == "completed"
    assert batch.in_progress_at is not None
    assert batch.finalizing_at is not None
    assert batch.completed_at is not None
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert (batch.failed_at, batch.expired_at, batch.cancelling_at, batch.cancelled_at) == (None, None, None, None)
    assert batch.error_file_id is None
    assert counts(batch) == (30, 30, 0)
    found = by_id(rows(client, batch.output_file_id))
    assert {name: answer(row) for name, row in found.items()} == {f"line-{n}": f"say {n}" for n in range(30)}
    assert all(row["error"] is None for row in found.values())


def test_item_75_results_stand_in_input_order(client: openai.OpenAI) -> None:
    """[D] promises no order; ours is the input's, whatever the order of ending."""
    lines = [chat(str(number), echo={"delay_ms": (number * 37) % 100}) for number in range(2500)]
    lines[::7] = [refused(str(number)) for number in range(0, 2500, 7)]
    batch = run(client, lines)
    for file_id, failed in ((batch.output_file_id, False), (batch.error_file_id, True)):
        expected = [str(number) for number in range(2500) if (number % 7 == 0) is failed]
        assert [row["custom_id"] for row in rows(client, file_id)] == expected


def test_item_76_mixed_results_go_to_two_files(client: openai.OpenAI) -> None:
    """5xx of the endpoint is an answer like any other: the line ended, with that status."""
    lines = [chat("good"), refused("bad"), chat("worse", echo={"status": 503, "message": "overloaded"}), chat("fine")]
    batch = run(client, lines)
    assert batch.status == "completed"
    assert counts(batch) == (4, 2, 2)
    output, errors = by_id(rows(client, batch.output_file_id)), by_id(rows(client, batch.error_file_id))
    assert set(output) == {"good", "fine"}
    assert all(row["response"]["status_code"] == 200 and row["error"] is None for row in output.values())
    assert {name: row["response"]["status_code"] for name, row in errors.items()} == {"bad": 400, "worse": 503}
    assert all(row["error"] is None for row in errors.values())
    error_of(errors["bad"]["response"]["body"], type="invalid_request_error", param="temperature")
    error_of(errors["worse"]["response"]["body"], message="overloaded")


def test_item_77_all_fail_is_completed_without_output_file(client: openai.OpenAI) -> None:
    batch = run(client, [refused(str(number)) for number in range(9)])
    assert batch.status == "completed"
    assert batch.completed_at is not None
    assert batch.failed_at is None
    assert batch.errors is None
    assert batch.output_file_id is None
    assert batch.error_file_id is not None
    assert counts(batch) == (9, 0, 9)
    assert len(by_id(rows(client, batch.error_file_id))) == 9


def test_item_78_result_files_have_purpose_name_and_size(client: openai.OpenAI) -> None:
    batch = run(client, [chat("a"), refused("b")])
    for kind, file_id in (("output", batch.output_file_id), ("error", batch.error_file_id)):
        assert file_id is not None
        file = client.files.retrieve(file_id)
        assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_{kind}.jsonl")
        assert file.status == "processed"
        content = client.files.content(file_id).content
        assert file.bytes == len(content)
        assert content.count(b"\n") == 1
        assert file_id in [item.id for item in client.files.list(purpose="batch_output", limit=20)]
        assert client.files.delete(file_id).deleted


def test_item_79_each_line_survives_line_cutting_clients(client: openai.OpenAI) -> None:
    names = ["cut-\u2028-\u0085", "plain"]
    batch = run(client, [chat(name, f"{name} {CUTTERS}") for name in names])
    assert batch.output_file_id is not None
    content = client.files.content(batch.output_file_id)
    for lines in (list(content.iter_lines()), content.text.splitlines(), content.content.split(b"\n")[:-1]):
        found = by_id(json.loads(line) for line in lines)
        assert {name: answer(row) for name, row in found.items()} == {name: f"{name} {CUTTERS}" for name in names}
    with client.files.with_streaming_response.content(batch.output_file_id) as streamed:
        assert [json.loads(line)["custom_id"] for line in streamed.iter_lines()] == names


def test_item_79_result_files_are_strict_json(client: openai.OpenAI) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    batch = run(client, [chat("a", "🚀"), chat("b", temperature=0.1)])
    assert batch.output_file_id is not None
    for line in client.files.content(batch.output_file_id).content.splitlines():
        json.loads(line, parse_constant=refuse)


def test_item_80_usage_sums_the_lines_and_model_is_set(client: openai.OpenAI) -> None:
    lines = [chat(str(number), "word " * number) for number in range(1, 21)] + [refused("bad")]
    batch = run(client, lines)
    assert batch.model == "echo"
    spent = [row["response"]["body"]["usage"] for row in rows(client, batch.output_file_id)]
    assert batch.usage is not None
    assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in spent) > 0
    assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in spent) > 0
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens
    assert batch.usage.input_tokens_details.cached_tokens == 0
    assert batch.usage.output_tokens_details.reasoning_tokens == 0


def test_item_80_a_batch_without_success_has_zero_usage(client: openai.OpenAI) -> None:
    batch = run(client, [refused("a")])
    assert batch.usage is not None
    assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (0, 0, 0)


@pytest.mark.parametrize("seconds", [None, 3600, 2_592_000])
def test_item_81_output_expiry_counts_from_the_output_file(client: openai.OpenAI, seconds: int | None) -> None:
    options: dict[str, Any] = {}
    if seconds is not None:
        options["output_expires_after"] = {"anchor": "created_at", "seconds": seconds}
    batch = run(client, [chat("a", echo={"delay_ms": 1100}), refused("b")], **options)
    for file_id in (batch.output_file_id, batch.error_file_id):
        assert file_id is not None
        file = client.files.retrieve(file_id)
        assert file.expires_at == file.created_at + (seconds or 2_592_000)
        assert batch.created_at < file.created_at <= time.time() + 1


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "once upon"}),
        ("/v1/embeddings", {"input": ["a", "b"]}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
def test_item_75_other_endpoints_answer_too(client: openai.OpenAI, endpoint: Any, body: dict[str, Any]) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "echo"} | body}
    batch = run(client, [line], endpoint=endpoint)
    assert counts(batch) == (1, 1, 0)
    [row] = rows(client, batch.output_file_id)
    assert row["response"]["body"]["model"] == "echo"
    assert batch.usage is not None
    assert batch.usage.input_tokens > 0


def test_item_75_an_endpoint_the_engine_lacks_does_not_run(client: openai.OpenAI, http: httpx2.Client) -> None:
    """[I]: no engine here moderates; the batch fails at validation instead of giving one 404 a line."""
    line = {"custom_id": "a", "method": "POST", "url": "/v1/moderations", "body": {"model": "echo", "input": "x"}}
    batch = run(client, [line], endpoint="/v1/moderations")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data
    assert http.get(f"/v1/batches/{batch.id}").json()["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
