"""The quotas of a batch, asked once its requests are counted and before any of them runs (openai-contract 4.2).

The limits are those in force when the batch was made, so a worker needs to know neither keys nor their quotas.
"""

from __future__ import annotations

from app.domain.batch import Batch, BatchProblem
from app.store import quotas
from app.store.db import Write
from app.worker.inspection import Inspection


async def problem(tx: Write, batch: Batch, inspection: Inspection) -> BatchProblem | None:
    """Why the batch may not be queued; None when it may, as long as it is in this transaction."""
    tokens_max, requests_max = batch.enqueued_tokens_max, batch.queued_requests_max
    if tokens_max is None and requests_max is None:
        return None
    await quotas.lock(tx, batch.project_id)
    used = await quotas.use(tx, batch.project_id, stored=False)
    if tokens_max is not None and used.enqueued_tokens + inspection.tokens > tokens_max:
        message = (
            f"Enqueued token limit reached for {inspection.model} in organization {batch.project_id}. "
            f"Limit: {tokens_max:,} enqueued tokens. "
            "Please try again once some in_progress batches have been completed."
        )
        return BatchProblem("token_limit_exceeded", message)
    if requests_max is not None and used.queued_requests + inspection.lines > requests_max:
        message = (
            f"Queued request limit reached in organization {batch.project_id}. Limit: {requests_max:,} queued "
            f"requests, used {used.queued_requests:,}, in this batch {inspection.lines:,}. "
            "Please try again once some in_progress batches have been completed."
        )
        return BatchProblem("request_limit_exceeded", message)
    return None
