"""What the tests say to the service: input lines, uploads, batches run to their end, result rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import openai
from openai.types import Batch, FileObject

Endpoint = Literal["/v1/responses", "/v1/chat/completions", "/v1/embeddings", "/v1/completions", "/v1/moderations"]
CHAT: Endpoint = "/v1/chat/completions"
TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})

#: Every key of the Batch object (contract 1.3); all are present in every reply, null where unset.
BATCH_KEYS = frozenset(
    {"id", "object", "endpoint", "model", "errors", "input_file_id", "completion_window", "status", "metadata"}
    | {"output_file_id", "error_file_id", "created_at", "in_progress_at", "expires_at", "finalizing_at"}
    | {"completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at", "request_counts", "usage"}
)
#: Timestamps that are null in a fresh batch.
LATER = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def chat(custom_id: str, content: str = "hello", **body: Any) -> dict[str, Any]:
    """One good input line; keywords go into the body, `model` among them."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": {"model": "echo", "messages": [{"role": "user", "content": content}]} | body,
    }


def refused(custom_id: str) -> dict[str, Any]:
    """A line that passes validation and that the endpoint answers with 400."""
    return chat(custom_id, temperature=-5)


def hanging(custom_id: str) -> dict[str, Any]:
    """A line that only an abort ends."""
    return chat(custom_id, echo={"hang": True})


def slow(custom_id: str, *, delay_ms: int) -> dict[str, Any]:
    """A line that holds its seat in the engine for `delay_ms`."""
    return chat(custom_id, echo={"delay_ms": delay_ms})


def jsonl(lines: Iterable[Mapping[str, Any] | bytes]) -> bytes:
    """An input file; bytes stand for themselves as a raw line."""
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def upload(client: openai.OpenAI, data: bytes, *, name: str = "input.jsonl") -> FileObject:
    return client.files.create(file=(name, data), purpose="batch")


def create(
    client: openai.OpenAI,
    lines: Iterable[Mapping[str, Any] | bytes] | bytes,
    *,
    endpoint: Endpoint = CHAT,
    **options: Any,
) -> Batch:
    """Upload the lines (or a whole file's bytes) and create a batch of them."""
    data = lines if isinstance(lines, bytes) else jsonl(lines)
    file = upload(client, data)
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **options)


def wait(client: openai.OpenAI, batch_id: str, *, until: Iterable[str] = TERMINAL, seconds: float = 40) -> Batch:
    """Poll until the status is one of `until`; another terminal status, or `seconds` without it, fails the test."""
    wanted = frozenset(until)
    deadline = time.monotonic() + seconds
    while True:
        batch = client.batches.retrieve(batch_id)
        if batch.status in wanted:
            return batch
        assert batch.status not in TERMINAL, f"ended as {batch.status}: {batch.errors}"
        assert time.monotonic() < deadline, f"still {batch.status} after {seconds} s: {batch.request_counts}"
        time.sleep(0.02)


def wait_for_progress(client: openai.OpenAI, batch_id: str, *, lines: int, seconds: float = 40) -> Batch:
    """Poll until at least `lines` lines have ended and the batch still runs."""
    deadline = time.monotonic() + seconds
    while True:
        batch = client.batches.retrieve(batch_id)
        assert batch.status in {"validating", "in_progress"}, batch.status
        assert batch.request_counts is not None
        if batch.request_counts.completed + batch.request_counts.failed >= lines:
            return batch
        assert time.monotonic() < deadline, f"after {seconds} s only {batch.request_counts}"
        time.sleep(0.02)


def run(client: openai.OpenAI, lines: Iterable[Mapping[str, Any] | bytes] | bytes, **options: Any) -> Batch:
    """Upload, create, wait for the end."""
    seconds = options.pop("seconds", 40)
    return wait(client, create(client, lines, **options).id, seconds=seconds)


def counts(batch: Batch) -> tuple[int, int, int]:
    """(total, completed, failed)"""
    found = batch.request_counts
    assert found is not None
    return found.total, found.completed, found.failed


def rows(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The rows of a result file, checked for the shape of contract 5.1. No file, no rows."""
    if file_id is None:
        return []
    text = client.files.content(file_id).content.decode()
    assert text.endswith("\n")
    found = [json.loads(line) for line in text.removesuffix("\n").split("\n")]
    for row in found:
        assert list(row) == ["id", "custom_id", "response", "error"]
        assert row["id"].startswith("batch_req_")
        assert (row["response"] is None) != (row["error"] is None)
        if row["response"] is not None:
            assert set(row["response"]) == {"status_code", "request_id", "body"}
            assert row["response"]["request_id"]
    return found


def by_id(found: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Rows by custom_id; a repeated one fails the test."""
    table: dict[str, Mapping[str, Any]] = {}
    for row in found:
        assert row["custom_id"] not in table, row["custom_id"]
        table[row["custom_id"]] = row
    return table


def answer(row: Mapping[str, Any]) -> str:
    """The text a chat row answers with."""
    assert row["response"]["status_code"] == 200
    return str(row["response"]["body"]["choices"][0]["message"]["content"])
