"""`/v1/batches` (openai-contract 1.3, 2, 3.3)."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.http.conditional import NOT_MODIFIED, unless_known
from app.http.deps import After, IdempotencyKeyDep, PageSize, ProjectDep, ServicesDep, single_valued
from app.http.responses import errors
from app.http.schemas import Batch, CreateBatchRequest, ListBatchesResponse

router = APIRouter(prefix="/v1/batches", tags=["Batches"])


@router.post(
    "",
    operation_id="createBatch",
    summary="Create a batch",
    response_model=Batch,
    responses=errors(400, 401, 409, 413, 429, 500, 503),
)
async def create_batch(
    body: CreateBatchRequest, services: ServicesDep, project_id: ProjectDep, idempotency_key: IdempotencyKeyDep
) -> Batch:
    """The input file is checked after this answer: a batch with a bad one becomes `failed`."""
    expiry = body.output_expires_after
    batch = await services.batches.create(
        project_id,
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        metadata=body.metadata,
        output_expires_after_seconds=None if expiry is None else expiry.seconds,
        idempotency_key=idempotency_key,
    )
    return Batch.of(batch)


@router.head("", include_in_schema=False)
@router.get(
    "",
    operation_id="listBatches",
    summary="List batches",
    response_model=ListBatchesResponse,
    responses=errors(400, 401, 500, 503) | NOT_MODIFIED,
    dependencies=[Depends(single_valued)],
)
async def list_batches(
    request: Request,
    services: ServicesDep,
    project_id: ProjectDep,
    after: After = None,
    limit: PageSize = 20,
) -> Response:
    """Batches of the project, newest first."""
    page = await services.batches.page(project_id, after=after, limit=limit)
    data = [Batch.of(batch) for batch in page.items]
    return unless_known(request, ListBatchesResponse.of(data, has_more=page.has_more))


@router.head("/{batch_id}", include_in_schema=False)
@router.get(
    "/{batch_id}",
    operation_id="retrieveBatch",
    summary="Retrieve a batch",
    response_model=Batch,
    responses=errors(401, 404, 500, 503) | NOT_MODIFIED,
)
async def retrieve_batch(batch_id: str, request: Request, services: ServicesDep, project_id: ProjectDep) -> Response:
    """How the batch stands."""
    return unless_known(request, Batch.of(await services.batches.get(project_id, batch_id)))


@router.post(
    "/{batch_id}/cancel",
    operation_id="cancelBatch",
    summary="Cancel a batch",
    response_model=Batch,
    responses=errors(401, 404, 409, 500, 503),
)
async def cancel_batch(batch_id: str, services: ServicesDep, project_id: ProjectDep) -> Batch:
    """Ends early: what has finished is kept, the rest is written off. Asking again changes nothing."""
    return Batch.of(await services.batches.cancel(project_id, batch_id))
