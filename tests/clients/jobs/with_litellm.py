"""litellm's file and batch calls, synchronous and asynchronous. Prints what came of it as JSON."""

import asyncio
import json
import time
from pathlib import Path

import litellm

ENDED = {"completed", "failed", "expired", "cancelled"}


def run() -> tuple[str, dict[str, str]]:
    with Path("input.jsonl").open("rb") as stream:
        file = litellm.create_file(file=stream, purpose="batch", custom_llm_provider="openai")
    batch = litellm.create_batch(
        completion_window="24h",
        endpoint="/v1/chat/completions",
        input_file_id=file.id,
        custom_llm_provider="openai",
        metadata={"job": "litellm"},
    )
    while batch.status not in ENDED:
        time.sleep(0.1)
        batch = litellm.retrieve_batch(batch_id=batch.id, custom_llm_provider="openai")
    assert batch.status == "completed", batch
    content = litellm.file_content(file_id=batch.output_file_id, custom_llm_provider="openai")
    rows = [json.loads(line) for line in content.content.decode().splitlines()]
    return batch.id, {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}


async def run_and_cancel() -> str:
    data = ("endless.jsonl", Path("endless.jsonl").read_bytes())
    file = await litellm.acreate_file(file=data, purpose="batch", custom_llm_provider="openai")
    batch = await litellm.acreate_batch(
        completion_window="24h",
        endpoint="/v1/chat/completions",
        input_file_id=file.id,
        custom_llm_provider="openai",
    )
    await litellm.acancel_batch(batch_id=batch.id, custom_llm_provider="openai")
    while batch.status not in ENDED:
        await asyncio.sleep(0.1)
        batch = await litellm.aretrieve_batch(batch_id=batch.id, custom_llm_provider="openai")
    gone = await litellm.afile_delete(file_id=file.id, custom_llm_provider="openai")
    assert gone.deleted, gone
    return str(batch.status)


batch_id, answers = run()
listed = litellm.list_batches(custom_llm_provider="openai", limit=100)
print(
    json.dumps(
        {
            "answers": answers,
            "listed": batch_id in [one.id for one in listed.data],
            "cancelled": asyncio.run(run_and_cancel()),
        }
    )
)
