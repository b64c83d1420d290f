"""Checklist of openai-contract 9, validation of the input file: items 64-74."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types import Batch

from tests.acceptance.batch import BATCH_KEYS, LATER, answer, by_id, chat, counts, create, jsonl, rows, run, wait
from tests.acceptance.server import Server

NOT_JSON = "This line is not parseable as valid JSON."


def problems(batch: Batch) -> list[tuple[str | None, str | None, int | None, str | None]]:
    """(code, param, line, message) of each entry of a failed batch."""
    assert batch.status == "failed", batch.status
    assert batch.errors is not None
    assert batch.errors.object == "list"
    assert batch.errors.data is not None
    return [(item.code, item.param, item.line, item.message) for item in batch.errors.data]


def without(key: str) -> dict[str, Any]:
    line = chat(f"without-{key}")
    del line[key]
    return line


def test_item_64_bad_json_on_lines_1_and_10_gives_two_entries(server: Server, client: openai.OpenAI) -> None:
    """Upload reads the first line and refuses bad JSON there (item 22), so line 1 goes bad behind its back: the file's
    rows are those of an upload that OpenAI accepted before it looked at first lines."""
    lines: list[Any] = [chat(str(number)) for number in range(1, 11)]
    lines[9] = b'{"custom_id": "10", '
    data = jsonl(lines)
    file = client.files.create(file=("a.jsonl", data), purpose="batch")
    with server.database() as database:
        [(key,)] = database.execute("SELECT key FROM segments WHERE file_id = ?", (file.id,)).fetchall()
    blob = server.data_dir / "blobs" / key
    blob.chmod(0o644)
    blob.write_bytes(b"x" + data[1:])
    batch = wait(
        client,
        client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id,
    )
    assert problems(batch) == [("invalid_json_line", None, 1, NOT_JSON), ("invalid_json_line", None, 10, NOT_JSON)]


def test_item_65_each_missing_key_is_named(client: openai.OpenAI) -> None:
    keys = ("custom_id", "method", "url", "body")
    batch = run(client, [without(key) for key in keys])
    assert problems(batch) == [
        ("missing_required_parameter", key, line, f"Missing required parameter: '{key}'.")
        for line, key in enumerate(keys, 1)
    ]


def test_item_65_several_missing_keys_give_an_entry_each(client: openai.OpenAI) -> None:
    """[I]: one entry per missing key."""
    batch = run(client, [b"{}"])
    assert [(code, param, line) for code, param, line, _ in problems(batch)] == [
        ("missing_required_parameter", key, 1) for key in ("custom_id", "method", "url", "body")
    ]


def test_item_65_missing_model_and_messages_are_named(client: openai.OpenAI) -> None:
    no_model, no_messages = chat("a"), chat("b")
    del no_model["body"]["model"]
    del no_messages["body"]["messages"]
    batch = run(client, [no_model, no_messages])
    assert problems(batch) == [
        ("missing_required_parameter", "body.model", 1, "Missing required parameter: 'model'."),
        ("missing_required_parameter", "body.messages", 2, "Missing required parameter: 'messages'."),
    ]


def test_item_65_values_of_the_wrong_type_are_named(client: openai.OpenAI) -> None:
    batch = run(
        client,
        [chat("a") | {"custom_id": 7}, chat("b") | {"body": []}, b"[1]", b"7", chat("c") | {"custom_id": None}],
    )
    assert [(code, param, line) for code, param, line, _ in problems(batch)] == [
        ("invalid_type", "custom_id", 1),
        ("invalid_type", "body", 2),
        ("invalid_type", None, 3),
        ("invalid_type", None, 4),
        ("invalid_type", "custom_id", 5),
    ]


def test_item_66_a_duplicate_custom_id_is_named_with_the_later_line(client: openai.OpenAI) -> None:
    batch = run(client, [chat("a"), chat("b"), chat("a"), chat("ü|/"), chat("ü|/")])
    text = (
        "The custom_id '{}' for this request is a duplicate of another request. "
        "The custom_id parameter must be unique for each request in a batch."
    )
    assert problems(batch) == [
        ("duplicate_custom_id", "custom_id", 3, text.format("a")),
        ("duplicate_custom_id", "custom_id", 5, text.format("ü|/")),
    ]


def test_item_67_a_url_other_than_the_endpoint_is_invalid(client: openai.OpenAI) -> None:
    batch = run(
        client, [chat("a"), chat("b") | {"url": "/v1/embeddings"}, chat("c") | {"url": "/v1/chat/completions/"}]
    )
    message = "The URL provided for this request does not match the batch endpoint."
    assert problems(batch) == [("invalid_url", "url", 2, message), ("invalid_url", "url", 3, message)]


def test_item_68_method_get_is_invalid(client: openai.OpenAI) -> None:
    """[I]: only POST, spelled so."""
    batch = run(client, [chat("a") | {"method": "GET"}, chat("b") | {"method": "post"}])
    assert problems(batch) == [
        ("invalid_method", "method", 1, "Invalid method: 'GET'. Only 'POST' is supported."),
        ("invalid_method", "method", 2, "Invalid method: 'post'. Only 'POST' is supported."),
    ]


def test_item_69_a_second_model_that_is_not_served_is_not_found(client: openai.OpenAI) -> None:
    """[o] says `mismatched_model`. We say so of a second model that is served (tested with vLLM, which can serve two
    names); of one that is not, `model_not_found` tells the client more."""
    batch = run(client, [chat("a"), chat("b", model="gpt-x"), chat("c")])
    assert [(code, param, line) for code, param, line, _ in problems(batch)] == [("model_not_found", "body.model", 2)]


def test_item_70_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    batch = run(client, [chat("a", model="nonexistent-model-xyz")])
    message = "The provided model 'nonexistent-model-xyz' is not supported by the Batch API."
    assert problems(batch) == [("model_not_found", "body.model", 1, message)]


def test_item_70_different_kinds_are_reported_in_one_pass(client: openai.OpenAI) -> None:
    """Contract 4.1: an unusable model on line 1 and bad JSON on line 2 both appear, the JSON one last."""
    batch = run(client, [chat("a", model="nonexistent-model-xyz"), b"{"])
    assert [(code, line) for code, _, line, _ in problems(batch)] == [("model_not_found", 1), ("invalid_json_line", 2)]


def test_item_71_streaming_is_unsupported(client: openai.OpenAI) -> None:
    batch = run(client, [chat("a", stream=True), chat("b", stream=False), chat("c", stream=None)])
    message = "Chat Completions: Streaming is not supported in the Batch API."
    assert problems(batch) == [("streaming_unsupported", "body.stream", 1, message)]


def test_item_72_a_failed_batch_ran_nothing(server: Server, client: openai.OpenAI) -> None:
    before = server.metrics()["batch_engine_call_seconds_count"]
    batch = run(client, [chat(str(number)) for number in range(50)] + [b"{"])
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.failed_at >= batch.created_at
    assert [name for name in LATER if getattr(batch, name) is not None] == ["failed_at"]
    assert counts(batch) == (0, 0, 0)
    assert (batch.output_file_id, batch.error_file_id, batch.usage) == (None, None, None)
    assert set(batch.to_dict(exclude_unset=False)) >= BATCH_KEYS
    assert server.metrics()["batch_engine_call_seconds_count"] == before


@pytest.mark.timeout(120)
def test_item_73_fifty_thousand_lines_are_accepted_and_one_more_fails(client: openai.OpenAI) -> None:
    data = jsonl(chat(str(number)) for number in range(50_000))
    accepted = create(client, data)
    refused = run(client, data + jsonl([chat("50000")]))
    [(code, param, line, message)] = problems(refused)
    assert (code, param) == ("too_many_tasks", None)
    assert message is not None
    assert "50000" in message.replace(",", "")
    assert line in (None, 50_001)
    running = wait(client, accepted.id, until={"in_progress", "finalizing", "completed"})
    assert counts(running)[0] == 50_000
    if running.status == "in_progress":
        client.batches.cancel(accepted.id)
    ended = wait(client, accepted.id, until={"cancelled", "completed"})
    written = [row["custom_id"] for file in (ended.output_file_id, ended.error_file_id) for row in rows(client, file)]
    assert sorted(written, key=int) == [str(number) for number in range(50_000)]


def _embedding(custom_id: str, inputs: Any) -> dict[str, Any]:
    body = {"model": "echo", "input": inputs}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}


@pytest.mark.timeout(120)
def test_item_73_embedding_inputs_are_counted_over_all_lines(client: openai.OpenAI) -> None:
    """A string and a list of token ids are one input each. The engine takes 2,048 inputs a line, as OpenAI does."""
    fits = [_embedding(f"many-{number}", ["a"] * 2000) for number in range(24)]
    fits += [_embedding("rest", ["a"] * 1998), _embedding("tokens", [1, 2, 3]), _embedding("text", "text")]
    accepted = create(client, fits, endpoint="/v1/embeddings")
    refused = run(client, [*fits, _embedding("e", "one too many")], endpoint="/v1/embeddings")
    [(code, _, _, message)] = problems(refused)
    assert code == "too_many_inputs"
    assert message is not None
    assert "50000" in message.replace(",", "")
    assert counts(wait(client, accepted.id)) == (27, 27, 0)


def test_item_74_odd_but_legal_input_runs_right(client: openai.OpenAI) -> None:
    """[I]: lines end at \\n only, CRLF and one BOM are accepted, blank lines are skipped and numbered."""
    said = {
        "u2028": "one\u2028two\u2029three\u0085four",
        "astral": "🚀 \U0001f9d1\u200d\U0001f680",
        "control": "\u0000 \u001c \u001e \u000b \u000c",
        "plain": "last",
    }
    lines = [json.dumps(chat(name, text), ensure_ascii=False).encode() for name, text in said.items()]
    data = b"\xef\xbb\xbf" + b"\r\n".join([lines[0], b"", lines[1], b"   ", lines[2], lines[3]])
    batch = run(client, data)
    assert batch.status == "completed"
    assert counts(batch) == (4, 4, 0)
    found = by_id(rows(client, batch.output_file_id))
    assert {name: answer(row) for name, row in found.items()} == said


def test_item_74_blank_lines_keep_their_numbers(client: openai.OpenAI) -> None:
    batch = run(client, b"\n".join([json.dumps(chat("a")).encode(), b"", b"  \r", b"{", b""]))
    assert problems(batch) == [("invalid_json_line", None, 4, NOT_JSON)]


def test_item_74_text_that_is_not_utf_8_is_refused_with_its_line(client: openai.OpenAI) -> None:
    batch = run(client, jsonl([chat("a"), b'{"custom_id": "\xff"}']))
    [(code, _, line, _)] = problems(batch)
    assert (code, line) == ("invalid_json_line", 2)
