from __future__ import annotations

import asyncio

import pytest

from app.domain.batch import Batch, BatchStatus
from app.domain.tokens import estimate
from app.settings import LimitSettings, WorkerSettings
from app.store import batches, validations
from app.store.db import Database
from app.worker import admission
from app.worker.inspection import Inspection
from tests.unit.store.scenes import DAY, LONG

LINE = b'{"custom_id":"%d","method":"POST","url":"/v1/embeddings","body":{"model":"m","input":"x"}}\n'
LINE_TOKENS = estimate(b'{"model":"m","input":"x"}')


def inspected(lines: int) -> Inspection:
    inspection = Inspection(endpoint="/v1/embeddings", limits=LimitSettings(), worker=WorkerSettings())
    inspection.feed(b"".join(LINE % number for number in range(lines)))
    inspection.finish()
    return inspection


async def validated(
    database: Database, number: int, *, lines: int, tokens: int | None = None, requests: int | None = None
) -> Batch:
    """A batch made under these limits, as its validation leaves it."""
    async with database.write() as tx:
        await batches.create(
            tx,
            id=f"batch_{number}",
            project_id="team",
            endpoint="/v1/embeddings",
            input_file_id="file-1",
            completion_window="24h",
            window_seconds=DAY,
            metadata=None,
            output_expires_after_seconds=None,
            enqueued_tokens_max=tokens,
            queued_requests_max=requests,
        )
        claim = await validations.claim(tx, lease_seconds=LONG)
    assert claim is not None
    inspection = inspected(lines)
    async with database.write() as tx:
        problem = await admission.problem(tx, claim.batch, inspection)
        await asyncio.sleep(0.01)  # between the count and the change
        if problem is not None:
            return await validations.reject(tx, claim, problems=(problem,))
        return await validations.accept(tx, claim, model=None, chunks=inspection.chunks, tokens=inspection.tokens)


async def test_problem_of_tokens_above_the_limit(database: Database) -> None:
    limit = 5 * LINE_TOKENS
    first = await validated(database, 1, lines=5, tokens=limit)
    assert (first.status, first.enqueued_tokens) == (BatchStatus.IN_PROGRESS, limit)
    second = await validated(database, 2, lines=1, tokens=limit)
    assert [problem.code for problem in second.errors] == ["token_limit_exceeded"]
    assert second.errors[0].message.startswith(
        f"Enqueued token limit reached for m in organization team. Limit: {limit:,} "
    )
    third = await validated(database, 3, lines=1, tokens=limit + LINE_TOKENS)
    assert third.status is BatchStatus.IN_PROGRESS, "each batch is held to the limit it was made under"


async def test_problem_of_requests_above_the_limit(database: Database) -> None:
    assert (await validated(database, 1, lines=4, requests=4)).status is BatchStatus.IN_PROGRESS
    refused = await validated(database, 2, lines=1, requests=4)
    assert [problem.code for problem in refused.errors] == ["request_limit_exceeded"]
    assert "Limit: 4 queued requests, used 4, in this batch 1." in refused.errors[0].message


async def test_problem_of_nothing_without_limits(database: Database) -> None:
    for number in range(3):
        assert (await validated(database, number, lines=100)).status is BatchStatus.IN_PROGRESS


@pytest.mark.timeout(60)
async def test_validations_at_once_do_not_pass_the_limit_together(database: Database) -> None:
    outcomes = await asyncio.gather(*(validated(database, number, lines=2, requests=5) for number in range(6)))
    accepted = [batch for batch in outcomes if batch.status is BatchStatus.IN_PROGRESS]
    assert len(accepted) == 2
