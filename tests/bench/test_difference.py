"""What counts as a difference between two result rows, and that no explanation covers another one."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

from app.domain.endpoint import BATCH_ENDPOINTS
from bench.difference import EXPLAINED, differences

NOW = int(time.time())


def row(*, digits: int = 32, **fields: Any) -> dict[str, Any]:
    body = {"id": "chatcmpl-" + "0a" * 8, "created": NOW, "choices": [{"text": "hi", "logprob": -1.0}]}
    found: dict[str, Any] = {
        "id": "vllm-" + "1b" * (digits // 2),
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "vllm-batch-" + "2c" * (digits // 2), "body": body},
        "error": None,
    }
    return found | fields


def refused(sentence: str, *, status: int = 400) -> dict[str, Any]:
    found = row(error=sentence)
    found["response"] |= {"status_code": status, "body": None}
    return found


def paths(ours: Any, theirs: Any) -> list[str]:
    return [found.path for found in differences(ours, theirs)]


def test_differences_of_ids_and_times_are_none() -> None:
    theirs = row(digits=16)
    theirs["response"]["body"] |= {"id": "chatcmpl-" + "ff" * 8, "created": NOW - 60}
    assert paths(row(), theirs) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"id": "cmpl-" + "0a" * 8}, "response.body.id"),
        ({"created": 0}, "response.body.created"),
        pytest.param({"created": str(NOW)}, "response.body.created", id="created as text"),
        ({"choices": [{"text": "ho", "logprob": -1.0}]}, "response.body.choices[0].text"),
        ({"choices": [{"text": "hi", "logprob": -1}]}, "response.body.choices[0].logprob"),
        ({"choices": []}, "response.body.choices"),
        ({"more": None}, "response.body.more"),
    ],
    ids=str,
)
def test_differences_name_the_place(change: dict[str, Any], path: str) -> None:
    theirs = copy.deepcopy(row())
    theirs["response"]["body"] |= change
    assert paths(row(), theirs) == [path]


ENDPOINTS = ", ".join(BATCH_ENDPOINTS)
UNKNOWN = "URL /v1/no/such was used. Supported endpoints: /score, /rerank."
PAIRS = {
    "no-such-endpoint": (
        refused(f"'/v1/no/such' is no endpoint of a batch. Those are: {ENDPOINTS}."),
        refused(UNKNOWN),
    ),
    "unserved-endpoint": (
        refused("The model does not support the endpoint '/v1/embeddings'."),
        refused("Model does not support endpoint: /v1/embeddings"),
    ),
    "streamed": (
        refused("Line 20: Chat Completions: Streaming is not supported in the Batch API."),
        refused("Request must not be sent in stream mode"),
    ),
    "response": (row(), refused(UNKNOWN)),
    "message": (row(), refused(UNKNOWN)),
}


@pytest.mark.parametrize("custom_id", EXPLAINED)
def test_explanation_holds_for_its_own_difference_alone(custom_id: str) -> None:
    ours, theirs = PAIRS[custom_id]
    holds = EXPLAINED[custom_id].holds
    assert holds(ours, theirs)
    assert not holds(ours, refused("something else"))
    assert not holds(ours, row())
    assert not holds(refused("something else"), theirs)
    assert not holds(ours, refused(str(theirs["error"]), status=500))
