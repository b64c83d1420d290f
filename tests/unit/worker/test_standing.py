"""What a batch is about to be published with is looked at first."""

from __future__ import annotations

import asyncio

import pytest

from app.worker import finalize
from tests.unit.worker.test_absence import HASTY, drop, ids, paced
from tests.unit.worker.yard import Yard


async def test_lost_segment_opens_its_chunk_again(shared_yard: Yard) -> None:
    """The first chunk is sealed, the second still runs when the segment goes."""
    yard = shared_yard
    batch_id = await yard.create(paced(40, hang_from=39))
    first = yard.start(settings=HASTY)
    await yard.until_ended(batch_id, 39)
    while not await yard.blob_keys("segments/"):  # noqa: ASYNC110 - asks what has no event
        await asyncio.sleep(0.02)
    await first.kill()
    await drop(yard, "segments/")
    yard.start(settings=HASTY, request_timeout_seconds=0.5)
    batch = await yard.until(batch_id)
    assert batch.status.value == "completed"
    output, error = await yard.check_ledger(batch, ids(40))
    assert len(output) == 39
    assert error[0]["error"]["code"] == "request_timeout"
    assert batch.tally.usage.output_tokens == 39


async def test_segment_that_comes_back_is_published(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalize, "SET_ASIDE_SECONDS", 0.1)
    settings = HASTY.model_copy(update={"lost_after_seconds": 60.0})
    batch_id = await yard.create(paced(40, hang_from=39))
    first = yard.start(settings=settings)
    await yard.until_ended(batch_id, 39)
    while not await yard.blob_keys("segments/"):  # noqa: ASYNC110 - asks what has no event
        await asyncio.sleep(0.02)
    await first.kill()
    [key] = await yard.blob_keys("segments/")
    data = await yard.blobs.get(key)
    await yard.blobs.delete(key)
    running = yard.start(settings=settings, request_timeout_seconds=0.3)
    while not running.worker._finalizer._set_aside:  # noqa: ASYNC110 - asks what has no event
        await asyncio.sleep(0.02)
    assert (await yard.batch(batch_id)).status.value == "in_progress"
    await yard.blobs.put(key, data)
    batch = await yard.until(batch_id)
    await yard.check_ledger(batch, ids(40))
    assert key in await yard.blob_keys("segments/"), "its chunk was not run again"
