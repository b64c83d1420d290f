"""Validation against the store: what a batch becomes."""

from __future__ import annotations

import asyncio
import time

from app.domain.batch import Batch
from app.domain.file import Purpose
from app.engine.supervised import SupervisedEngine
from app.settings import LimitSettings
from app.store import files
from tests.unit.worker.yard import QUICK, Yard, jsonl, line, new_engine


def problems(batch: Batch) -> list[tuple[str, str | None, int | None]]:
    assert batch.status.value == "failed"
    assert batch.failed_at is not None
    assert batch.in_progress_at is None
    assert batch.total == 0
    return [(problem.code, problem.param, problem.line) for problem in batch.errors]


async def with_engine(yard: Yard, engine: SupervisedEngine) -> None:
    await yard.engine.stop()
    yard.engine = engine
    await engine.start()


async def test_reject_lists_every_bad_line(yard: Yard) -> None:
    yard.start()
    data = jsonl([b"{", line("a"), line("a"), line("b", model="other"), b'{"custom_id":"c"}', line("d", stream=True)])
    batch = await yard.until(await yard.create(data))
    assert problems(batch) == [
        ("invalid_json_line", None, 1),
        ("duplicate_custom_id", "custom_id", 3),
        ("model_not_found", "body.model", 4),
        ("missing_required_parameter", "method", 5),
        ("missing_required_parameter", "url", 5),
        ("missing_required_parameter", "body", 5),
        ("streaming_unsupported", "body.stream", 6),
    ]
    assert not yard.seen


async def test_reject_unknown_file(yard: Yard) -> None:
    yard.start()
    batch = await yard.until(await yard.create(file_id="file-unknown"))
    assert problems(batch) == [("invalid_request", "file_id", None)]
    assert batch.errors[0].message.startswith("Cannot find file file-unknown, or organization ")


async def test_reject_deleted_file(yard: Yard) -> None:
    file_id = await yard.put_file(jsonl([line("a")]))
    async with yard.database.write() as tx:
        await files.delete(tx, file_id, project_id="proj_default")
    yard.start()
    batch = await yard.until(await yard.create(file_id=file_id))
    assert problems(batch) == [("invalid_request", "file_id", None)]


async def test_reject_file_of_another_purpose(yard: Yard) -> None:
    file_id = await yard.put_file(jsonl([line("a")]), purpose=Purpose.USER_DATA)
    yard.start()
    batch = await yard.until(await yard.create(file_id=file_id))
    assert problems(batch) == [("invalid_request", "file_id", None)]


async def test_reject_file_without_bytes(yard: Yard) -> None:
    file_id = await yard.put_file(jsonl([line("a")]))
    for key in await yard.blob_keys():
        await yard.blobs.delete(key)
    yard.start(settings=QUICK.model_copy(update={"lost_after_seconds": 0.1, "gone_after_seconds": 0.2}))
    batch = await yard.until(await yard.create(file_id=file_id))
    assert problems(batch) == [("invalid_request", "file_id", None)]


async def test_reject_blank_file(yard: Yard) -> None:
    yard.start()
    batch = await yard.until(await yard.create(b"\xef\xbb\xbf\n  \r\n\t\n"))
    assert problems(batch) == [("empty_file", None, None)]


async def test_reject_endpoint_that_is_not_served(yard: Yard) -> None:
    yard.start()
    url = "/v1/moderations"
    data = jsonl([line("a", url=url, input="x")])
    batch = await yard.until(await yard.create(data, endpoint=url))
    assert problems(batch) == [("unsupported_endpoint", "endpoint", None)]
    assert url in batch.errors[0].message
    assert "Supported: /v1/responses, /v1/chat/completions, " in batch.errors[0].message


async def test_bad_file_does_not_wait_for_the_engine(yard: Yard) -> None:
    await with_engine(yard, new_engine(yard.seen, load_seconds=30))
    yard.start()
    good = await yard.create(jsonl([line("a")]))
    bad = await yard.create(b"nonsense\n")
    async with asyncio.timeout(3):
        batch = await yard.until(bad)
    assert problems(batch) == [("invalid_json_line", None, 1)]
    assert (await yard.batch(good)).status.value == "validating"


async def test_good_file_waits_for_the_engine(yard: Yard) -> None:
    await with_engine(yard, new_engine(yard.seen, load_seconds=4))
    yard.start()
    batches = [await yard.create(jsonl([line("a")])) for _ in range(5)]
    await asyncio.sleep(1.2)  # longer than a lease: the heartbeat holds it
    assert {(await yard.batch(batch_id)).status.value for batch_id in batches} == {"validating"}
    for batch_id in batches:
        assert (await yard.until(batch_id)).status.value == "completed"


async def test_cancel_while_waiting_for_the_engine(yard: Yard) -> None:
    await with_engine(yard, new_engine(yard.seen, load_seconds=30))
    running = yard.start()
    batch_id = await yard.create(jsonl([line("a")]))
    await asyncio.sleep(0.3)
    await yard.cancel(batch_id)
    async with asyncio.timeout(3):
        batch = await yard.until(batch_id)
    assert batch.status.value == "cancelled"
    assert batch.total == 0
    async with asyncio.timeout(3):
        while running.worker._validator._active:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def test_stop_gives_validations_back(yard: Yard) -> None:
    await with_engine(yard, new_engine(yard.seen, load_seconds=30))
    settings = QUICK.model_copy(update={"lease_seconds": 30})
    running = yard.start(settings=settings)
    batch_id = await yard.create(jsonl([line("a")]))
    await asyncio.sleep(0.3)
    await running.finish()
    await with_engine(yard, new_engine(yard.seen))
    yard.start(settings=settings)
    async with asyncio.timeout(10):  # shorter than a lease
        assert (await yard.until(batch_id)).status.value == "completed"


async def test_fifty_thousand_bad_lines_are_quick(yard: Yard) -> None:
    yard.start()
    batch_id = await yard.create(jsonl([b'{"custom_id": 1, "body": "no"}'] * 50_000))
    began = time.monotonic()
    batch = await yard.until(batch_id)
    assert time.monotonic() - began < 15
    assert len(problems(batch)) == 100


async def test_fifty_thousand_mismatched_lines_are_quick(yard: Yard) -> None:
    """Good by themselves, so all are looked at."""
    yard.start()
    data = jsonl(line(str(number), model="echo" if number == 0 else "other") for number in range(50_000))
    batch_id = await yard.create(data)
    began = time.monotonic()
    batch = await yard.until(batch_id)
    assert time.monotonic() - began < 20
    assert problems(batch)[0] == ("model_not_found", "body.model", 2)
    assert len(batch.errors) == 100


async def test_limits_of_lines(yard: Yard) -> None:
    yard.start(limits=LimitSettings(batch_max_lines=20))
    good = await yard.until(await yard.create(jsonl(line(str(number)) for number in range(20))))
    assert good.status.value == "completed"
    bad = await yard.until(await yard.create(jsonl(line(str(number)) for number in range(21))))
    assert problems(bad) == [("too_many_tasks", None, None)]


async def test_delete_of_the_input_while_running(yard: Yard) -> None:
    yard.start(window=8)
    file_id = await yard.put_file(jsonl(line(str(number), echo={"delay_ms": 10}) for number in range(300)))
    batch_id = await yard.create(file_id=file_id)
    await yard.until(batch_id, "in_progress")
    async with yard.database.write() as tx:
        await files.delete(tx, file_id, project_id="proj_default")
    batch = await yard.until(batch_id)
    await yard.check_ledger(batch, map(str, range(300)))
