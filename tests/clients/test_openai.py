"""The official SDK, set up by environment alone: what its users do with files, uploads, batches and webhooks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path

import openai
import pytest
from openai.types.webhooks import BatchCompletedWebhookEvent

from tests.acceptance.batch import CHAT, TERMINAL, by_id, chat, counts, hanging, jsonl
from tests.acceptance.server import Server
from tests.clients.conftest import Tell, calls, pointed_at
from tests.receiver import Receiver, receiving


@pytest.fixture
def sdk(server: Server, monkeypatch: pytest.MonkeyPatch) -> Generator[openai.OpenAI]:
    for name, value in pointed_at(server).items():
        monkeypatch.setenv(name, value)
    with openai.OpenAI() as sdk:
        yield sdk


@pytest.fixture
def receiver() -> Generator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_openai_sdk_runs_a_chunked_upload_as_a_batch_and_hears_of_its_end(
    sdk: openai.OpenAI,
    server: Server,
    receiver: Receiver,
    tmp_path: Path,
    tell: Tell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = server.log_path.stat().st_size
    hook = sdk.webhooks.create(name="ours", url=receiver.url(), event_types=["batch.completed"])
    monkeypatch.setenv("OPENAI_WEBHOOK_SECRET", hook.signing_secret)
    path = tmp_path / "nächtlich.jsonl"
    path.write_bytes(jsonl([*(chat(str(number), f"question {number}") for number in range(40)), chat("bad", n=0)]))
    upload = sdk.uploads.upload_file_chunked(file=path, mime_type="application/jsonl", purpose="batch", part_size=2000)
    assert upload.file is not None
    assert sdk.files.wait_for_processing(upload.file.id).filename == path.name
    batch = sdk.batches.create(
        input_file_id=upload.file.id, endpoint=CHAT, completion_window="24h", metadata={"job": "nightly"}
    )
    [told] = receiver.wait(1)
    with openai.OpenAI() as listener:  # its secret comes from the environment too
        event = listener.webhooks.unwrap(told.body, told.headers)
    assert isinstance(event, BatchCompletedWebhookEvent)
    assert event.data.id == batch.id
    batch = sdk.batches.retrieve(batch.id)
    assert (batch.status, counts(batch), batch.metadata) == ("completed", (41, 40, 1), {"job": "nightly"})
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    answers = by_id(json.loads(line) for line in sdk.files.content(batch.output_file_id).iter_lines())
    assert answers["7"]["response"]["body"]["choices"][0]["message"]["content"] == "question 7"
    with sdk.files.with_streaming_response.content(batch.error_file_id) as streamed:
        streamed.stream_to_file(tmp_path / "errors.jsonl")
    assert json.loads((tmp_path / "errors.jsonl").read_text())["custom_id"] == "bad"
    assert batch.id in [one.id for one in sdk.batches.list(limit=1)]
    sdk.webhooks.delete(hook.id)
    tell(
        f"openai {openai.__version__}",
        "webhooks.create, uploads.upload_file_chunked, files.wait_for_processing, batches.create, webhooks.unwrap, "
        "batches.retrieve, files.content, streamed content, batches.list",
        calls(server, since=start),
    )


async def test_async_openai_sdk_runs_and_cancels_batches(
    server: Server, monkeypatch: pytest.MonkeyPatch, tell: Tell
) -> None:
    start = server.log_path.stat().st_size
    for name, value in pointed_at(server).items():
        monkeypatch.setenv(name, value)
    async with openai.AsyncOpenAI() as sdk:
        files = await asyncio.gather(
            sdk.files.create(file=jsonl([chat("a", "one")]), purpose="batch"),
            sdk.files.create(file=("hang.jsonl", jsonl([chat("a"), hanging("b")])), purpose="batch"),
        )
        short, long = await asyncio.gather(
            *(sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h") for file in files)
        )
        await sdk.batches.cancel(long.id)
        while {short.status, long.status} - TERMINAL:
            await asyncio.sleep(0.05)
            short, long = await asyncio.gather(sdk.batches.retrieve(short.id), sdk.batches.retrieve(long.id))
        assert (short.status, long.status) == ("completed", "cancelled")
        content = await sdk.files.content(short.output_file_id or "")
        assert json.loads(content.text)["response"]["body"]["choices"][0]["message"]["content"] == "one"
        assert (await sdk.files.delete(files[0].id)).deleted
        said = await sdk.chat.completions.create(model="echo", messages=[{"role": "user", "content": "and now?"}])
        assert said.choices[0].message.content == "and now?"
    tell(
        f"openai {openai.__version__}, AsyncOpenAI",
        "files.create, batches.create, batches.cancel, batches.retrieve, files.content, files.delete, "
        "chat.completions.create",
        calls(server, since=start),
    )
