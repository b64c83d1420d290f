"""`batchyard run-batch` with real models: vLLM's published run-batch cases, as a user runs them."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.engine import embedded
from app.engine.factory import EMBEDDED_ARGUMENTS
from bench.parity import POOLING_FLAGS, pooling_model

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,  # without it vLLM lets the model write any arguments
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}


def ask(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def chat(custom_id: str, text: str, **body: Any) -> dict[str, Any]:
    given = {"model": embedded.MODEL_NAME, "temperature": 0, "max_tokens": 8, **body}
    return ask(custom_id, CHAT, messages=[{"role": "user", "content": text}], **given)


def run(folder: Path, lines: Sequence[dict[str, Any] | str], *flags: str) -> tuple[int, dict[str | None, Any]]:
    """(exit code, rows by custom_id) of a run over `lines`; a string stands for itself."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "in.jsonl").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "app", "run-batch", "-i", "in.jsonl", "-o", "out.jsonl", *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (folder / "out.jsonl").exists(), done.stderr[-4000:]
    rows = [json.loads(row) for row in (folder / "out.jsonl").read_text(encoding="utf-8").split("\n") if row]
    assert len(rows) == len(lines)
    return done.returncode, {row["custom_id"]: row for row in rows}


def body_of(row: dict[str, Any]) -> Any:
    assert row["error"] is None, row
    assert row["response"]["status_code"] == 200
    return row["response"]["body"]


def refused(row: dict[str, Any], status: int, words: str) -> None:
    assert (row["response"]["status_code"], row["response"]["body"]) == (status, None)
    assert words in json.dumps(row["error"])


def test_chat_model_answers_every_kind_of_line_it_serves(model: Path, tmp_path: Path) -> None:
    """Completions, tool calls, a reasoning parser, and lines that are wrong in every way, in one run."""
    choice = {"type": "function", "function": {"name": "weather"}}
    # With a reasoning parser vLLM waits for the end of the thoughts before it follows a grammar, unless told not to.
    thoughtless = {"include_reasoning": False}
    thoughts = "Here is my thought process: (yes|no)[.] Here is my response: (yes|no)[.]"
    lines: list[dict[str, Any] | str] = [
        chat("chat", "What is the capital of France?"),
        chat("tool", "Weather in Rome?", tools=[TOOL], tool_choice=choice, max_tokens=80, **thoughtless),
        chat("reasoning", "Say yes.", structured_outputs={"regex": thoughts}, max_tokens=40, **thoughtless),
        ask("completion", COMPLETIONS, model=embedded.MODEL_NAME, prompt="One, two,", max_tokens=4, temperature=0),
        ask("response", RESPONSES, model=embedded.MODEL_NAME, input="Say yes.", max_output_tokens=4, temperature=0),
        chat("unknown-model", "Hello.", model="no-such-model"),
        chat("bad-body", "Hello.", temperature="warm"),
        ask("unserved", EMBEDDINGS, model=embedded.MODEL_NAME, input="x"),
        ask("unknown-url", "/v1/nothing", model=embedded.MODEL_NAME),
        "{malformed",
    ]
    flags = (
        *EMBEDDED_ARGUMENTS,
        "--max-num-seqs",
        "8",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    )
    code, rows = run(tmp_path, lines, "--model", str(model), *flags, "--reasoning-parser", "granite")
    assert code == 1
    assert body_of(rows["chat"])["usage"]["completion_tokens"] == 8
    (call,) = body_of(rows["tool"])["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert "city" in json.loads(call["function"]["arguments"])
    # The parser takes the thoughts off.
    assert body_of(rows["reasoning"])["choices"][0]["message"]["content"].strip() in {"yes.", "no."}
    assert body_of(rows["completion"])["choices"][0]["text"]
    assert body_of(rows["response"])["object"] == "response"
    refused(rows["unknown-model"], 404, "no-such-model")
    refused(rows["bad-body"], 400, "temperature")
    refused(rows["unserved"], 400, "does not support the endpoint '/v1/embeddings'")
    refused(rows["unknown-url"], 400, "/v1/nothing")
    refused(rows[None], 400, "Line 10: ")


def test_embedding_model_answers_embeddings_score_and_rerank(tmp_path: Path) -> None:
    pair = {"model": "minilm", "text_1": "What is a cat?", "text_2": ["A cat is an animal.", "Stones are hard."]}
    rank = {"model": "minilm", "query": "What is a cat?", "documents": ["Stones are hard.", "A cat is an animal."]}
    lines = [
        ask("float", EMBEDDINGS, model="minilm", input="A text."),
        ask("base64", EMBEDDINGS, model="minilm", input="A text.", encoding_format="base64"),
        *(ask(url, url, **pair) for url in ("/score", "/v1/score")),
        *(ask(url, url, **rank) for url in ("/rerank", "/v1/rerank", "/v2/rerank")),
        chat("unserved", "Hello.", model="minilm"),
    ]
    flags = ("--model", str(pooling_model()), *POOLING_FLAGS)
    code, rows = run(tmp_path, lines, *flags)
    assert code == 0
    numbers = body_of(rows["float"])["data"][0]["embedding"]
    packed = base64.b64decode(body_of(rows["base64"])["data"][0]["embedding"])
    assert len(numbers) == 384
    assert struct.unpack("<384f", packed) == pytest.approx(numbers, abs=1e-3)
    for url in ("/score", "/v1/score"):
        near, far = (item["score"] for item in body_of(rows[url])["data"])
        assert near > far
    for url in ("/rerank", "/v1/rerank", "/v2/rerank"):
        assert body_of(rows[url])["results"][0]["index"] == 1
    refused(rows["unserved"], 400, "does not support the endpoint '/v1/chat/completions'")


def test_flag_that_vllm_refuses_ends_the_run_in_one_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(chat("a", "Hello.")) + "\n", encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "app",
            "run-batch",
            "-i",
            "in.jsonl",
            "-o",
            "out",
            "--model",
            str(model),
            "--no-such-flag",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: vLLM refuses its flags: ")
