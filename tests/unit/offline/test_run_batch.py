"""A whole offline run in this process: rows, exit codes, refusals, and going on where a run was stopped."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from app.engine.base import Reply
from app.engine.echo import EchoEngine
from app.engine.supervised import SupervisedEngine
from app.errors import EngineDead, SettingsInvalid, Unavailable
from app.offline import target
from app.offline.run_batch import Plan, run_batch
from tests.unit.offline.scenes import QUICK, line, rows, run, text_of, write


def plan(folder: Path, **given: Any) -> Plan:
    return Plan(input=str(folder / "in.jsonl"), output=str(folder / "out.jsonl"), **given)


def left_over(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"in.jsonl", "out.jsonl"}


async def test_run_writes_vllm_rows_in_input_order_and_cleans_up(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"c{i}", f"text {i}", echo={"delay_ms": i * 7 % 5}) for i in range(100)])
    result = await run(plan(tmp_path))
    found = rows(tmp_path / "out.jsonl")
    assert result.code == 0
    assert [row["custom_id"] for row in found] == [f"c{i}" for i in range(100)]
    assert [text_of(row) for row in found] == [f"text {i}" for i in range(100)]
    first = found[0]
    assert list(first) == ["id", "custom_id", "response", "error"]
    assert list(first["response"]) == ["status_code", "request_id", "body"]
    assert first["id"].startswith("vllm-")
    assert first["response"]["request_id"].startswith("vllm-batch-")
    assert (first["response"]["status_code"], first["error"]) == (200, None)
    assert left_over(tmp_path) == set()
    assert "100 lines: 100 answered, 0 failed, 0 malformed; 200 tokens in, 200 out" in result.said


# --- the seven cases of vLLM's own unit tests ---


async def test_empty_input_gives_an_empty_output_and_loads_no_model(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\n \r\n\n")
    result = await run(plan(tmp_path))
    assert (result.code, result.loads, (tmp_path / "out.jsonl").read_bytes()) == (0, 0, b"")


async def test_custom_id_is_echoed_whatever_it_says(tmp_path: Path) -> None:
    ids = ["plain", "", "twice", "twice", "ünï 🙂", 'quo"te\\', "x" * 2000]
    write(tmp_path / "in.jsonl", [line(custom_id) for custom_id in ids])
    assert (await run(plan(tmp_path))).code == 0
    assert [row["custom_id"] for row in rows(tmp_path / "out.jsonl")] == ids


async def test_line_without_custom_id_gets_an_error_row(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"method":"POST","url":"/v1/chat/completions","body":{}}\n' + line("ok"))
    assert (await run(plan(tmp_path))).code == 1
    bad, good = rows(tmp_path / "out.jsonl")
    assert bad["custom_id"] is None
    assert (bad["response"]["status_code"], bad["response"]["body"]) == (400, None)
    assert bad["error"] == "Line 1: Missing required parameter: 'custom_id'."
    assert good["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("text", "custom_id", "message"),
    [
        (b"{not json", None, "not parseable as valid JSON"),
        (b'["a"]', None, "must be a JSON object"),
        (b'{"custom_id":"b","method":"POST","url":"/v1/embeddings"}', "b", "Missing required parameter: 'body'"),
        (b'{"custom_id":"b","method":"GET","url":"/v1/embeddings","body":{}}', "b", "Only 'POST' is supported"),
        (b'{"custom_id":"b","method":"POST","url":"/v1/embeddings","body":[]}', "b", "expected an object"),
        (line("b", stream=True), "b", "Streaming is not supported"),
        (b'{"custom_id":7,"method":"POST","url":"/v1/embeddings","body":{}}', None, "expected a string"),
        (b'{"custom_id":"\xff","method":"POST"}', None, "not valid UTF-8"),
        (b'{"custom_id":"b","body":' + b"[" * 300 + b"]" * 300 + b"}", "b", "nests deeper"),
    ],
)
async def test_malformed_line_gets_an_error_row_and_the_run_goes_on(
    tmp_path: Path, text: bytes, custom_id: str | None, message: str
) -> None:
    write(tmp_path / "in.jsonl", [line("a"), text, line("c")])
    result = await run(plan(tmp_path))
    first, bad, last = rows(tmp_path / "out.jsonl")
    assert (result.code, first["custom_id"], last["custom_id"]) == (1, "a", "c")
    assert bad["custom_id"] == custom_id
    assert bad["error"].startswith("Line 2: ")
    assert message in bad["error"]
    assert "2 answered, 0 failed, 1 malformed" in result.said


async def test_lines_that_no_model_can_answer_load_none(tmp_path: Path) -> None:
    """More than one piece of them, so that the reading goes on without an engine."""
    write(tmp_path / "in.jsonl", [b"{", line("a", url="/v1/no/such")] * 30)
    result = await run(plan(tmp_path))
    assert (result.code, result.loads, result.asked) == (1, 0, [])
    assert [row["error"].startswith("Line ") for row in rows(tmp_path / "out.jsonl")] == [True, False] * 30
    assert "60 lines: 0 answered, 30 failed, 30 malformed; 0 tokens in, 0 out; wrote" in result.said
    assert "loading" not in result.said


async def test_model_loads_once_for_the_first_line_that_needs_it(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [*[b"{"] * 50, line("a"), b"{", *[line("b")] * 50])
    result = await run(plan(tmp_path))
    assert (result.code, result.loads, len(result.asked)) == (1, 1, 51)
    assert len(rows(tmp_path / "out.jsonl")) == 102


async def test_run_stopped_while_the_model_loads_ends_at_once_and_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [b"{", line("a"), line("b")])
    stop = asyncio.Event()
    running = asyncio.create_task(run(plan(tmp_path), stop=stop, load_seconds=60))
    await asyncio.sleep(0.2)
    stop.set()
    async with asyncio.timeout(10):
        stopped = await running
    assert (stopped.code, stopped.loads, stopped.asked) == (None, 1, [])
    assert "stopped; 1 of 3 lines are done" in stopped.said
    again = await run(plan(tmp_path))
    assert (again.code, len(again.asked), len(rows(tmp_path / "out.jsonl"))) == (1, 2, 3)


@pytest.mark.parametrize("url", ["/v1/no/such", "/v1/load_lora_adapter", "/v1/models", "", "/v1/chat/completions/"])
async def test_unknown_url_gets_an_error_row_that_names_the_known_ones(tmp_path: Path, url: str) -> None:
    write(tmp_path / "in.jsonl", [line("a", url=url), line("b")])
    result = await run(plan(tmp_path))
    bad, good = rows(tmp_path / "out.jsonl")
    assert (result.code, len(result.asked)) == (0, 1)
    assert (bad["custom_id"], bad["response"]["status_code"], bad["response"]["body"]) == ("a", 400, None)
    assert "/v1/chat/completions" in bad["error"]
    assert good["error"] is None


async def test_endpoint_that_the_model_lacks_gets_an_error_row(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a", url="/v1/moderations"), line("b")])
    assert (await run(plan(tmp_path))).code == 0
    bad, good = rows(tmp_path / "out.jsonl")
    assert bad["error"] == "The model does not support the endpoint '/v1/moderations'."
    assert (bad["response"]["status_code"], good["error"]) == (400, None)


async def test_unknown_model_gets_the_engines_404_in_its_row(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a", model="none"), line("b")])
    result = await run(plan(tmp_path))
    bad, good = rows(tmp_path / "out.jsonl")
    assert (result.code, bad["response"]["status_code"], bad["response"]["body"]) == (0, 404, None)
    assert bad["error"]["error"]["message"] == "The model 'none' does not exist."
    assert good["error"] is None


# --- endpoints, formats, strictness ---


async def test_each_line_goes_to_the_endpoint_it_names(tmp_path: Path) -> None:
    embedding = {"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": {"model": "echo", "input": "x"}}
    prompt = {"custom_id": "p", "method": "POST", "url": "/v1/completions", "body": {"model": "echo", "prompt": "x"}}
    write(tmp_path / "in.jsonl", [line("c"), json.dumps(embedding).encode(), json.dumps(prompt).encode(), line("d")])
    assert (await run(plan(tmp_path))).code == 0
    kinds = [row["response"]["body"]["object"] for row in rows(tmp_path / "out.jsonl")]
    assert kinds == ["chat.completion", "list", "text_completion", "chat.completion"]


async def test_fields_that_a_hosted_batch_refuses_reach_the_engine(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a", priority=3, cache_salt="s")])
    result = await run(plan(tmp_path))
    assert (result.code, json.loads(result.asked[0])["priority"]) == (0, 3)


async def test_openai_format_writes_two_files(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a"), b"{", line("b", model="none"), line("c"), line("d", url="/x")])
    result = await run(plan(tmp_path, format="openai", errors=str(tmp_path / "err.jsonl")))
    good, bad = rows(tmp_path / "out.jsonl"), rows(tmp_path / "err.jsonl")
    assert result.code == 1
    assert [row["custom_id"] for row in good] == ["a", "c"]
    assert [row["custom_id"] for row in bad] == [None, "b", "d"]
    assert all(row["id"].startswith("batch_req_") for row in good + bad)
    assert [row["error"] and row["error"]["code"] for row in bad] == ["invalid_json_line", None, "invalid_url"]
    assert bad[1]["response"]["status_code"] == 404
    assert left_over(tmp_path) == {"err.jsonl"}


async def test_strict_refuses_before_the_model_loads_and_names_the_lines(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a"), b"{", line("b"), b"[]"])
    with pytest.raises(SettingsInvalid, match=r"2 of 4 lines are malformed\. Line 2: .*Line 4: "):
        await run(plan(tmp_path, strict=True))
    assert left_over(tmp_path) == set()


async def test_strict_runs_a_good_file(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a")])
    assert (await run(plan(tmp_path, strict=True))).code == 0


async def test_bytes_that_some_clients_cut_at_stay_inside_their_row(tmp_path: Path) -> None:
    texts = ["\u2028 and \u2029", "\u0085", "a\r\nb", "\x1c \x1d \x1e"]
    write(tmp_path / "in.jsonl", [line("a", text) for text in texts])
    assert (await run(plan(tmp_path))).code == 0
    found = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [text_of(json.loads(row)) for row in found] == texts


# --- refusals ---


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input": "missing.jsonl"}, "cannot be read: No such file"),
        ({"input": "."}, "is a folder"),
        ({"output": "."}, "is a folder"),
        ({"output": "no/such/out.jsonl"}, "the folder of the output .* does not exist"),
        ({"output": "in.jsonl"}, "is the input"),
        ({"output": "soft.jsonl"}, "is the input"),
        ({"output": "hard.jsonl"}, "is the input"),
        ({"output": "./sub/../in.jsonl"}, "is the input"),
        ({"input": "ftp://host/x"}, "is none of"),
        ({"output": "s3://bucket"}, "is none of"),
        ({"format": "openai"}, "name the second one with --error-file"),
        ({"errors": "err.jsonl"}, "goes with --format openai"),
        ({"format": "openai", "errors": "out.jsonl"}, "are one file"),
        ({"format": "openai", "errors": "in.jsonl"}, "is the input"),
    ],
    ids=str,
)
async def test_refuse_before_the_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content = write(tmp_path / "in.jsonl", [line("a")]).read_bytes()
    (tmp_path / "sub").mkdir()
    Path("soft.jsonl").symlink_to("in.jsonl")
    os.link("in.jsonl", "hard.jsonl")
    before = left_over(tmp_path)
    asked = replace(Plan(input="in.jsonl", output="out.jsonl"), **given)

    def no_engine(_: object) -> Any:
        raise AssertionError("the model loads")

    with pytest.raises(SettingsInvalid, match=message):
        await run_batch(asked, QUICK, engine_of=no_engine, console=None, stop=asyncio.Event())  # type: ignore[arg-type]
    assert left_over(tmp_path) == before
    assert (tmp_path / "in.jsonl").read_bytes() == content


async def test_output_behind_a_link_is_written_where_the_link_leads(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a")])
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "real.jsonl").write_text("old")
    (tmp_path / "out.jsonl").symlink_to("sub/real.jsonl")
    assert (await run(plan(tmp_path))).code == 0
    assert (tmp_path / "out.jsonl").is_symlink()
    assert len(rows(tmp_path / "sub" / "real.jsonl")) == 1


# --- stop and go on ---


async def test_stopped_run_goes_on_and_repeats_no_finished_line(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"c{i}", f"text {i}") for i in range(300)])
    first = await run(plan(tmp_path), stop_when=100, delay_seconds=0.01, concurrent=8)
    assert first.code is None
    assert not (tmp_path / "out.jsonl").exists()
    assert "the same command goes on" in first.said
    progress = rows(tmp_path / "out.jsonl.progress")
    assert 100 <= len(progress) < 300

    second = await run(plan(tmp_path))
    found = rows(tmp_path / "out.jsonl")
    assert second.code == 0
    assert [row["custom_id"] for row in found] == [f"c{i}" for i in range(300)]
    assert [text_of(row) for row in found] == [f"text {i}" for i in range(300)]
    assert len(second.asked) == 300 - len(progress)
    assert {row["id"] for row in progress} <= {row["id"] for row in found}
    assert f"{len(progress)} lines before" in second.said
    assert left_over(tmp_path) == set()


async def test_malformed_lines_of_an_earlier_run_still_count(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [b"{", *(line(f"c{i}", echo={"delay_ms": 5}) for i in range(100))])
    assert (await run(plan(tmp_path), stop_when=30, concurrent=4)).code is None
    second = await run(plan(tmp_path))
    assert second.code == 1
    assert "101 lines: 100 answered, 0 failed, 1 malformed" in second.said


async def test_journal_of_another_input_is_refused_and_restart_drops_it(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"c{i}", echo={"delay_ms": 5}) for i in range(100)])
    assert (await run(plan(tmp_path), stop_when=30, concurrent=4)).code is None
    write(tmp_path / "in.jsonl", [line("other")])
    with pytest.raises(SettingsInvalid, match="another input or other arguments"):
        await run(plan(tmp_path))
    with pytest.raises(SettingsInvalid, match="another input or other arguments"):
        await run(plan(tmp_path, format="openai", errors=str(tmp_path / "err.jsonl")))
    assert (await run(plan(tmp_path, restart=True))).code == 0
    assert [row["custom_id"] for row in rows(tmp_path / "out.jsonl")] == ["other"]


async def test_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"c{i}", echo={"delay_ms": 50}) for i in range(100)])
    stop = asyncio.Event()
    first = asyncio.create_task(run(plan(tmp_path), stop=stop, concurrent=1))
    while not (tmp_path / "out.jsonl.journal").exists():  # noqa: ASYNC110 - another task makes it
        await asyncio.sleep(0.01)
    with pytest.raises(SettingsInvalid, match="in use"):
        await run(plan(tmp_path))
    stop.set()
    await first


async def test_results_that_cannot_be_delivered_are_kept_and_delivered_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in.jsonl", [line("a")])

    async def away(*given: object) -> None:
        raise Unavailable("the target is away")

    with monkeypatch.context() as patch:
        patch.setattr(target.Target, "deliver", away)
        with pytest.raises(Unavailable):
            await run(plan(tmp_path))
    second = await run(plan(tmp_path))
    assert (second.code, second.loads) == (0, 0)
    assert [row["custom_id"] for row in rows(tmp_path / "out.jsonl")] == ["a"]
    assert left_over(tmp_path) == set()


async def test_changed_input_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"c{i}", echo={"delay_ms": 20}) for i in range(200)])
    running = asyncio.create_task(run(plan(tmp_path), concurrent=4))
    while not (tmp_path / "out.jsonl.progress").exists():  # noqa: ASYNC110 - another task makes it
        await asyncio.sleep(0.01)
    with (tmp_path / "in.jsonl").open("ab") as file:
        file.write(b"more\n")
    with pytest.raises(Exception, match="was changed while it was read"):
        await running
    assert not (tmp_path / "out.jsonl").exists()


# --- the engine's troubles ---


async def test_engine_that_dies_is_rebuilt_and_every_line_answered(tmp_path: Path) -> None:
    lines = [line(f"c{i}", f"t{i}", echo={"crash": int(i == 20)}) for i in range(60)]
    write(tmp_path / "in.jsonl", lines)
    result = await run(plan(tmp_path), seen=Counter())
    assert result.code == 0
    assert [text_of(row) for row in rows(tmp_path / "out.jsonl")] == [f"t{i}" for i in range(60)]


async def test_busy_engine_is_asked_again(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"c{i}", f"t{i}", echo={"busy": 1}) for i in range(20)])
    assert (await run(plan(tmp_path))).code == 0
    assert all(row["error"] is None for row in rows(tmp_path / "out.jsonl"))


async def test_line_without_an_answer_in_time_gets_an_error_row(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a", echo={"hang": True}), line("b")])
    engine = QUICK.engine.model_copy(update={"request_timeout_seconds": 0.2})
    result = await run(plan(tmp_path), settings=QUICK.model_copy(update={"engine": engine}))
    slow, good = rows(tmp_path / "out.jsonl")
    assert (result.code, slow["response"]["status_code"], good["error"]) == (0, 504, None)
    assert "did not answer" in slow["error"]


@pytest.mark.parametrize("failure", [EngineDead("no memory"), SettingsInvalid("no such model")], ids=["dead", "flags"])
async def test_model_that_does_not_load_ends_the_run(tmp_path: Path, failure: Exception) -> None:
    class Broken(EchoEngine):
        async def start(self) -> None:
            raise failure

        async def call(self, path: str, body: bytes) -> Reply:
            raise AssertionError(path)

    write(tmp_path / "in.jsonl", [line("a")])
    with pytest.raises(type(failure), match=str(failure)):
        async with asyncio.timeout(10):
            await run_batch(
                plan(tmp_path),
                QUICK,
                engine_of=lambda _: SupervisedEngine(Broken),
                console=Console(file=io.StringIO()),
                stop=asyncio.Event(),
            )
