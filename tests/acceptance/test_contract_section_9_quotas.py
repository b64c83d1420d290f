"""Checklist of openai-contract 9, item 95, and quotas: what is refused, in which words, and what the headroom is."""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.acceptance.batch import CHAT, chat, create, hanging, jsonl, run, upload
from tests.acceptance.conftest import StartServer
from tests.acceptance.keys import make_key
from tests.acceptance.server import Server
from tests.acceptance.wire import refusal


@pytest.fixture
def key(server: Server, request: pytest.FixtureRequest) -> str:
    """A key of a project of the test's own, with the quotas that the test names."""
    options = [f"--{name}={limit}" for name, limit in getattr(request, "param", {}).items()]
    return make_key(server.data_dir, "--project", f"quota-{abs(hash(request.node.name)) % 10**9}", *options)


@pytest.fixture
def sdk(server: Server, key: str) -> Generator[openai.OpenAI]:
    with server.sdk(api_key=key) as client:
        yield client


def headroom(client: openai.OpenAI) -> dict[str, Any]:
    found: Any = client.get("/quota", cast_to=object)
    return dict(found)


def settled(client: openai.OpenAI, batch_id: str) -> Any:
    deadline = time.monotonic() + 20
    while (batch := client.batches.retrieve(batch_id)).status == "validating":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return batch


@pytest.mark.parametrize("key", [{"requests-per-minute": 40}], indirect=True)
def test_item_95_sdk_waits_as_long_as_a_429_says_and_succeeds(server: Server, key: str) -> None:
    with server.http(key=key) as http:
        replies = [http.get("/v1/files") for _ in range(45)]
        last = replies[-1]
        assert last.status_code == 429
        error = refusal(last, 429, type="requests", code="rate_limit_exceeded", param=None)
        assert "Limit 40, Used 40, Requested 1. Please try again in " in error["message"]
        wait_seconds = int(last.headers["retry-after"])
        assert 1 <= wait_seconds <= 120
        assert last.headers["x-ratelimit-limit-requests"] == "40"
        assert last.headers["x-ratelimit-remaining-requests"] == "0"
        assert 50 < float(last.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
    with server.sdk(api_key=key) as client, pytest.raises(openai.RateLimitError):
        client.files.list()
    with server.sdk(api_key=key, max_retries=2) as client:
        began = time.monotonic()
        reply = client.files.with_raw_response.list()
        assert 0.5 < time.monotonic() - began < 20, "it has waited, and no longer than it was told"
        assert reply.headers["x-ratelimit-limit-requests"] == "40"
        assert reply.retries_taken >= 1


@pytest.mark.parametrize("key", [{"open-batches": 2}], indirect=True)
def test_open_batches_are_counted_also_for_callers_that_race(sdk: openai.OpenAI) -> None:
    file = upload(sdk, jsonl([hanging("a")]))

    def attempt(_: int) -> Any:
        try:
            return sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        except openai.RateLimitError as refused:
            return refused

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(attempt, range(12)))
    made = [outcome for outcome in outcomes if not isinstance(outcome, openai.RateLimitError)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, openai.RateLimitError)]
    assert len(made) == 2
    assert refused[0].code == "rate_limit_exceeded"
    assert "open batches: Limit 2, Used 2, Requested 1. Please try again in 30s" in refused[0].message
    assert refused[0].response.headers["retry-after"] == "30"
    assert headroom(sdk)["open_batches"] == {"limit": 2, "used": 2, "headroom": 0}
    for batch in made:
        sdk.batches.cancel(batch.id)
    deadline = time.monotonic() + 20
    while headroom(sdk)["open_batches"]["headroom"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert run(sdk, [chat("a")]).status == "completed"


@pytest.mark.parametrize("key", [{"queued-requests": 5}], indirect=True)
def test_queued_requests_are_counted_when_the_file_has_been_read(sdk: openai.OpenAI) -> None:
    assert run(sdk, [chat(str(number)) for number in range(5)]).status == "completed"
    failed = settled(sdk, create(sdk, [chat(str(number)) for number in range(6)]).id)
    assert failed.status == "failed"
    (problem,) = failed.errors.data
    assert (problem.code, problem.param, problem.line) == ("request_limit_exceeded", None, None)
    assert "Limit: 5 queued requests, used 0, in this batch 6." in problem.message
    waiting = settled(sdk, create(sdk, [hanging(str(number)) for number in range(5)]).id)
    assert waiting.status == "in_progress"
    with pytest.raises(openai.RateLimitError) as refused:
        create(sdk, [chat("a")])
    assert "queued requests: Limit 5, Used 5, Requested 1." in refused.value.message
    sdk.batches.cancel(waiting.id)


@pytest.mark.parametrize("key", [{"enqueued-tokens": 1_000}], indirect=True)
def test_enqueued_tokens_fail_the_batch_in_openais_words(sdk: openai.OpenAI) -> None:
    assert run(sdk, [chat("a", max_tokens=900)]).status == "completed"
    failed = settled(sdk, create(sdk, [chat("a", max_tokens=500), chat("b", max_completion_tokens=500)]).id)
    assert failed.status == "failed"
    assert (failed.request_counts.total, failed.in_progress_at, failed.output_file_id) == (0, None, None)
    (problem,) = failed.errors.data
    assert (problem.code, problem.param, problem.line) == ("token_limit_exceeded", None, None)
    project = headroom(sdk)["project"]
    assert problem.message == (
        f"Enqueued token limit reached for echo in organization {project}. Limit: 1,000 enqueued tokens. "
        "Please try again once some in_progress batches have been completed."
    )
    waiting = settled(sdk, create(sdk, [hanging("a") | {"body": hanging("a")["body"] | {"max_tokens": 600}}]).id)
    used = headroom(sdk)["enqueued_tokens"]["used"]
    assert 600 < used < 700
    assert settled(sdk, create(sdk, [chat("a", max_tokens=400)]).id).status == "failed"
    sdk.batches.cancel(waiting.id)


@pytest.mark.parametrize("key", [{"stored-bytes": 1_000}], indirect=True)
def test_stored_bytes_are_refused_without_a_retry_and_leave_nothing(server: Server, sdk: openai.OpenAI) -> None:
    kept = sdk.files.create(file=("a.txt", b"x" * 600), purpose="user_data")
    blobs = server.blobs()
    with pytest.raises(openai.RateLimitError) as refused:
        sdk.with_options(max_retries=2).files.create(file=("b.txt", b"x" * 401), purpose="user_data")
    assert (refused.value.type, refused.value.code) == ("insufficient_quota", "insufficient_quota")
    assert "stored bytes: Limit 1000, Used 600, Requested 401." in refused.value.message
    assert refused.value.response.headers["retry-after"] == "120"
    assert refused.value.response.request.headers["x-stainless-retry-count"] == "0"
    assert server.blobs() == blobs
    sdk.files.create(file=("b.txt", b"x" * 400), purpose="user_data")
    assert headroom(sdk)["stored_bytes"] == {"limit": 1000, "used": 1000, "headroom": 0}
    with pytest.raises(openai.RateLimitError):
        sdk.uploads.create(filename="c.txt", purpose="user_data", bytes=1, mime_type="text/plain")
    sdk.files.delete(kept.id)
    pending = sdk.uploads.create(filename="c.txt", purpose="user_data", bytes=600, mime_type="text/plain")
    assert headroom(sdk)["stored_bytes"]["headroom"] == 0, "what an Upload has declared is taken"
    part = sdk.uploads.parts.create(pending.id, data=b"x" * 600)
    assert sdk.uploads.complete(pending.id, part_ids=[part.id]).status == "completed"
    assert headroom(sdk)["stored_bytes"]["headroom"] == 0


def test_headroom_of_a_project_without_quotas(sdk: openai.OpenAI) -> None:
    found = headroom(sdk)
    assert found["object"] == "quota"
    assert found["open_batches"] == {"limit": None, "used": 0, "headroom": None}
    assert found["requests_per_minute"] == {"limit": None, "used": None, "headroom": None}


def test_quotas_of_the_settings_hold_for_a_project_and_a_key_may_differ(start_server: StartServer) -> None:
    limits = {"OPEN_BATCHES": "1", "REQUESTS_PER_MINUTE": "1000", "STORED_BYTES": "100000"}
    server = start_server(settings={f"BATCHYARD_QUOTAS_{name}": limit for name, limit in limits.items()})
    own = make_key(server.data_dir, "--open-batches", "3", "--stored-bytes", "0")
    with server.sdk() as usual, server.sdk(api_key=own) as special:
        waiting = [settled(special, create(special, [hanging("a")]).id)]
        with pytest.raises(openai.RateLimitError):
            create(usual, [hanging("a")])
        waiting.append(create(special, [hanging("a")]))
        assert headroom(usual)["open_batches"] == {"limit": 1, "used": 2, "headroom": 0}
        assert headroom(special)["open_batches"] == {"limit": 3, "used": 2, "headroom": 1}
        assert headroom(special)["stored_bytes"]["limit"] is None
        assert headroom(special)["requests_per_minute"]["limit"] == headroom(usual)["requests_per_minute"]["limit"]
        for batch in waiting:
            special.batches.cancel(batch.id)
