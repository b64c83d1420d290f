"""The examples and the bench do what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.engine.embedded import MODEL_NAME
from bench.drain import LINE_BYTES, request_file

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, cwd: Path = ROOT, seconds: float = 55) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False
    )


def example_lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "examples" / "chat.jsonl").read_text(encoding="utf-8").splitlines()]


def test_chat_example_is_varied_and_repeatable() -> None:
    lines = example_lines()
    assert len(lines) == 20
    assert len({line["custom_id"] for line in lines}) == 20
    for line in lines:
        assert line["url"] == "/v1/chat/completions"
        assert line["body"]["model"] == MODEL_NAME
        assert line["body"]["temperature"] == 0
        assert line["body"]["max_tokens"] <= 64
    messages = [line["body"]["messages"] for line in lines]
    assert any(turns[0]["role"] == "system" for turns in messages)
    assert any(len(turns) > 2 for turns in messages)
    assert any(not turns[-1]["content"].isascii() for turns in messages)
    assert {"role": "user", "content": "What is the capital of France?"} in messages[0]


def test_demo_with_the_echo_engine_prints_every_answer_and_exits_0() -> None:
    ended = run("examples/demo.py", "--engine", "echo")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "19 answers and 1 error line, as expected" in ended.stdout
    assert "service stopped" in ended.stdout
    assert "400: Invalid value for" in ended.stdout
    for line in example_lines():
        assert line["custom_id"] in ended.stdout


def test_demo_says_why_it_failed_and_exits_1(tmp_path: Path) -> None:
    # The same script over an example in which a second line fails.
    (tmp_path / "examples").mkdir()
    script = (ROOT / "examples" / "demo.py").read_text(encoding="utf-8")
    (tmp_path / "examples" / "demo.py").write_text(script, encoding="utf-8")
    lines = example_lines()
    lines[0]["body"]["n"] = 0
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "examples" / "chat.jsonl").write_text(text, encoding="utf-8")
    ended = run("examples/demo.py", "--engine", "echo", cwd=tmp_path)
    assert ended.returncode == 1
    assert "capital-france" in ended.stdout.split("✗")[-1]
    assert '"event": "stopped"' in ended.stdout, "the server's last lines are shown"


def test_bench_lines_have_the_size_they_are_said_to_have() -> None:
    lines = request_file(3).split(b"\n")
    assert [len(line) + 1 for line in lines[:-1]] == [LINE_BYTES] * 3
    assert lines[-1] == b""


@pytest.mark.timeout(200)
def test_bench_measures_and_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    ended = run("-m", "bench", "drain", "--runs", "1", "--scale", "0.02", "--out", str(out), seconds=180)
    assert ended.returncode in (0, 1), ended.stderr  # 1: a target was missed, which says nothing at this size
    found = json.loads(out.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert set(rows) == {"drain", "drain, Postgres", "create to completed", "memory above idle, peak"}
    assert all(row["median"] > 0 for row in rows.values())
    assert found["command"].startswith("python -m bench drain --runs 1")
    assert found["versions"]["python"] in ended.stdout
    assert "lines/s" in ended.stdout


def test_bench_refuses_a_name_it_does_not_know() -> None:
    ended = run("-m", "bench", "nothing")
    assert ended.returncode == 2
    assert "no such measurement: nothing" in ended.stderr
