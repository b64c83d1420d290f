"""The order of sending."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.worker.order import dispatch_order


def line(url: str = "/v1/chat/completions", **body: Any) -> bytes:
    return json.dumps({"custom_id": "x", "method": "POST", "url": url, "body": {"model": "m", **body}}).encode()


def chat(*texts: str, **body: Any) -> bytes:
    return line(messages=[{"role": "user", "content": text} for text in texts], **body)


def order(lines: list[bytes], endpoint: str = "/v1/chat/completions") -> list[int]:
    found = dispatch_order(lines, endpoint=endpoint)
    assert sorted(found) == list(range(len(lines)))
    return found


def test_order_puts_shared_leading_messages_side_by_side() -> None:
    lines = [chat(system, f"question {number}") for number in range(4) for system in ("cook", "judge")]
    systems = [("cook", "judge")[index % 2] for index in order(lines)]
    assert systems == ["cook"] * 4 + ["judge"] * 4


def test_order_puts_shared_documents_side_by_side() -> None:
    lines = [chat(letter * 2000 + str(number)) for number in range(3) for letter in "ab"]
    assert [index % 2 for index in order(lines)] == [0, 0, 0, 1, 1, 1]


def test_order_longest_answers_first_among_equals() -> None:
    lines = [
        chat("s", "q", max_tokens=10),
        chat("s", "q"),
        chat("s", "q", max_completion_tokens=500),
        chat("s", "q", max_tokens="x"),
    ]
    assert order(lines) == [1, 3, 2, 0]


def test_order_keeps_input_order_among_equals() -> None:
    assert order([chat(f"short {9 - number}") for number in range(9)]) == list(range(9))


def test_order_of_prompts_and_responses() -> None:
    prompts = [line("/v1/completions", prompt=letter * 2000, max_tokens=number) for number in (1, 2) for letter in "ab"]
    assert order(prompts, "/v1/completions") == [2, 0, 3, 1]
    inputs = [line("/v1/responses", instructions=name, input="hi") for name in "baba"]
    assert order(inputs, "/v1/responses") == [1, 3, 0, 2]


@pytest.mark.parametrize("messages", [[], "text", None, 7, {}, [[]], [1, 2]])
def test_order_survives_odd_messages(messages: Any) -> None:
    order([line(messages=messages), line(messages=messages, max_tokens=True), line()])


def test_order_of_embeddings_is_input_order() -> None:
    assert order(
        [line("/v1/embeddings", input="b" * 2000), line("/v1/embeddings", input="a" * 2000)], "/v1/embeddings"
    ) == [0, 1]
