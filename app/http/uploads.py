"""`/v1/uploads` (openai-contract 1.2, 3.4)."""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.errors import InvalidRequest, TooLarge
from app.http.body import arriving, declared_bytes
from app.http.deps import IdempotencyKeyDep, ProjectDep, ServicesDep
from app.http.multipart import OVERHEAD_MAX_BYTES, Event, FileBegin, FileData, FileEnd, FormReader
from app.http.responses import errors
from app.http.upload_schemas import (
    ADD_UPLOAD_PART_BODY,
    CompleteUploadRequest,
    CreateUploadRequest,
    Upload,
    UploadPart,
)
from app.service.purposes import parse_purpose
from app.service.uploads import PartSink

router = APIRouter(prefix="/v1/uploads", tags=["Uploads"])


@router.post(
    "",
    operation_id="createUpload",
    summary="Create an upload",
    response_model=Upload,
    responses=errors(400, 401, 409, 413, 429, 500, 503),
)
async def create_upload(
    body: CreateUploadRequest, services: ServicesDep, project_id: ProjectDep, idempotency_key: IdempotencyKeyDep
) -> Upload:
    """A file that arrives in parts, within an hour."""
    expiry = body.expires_after
    upload = await services.uploads.create(
        project_id,
        filename=body.filename,
        purpose=parse_purpose(body.purpose),
        bytes=body.bytes,
        mime_type=body.mime_type,
        expires_after_seconds=None if expiry is None else expiry.seconds,
        idempotency_key=idempotency_key,
    )
    return Upload.of(upload)


class _PartForm:
    """The form of a part: one file named `data`."""

    def __init__(self, sink: PartSink) -> None:
        self._sink = sink
        self._begun = False

    async def take(self, event: Event) -> None:
        """Raises InvalidRequest, and what the sink raises."""
        if isinstance(event, FileData):
            await self._sink.write(event.data)
        elif not isinstance(event, FileEnd):
            self._begin(event)

    def _begin(self, event: Event) -> None:
        name = "" if isinstance(event, FileData | FileEnd) else event.name
        if name != "data":
            raise InvalidRequest(f"Unknown parameter: '{name[:64]}'.", code="unknown_parameter", param=name[:64])
        if not isinstance(event, FileBegin):
            raise InvalidRequest(
                "Invalid type for 'data': expected a file, but got a string instead.", code="invalid_type", param="data"
            )
        if self._begun:
            raise InvalidRequest("Duplicate parameter: 'data'.", code="invalid_value", param="data")
        self._begun = True

    async def finish(self) -> UploadPart:
        """Raises InvalidRequest when the part is missing, and what the sink raises."""
        if not self._begun:
            raise InvalidRequest("Missing required parameter: 'data'.", code="missing_required_parameter", param="data")
        return UploadPart.of(await self._sink.finish())


@router.post(
    "/{upload_id}/parts",
    operation_id="addUploadPart",
    summary="Add a part",
    response_model=UploadPart,
    responses=errors(400, 401, 404, 413, 500, 503),
    openapi_extra=ADD_UPLOAD_PART_BODY,
)
async def add_upload_part(
    upload_id: str, request: Request, services: ServicesDep, project_id: ProjectDep
) -> UploadPart:
    """In any order, and several at once: the order of the bytes is that of the ids in the completing call."""
    reader = FormReader(request.headers.get("content-type"))
    async with services.uploads.part(project_id, upload_id) as sink:
        declared = declared_bytes(request)
        if declared is not None and declared > services.uploads.part_max_bytes + OVERHEAD_MAX_BYTES:
            raise TooLarge("File is too large.", param="data")
        form = _PartForm(sink)
        async for data in arriving(request):
            for event in reader.feed(data):
                await form.take(event)
        reader.finish()
        return await form.finish()
    raise AssertionError("unreachable: the part's context swallows no exception of ours")


@router.post(
    "/{upload_id}/complete",
    operation_id="completeUpload",
    summary="Complete an upload",
    response_model=Upload,
    responses=errors(400, 401, 404, 409, 413, 500, 503),
)
async def complete_upload(
    upload_id: str,
    body: CompleteUploadRequest,
    services: ServicesDep,
    project_id: ProjectDep,
    idempotency_key: IdempotencyKeyDep,
) -> Upload:
    """The parts become a file. A refused call changes nothing; the same call again gives the same answer."""
    done = await services.uploads.complete(
        project_id, upload_id, part_ids=body.part_ids, md5=body.md5, idempotency_key=idempotency_key
    )
    return Upload.of(done.upload, file=done.file)


@router.post(
    "/{upload_id}/cancel",
    operation_id="cancelUpload",
    summary="Cancel an upload",
    response_model=Upload,
    responses=errors(400, 401, 404, 500, 503),
)
async def cancel_upload(upload_id: str, services: ServicesDep, project_id: ProjectDep) -> Upload:
    """No more parts are taken, and those that came are dropped. Asking again changes nothing."""
    return Upload.of(await services.uploads.cancel(project_id, upload_id))
