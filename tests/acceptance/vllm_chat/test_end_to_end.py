"""The whole product with the embedded model on the CPU build of vLLM."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import openai
import pytest

from tests.acceptance.batch import answer, by_id, chat, counts, create, rows, run, wait
from tests.acceptance.vllm_chat.conftest import LOAD_SECONDS, MODEL, SECOND_NAME, Loaded
from tests.acceptance.wire import error_of

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.timeout(LOAD_SECONDS + 120),
]


def ask(custom_id: str, content: str, **body: Any) -> dict[str, Any]:
    return chat(custom_id, content, **({"model": MODEL, "temperature": 0, "max_tokens": 16} | body))


def test_health_answers_while_the_model_loads(loaded: Loaded) -> None:
    assert loaded.ready_while_loading
    assert all(status == 503 and "loading" in text for status, text in loaded.ready_while_loading)
    assert loaded.slowest_health_seconds < 2


def test_the_capital_of_france_is_paris(client: openai.OpenAI) -> None:
    batch = run(client, [ask("france", "What is the capital of France?")], seconds=60)
    assert counts(batch) == (1, 1, 0)
    [row] = rows(client, batch.output_file_id)
    assert "Paris" in answer(row)
    assert batch.model == MODEL


def test_usage_sums_and_every_line_has_its_answer(client: openai.OpenAI) -> None:
    words = ["apple", "river", "stone", "cloud", "🚀", "日本"]
    batch = run(client, [ask(word, f"Say the word {word}.") for word in words], seconds=90)
    assert counts(batch) == (6, 6, 0)
    found = by_id(rows(client, batch.output_file_id))
    assert list(found) == words
    spent = [row["response"]["body"]["usage"] for row in found.values()]
    assert batch.usage is not None
    assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in spent) > 0
    assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in spent) > 0
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens


def test_a_line_that_fails_at_the_model_lands_in_the_error_file(client: openai.OpenAI) -> None:
    lines = [
        ask("good", "What is the capital of France?"),
        ask("hot", "hello", top_p=7),
        ask("long", "word " * 20_000),
        ask("none", "hello", n=0),
    ]
    batch = run(client, lines, seconds=60)
    assert batch.status == "completed"
    assert counts(batch) == (4, 1, 3)
    assert set(by_id(rows(client, batch.output_file_id))) == {"good"}
    errors = by_id(rows(client, batch.error_file_id))
    assert set(errors) == {"hot", "long", "none"}
    for row in errors.values():
        assert row["response"]["status_code"] == 400
        assert row["error"] is None
        assert row["response"]["body"]["error"]["message"]
    assert "top_p" in errors["hot"]["response"]["body"]["error"]["message"]


def test_cancel_aborts_long_generations_in_the_engine(loaded: Loaded, client: openai.OpenAI) -> None:
    lines = [ask(str(n), "Tell me a story.", max_tokens=1900, ignore_eos=True, min_tokens=1900) for n in range(24)]
    batch = create(client, lines)
    deadline = time.monotonic() + 30
    while loaded.server.metrics()["batch_inflight"] < 24:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1)
    start = time.monotonic()
    client.batches.cancel(batch.id)
    ended = wait(client, batch.id, until={"cancelled"}, seconds=10)
    assert time.monotonic() - start < 2
    assert counts(ended) == (24, 0, 0)
    assert {row["error"]["code"] for row in rows(client, ended.error_file_id)} == {"batch_cancelled"}
    assert loaded.server.metrics()["batch_inflight"] == 0
    start = time.monotonic()
    run(client, [ask("next", "What is the capital of France?", max_tokens=4)], seconds=60)
    assert time.monotonic() - start < 5


def test_an_unknown_model_fails_validation(client: openai.OpenAI) -> None:
    batch = run(client, [ask("a", "hello"), chat("b", model="gpt-4o-mini")])
    assert batch.status == "failed"
    assert batch.errors is not None
    found = [(item.code, item.param, item.line, item.message) for item in batch.errors.data or []]
    message = "The provided model 'gpt-4o-mini' is not supported by the Batch API."
    assert ("model_not_found", "body.model", 2, message) in found


def test_item_69_two_models_are_mismatched(client: openai.OpenAI) -> None:
    batch = run(client, [ask("a", "hello"), ask("b", "hello", model=SECOND_NAME), ask("c", "hello")])
    assert batch.status == "failed"
    assert batch.errors is not None
    message = (
        f"The model '{SECOND_NAME}' for this request does not match the rest of the batch. "
        "Each batch must contain requests for a single model."
    )
    found = [(item.code, item.param, item.line, item.message) for item in batch.errors.data or []]
    assert found == [("mismatched_model", "body.model", 2, message)]


def test_an_endpoint_that_the_model_lacks_does_not_run(client: openai.OpenAI) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": MODEL, "input": "x"}}
    batch = run(client, [line], endpoint="/v1/embeddings")
    assert batch.status == "failed"


def test_completions_and_responses_answer_too(client: openai.OpenAI) -> None:
    bodies: list[tuple[Any, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "Paris is the capital of", "max_tokens": 4}),
        ("/v1/responses", {"input": "What is the capital of France?", "max_output_tokens": 16}),
    ]
    for endpoint, body in bodies:
        line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": MODEL} | body}
        batch = run(client, [line], endpoint=endpoint, seconds=60)
        errors = [error_of(row["response"]["body"]) for row in rows(client, batch.error_file_id)]
        assert counts(batch) == (1, 1, 0), errors
        assert batch.usage is not None
        assert batch.usage.output_tokens > 0


def test_no_log_line_holds_a_prompt(loaded: Loaded, client: openai.OpenAI) -> None:
    batch = run(client, [ask("a", "a-prompt-that-no-log-may-hold")], seconds=60)
    assert [event for event in loaded.server.events() if event.get("batch_id") == batch.id]
    assert "a-prompt-that-no-log-may-hold" not in loaded.server.log(tail=1 << 30)
    with httpx2.Client() as plain:
        assert plain.get(f"{loaded.server.url}/health").status_code == 200
