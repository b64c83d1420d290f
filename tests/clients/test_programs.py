"""Programs from PyPI that run batches: each does its natural job, from its own command line or as its users call it."""

from __future__ import annotations

import json
import re

import pytest

from tests.acceptance.batch import by_id, counts, hanging, jsonl, wait
from tests.clients.conftest import Job, Tell

# The first run installs.
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


@pytest.mark.client("litellm")
def test_litellm_runs_a_batch_through_its_file_and_batch_calls(job: Job, tell: Tell) -> None:
    job.write("input.jsonl", "one", "two", "three")
    (job.folder / "endless.jsonl").write_bytes(jsonl([hanging("never")]))
    # Its price list would be fetched from the network.
    job.environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    found = job.script("with_litellm.py")
    assert found["answers"] == {f"line-{number}": text for number, text in enumerate(["one", "two", "three"])}
    assert found["listed"] is True
    assert found["cancelled"] == "cancelled"
    tell(
        f"litellm {job.program.version}",
        "create_file, create_batch, retrieve_batch, file_content, list_batches; acreate_file, acreate_batch, "
        "acancel_batch, aretrieve_batch, afile_delete",
        job.calls,
    )


@pytest.mark.client("openai-batch")
def test_openai_batch_turns_prompts_into_a_batch_and_resumes_it(job: Job, tell: Tell) -> None:
    (job.folder / "prompts.txt").write_text("first prompt\nsecond prompt\n")
    job.run("python", "-m", "openai_batch.create_batch_input", "--model", "echo", "prompts.txt", "input.jsonl")
    created = job.run("python", "-m", "openai_batch.run", "--create", "input.jsonl")
    (batch_id,) = re.findall(r"Created (batch_\w+)\.", created)
    wait(job.sdk, batch_id, until={"completed"})
    job.run("python", "-m", "openai_batch.run", "--resume", batch_id, "-o", "output.jsonl", "-e", "errors.jsonl")
    rows = by_id(json.loads(line) for line in (job.folder / "output.jsonl").read_text().splitlines())
    said = [row["response"]["body"]["choices"][0]["message"]["content"] for row in rows.values()]
    assert said == ["first prompt", "second prompt"]
    tell(
        f"openai-batch {job.program.version}",
        "python -m openai_batch.create_batch_input; python -m openai_batch.run --create, then --resume with downloads",
        job.calls,
    )


@pytest.mark.client("bespokelabs-curator")
def test_curator_answers_a_list_of_prompts_in_batch_mode(job: Job, tell: Tell) -> None:
    # Nothing of its own goes out, and no price list is fetched.
    job.environment |= {"TELEMETRY_ENABLED": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    assert job.script("with_curator.py")["answers"] == ["one", "two", "three"]
    tell(f"bespokelabs-curator {job.program.version}", "curator.LLM(…, batch=True) on a list of prompts", job.calls)


@pytest.mark.client("autobatcher")
def test_autobatcher_gathers_calls_into_batches(job: Job, tell: Tell) -> None:
    found = job.script("with_autobatcher.py")
    assert found["answers"] == [f"question {number}" for number in range(12)]
    assert found["dimensions"] == [2, 3]
    [chats] = [one for one in job.sdk.batches.list() if one.metadata == {"job": "autobatcher-chat"}]
    assert (chats.status, counts(chats)) == ("completed", (12, 12, 0))
    tell(
        f"autobatcher {job.program.version}",
        "BatchOpenAI in place of AsyncOpenAI: twelve chat.completions.create at once as one batch; embeddings.create",
        job.calls,
    )


@pytest.mark.client("batchwizard")
def test_batchwizard_processes_a_folder_of_files(job: Job, tell: Tell) -> None:
    (job.folder / "inbox").mkdir()
    for name in ("a", "b"):
        job.write(f"inbox/{name}.jsonl", f"{name} one", f"{name} two")
    job.run("batchwizard", "process", "inbox", "--output-directory", "results", "--check-interval", "0")
    rows = [
        json.loads(line)
        for path in sorted((job.folder / "results").glob("batch_*_results.jsonl"))
        for line in path.read_text().splitlines()
    ]
    said = sorted(row["response"]["body"]["choices"][0]["message"]["content"] for row in rows)
    assert said == ["a one", "a two", "b one", "b two"]
    assert "batch_" in job.run("batchwizard", "list-jobs")
    assert "completed" in job.run("batchwizard", "status", "--all")
    tell(f"batchwizard {job.program.version}", "batchwizard process FOLDER, list-jobs, status --all", job.calls)


@pytest.mark.client("instructor")
def test_instructor_extracts_by_batch(job: Job, tell: Tell) -> None:
    found = job.script("with_instructor.py")
    assert found["people"] == [{"name": "Ada", "age": 36}, {"name": "Grace", "age": 85}]
    # One only: it takes no batch without metadata, for which the API says null.
    listed = job.run("instructor", "batch", "list", "--limit", "1", "--full-id")
    assert str(found["batch"]) in listed
    tell(
        f"instructor {job.program.version}",
        "BatchProcessor: create_batch_from_messages, submit_batch, get_batch_status, retrieve_results; "
        "instructor batch list",
        job.calls,
    )
