"""Calls under `/v1/batches` that OpenAI's API does not have (docs/extensions.md)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from starlette.responses import Response

from app.http.deps import IdempotencyKeyDep, ProjectDep, ServicesDep, StrictInteger, single_valued
from app.http.download import Download
from app.http.responses import errors
from app.http.schemas import Batch, BatchFileExpirationAfter, Input, Metadata
from app.service.retries import Changes

router = APIRouter(prefix="/v1/batches", tags=["Extensions"])

_OFFSET_MAX = (1 << 63) - 1
_HEADERS = {
    "batchyard-next-offset": ("integer", "Where the next call goes on."),
    "batchyard-complete": ("boolean", "`true`: the batch has ended, and nothing follows these rows."),
    "batchyard-status": ("string", "The batch's status."),
}
_ROWS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Whole rows, from `offset` on; empty when there are no further ones yet.",
        "content": {"application/jsonl": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {name: {"description": text, "schema": {"type": kind}} for name, (kind, text) in _HEADERS.items()},
    }
}


class RetryBatchRequest(Input):
    """What the new batch has otherwise than the old one."""

    completion_window: str | None = Field(None, description="As for a new batch; null: that of the old one.")
    metadata: Metadata | None = Field(None, description="Null: those of the old one. `retry_of` is added.")
    output_expires_after: BatchFileExpirationAfter | None = Field(None, description="Null: that of the old one.")


@router.head("/{batch_id}/results", include_in_schema=False)
@router.get(
    "/{batch_id}/results",
    operation_id="readBatchResults",
    summary="Read the results so far",
    response_class=Response,
    responses=errors(400, 401, 404, 500, 503) | _ROWS,
    dependencies=[Depends(single_valued)],
    openapi_extra={"x-extension": True},
)
async def read_results(
    batch_id: str,
    request: Request,
    services: ServicesDep,
    project_id: ProjectDep,
    offset: Annotated[
        int, StrictInteger, Query(ge=0, le=_OFFSET_MAX, description="Bytes that the client has; 0, or a next offset.")
    ] = 0,
    kind: Annotated[
        Literal["output", "error"], Query(description="Rows of the output file to be, or of the error file.")
    ] = "output",
) -> Response:
    """Rows in input order, up to the first line that has not ended: the beginning of the batch's file to be."""
    found = await services.results.so_far(project_id, batch_id, kind=kind, offset=offset)
    headers = {
        "content-type": "application/jsonl",
        "content-length": str(found.end - found.offset),
        "batchyard-next-offset": str(found.end),
        "batchyard-complete": "true" if found.complete else "false",
        "batchyard-status": found.batch.status.value,
    }
    if request.method == "HEAD":
        return Response(headers=headers)
    return await Download.begin(found.stream(), status=200, headers=headers)


@router.post(
    "/{batch_id}/retry",
    operation_id="retryBatch",
    summary="Run the failed lines again",
    response_model=Batch,
    responses=errors(400, 401, 404, 409, 413, 429, 500, 503),
    openapi_extra={"x-extension": True},
)
async def retry_batch(
    batch_id: str,
    services: ServicesDep,
    project_id: ProjectDep,
    idempotency_key: IdempotencyKeyDep,
    body: RetryBatchRequest | None = None,
) -> Batch:
    """A new batch of the lines in the old one's error file: those that failed, and those that never ran."""
    body = body or RetryBatchRequest()
    expiry = body.output_expires_after
    changes = Changes(
        completion_window=body.completion_window,
        metadata=body.metadata,
        output_expires_after_seconds=None if expiry is None else expiry.seconds,
    )
    batch = await services.retries.create(project_id, batch_id, changes=changes, idempotency_key=idempotency_key)
    return Batch.of(batch)
