"""`/v1/files` (openai-contract 1.1, 2, 3.3)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from app.domain.file import Purpose
from app.errors import BodyTooLarge, InvalidRequest
from app.http.body import arriving, declared_bytes
from app.http.conditional import NOT_MODIFIED, is_known, unless_known
from app.http.deps import After, IdempotencyKeyDep, ProjectDep, ServicesDep, StrictInteger, single_valued
from app.http.download import Download
from app.http.multipart import OVERHEAD_MAX_BYTES, Event, Field, FileBegin, FileData, FormReader
from app.http.ranges import requested_range
from app.http.responses import CREATE_FILE_BODY, FILE_CONTENT, errors
from app.http.schemas import (
    EXPIRY_MAX_SECONDS,
    EXPIRY_MIN_SECONDS,
    DeleteFileResponse,
    ListFilesResponse,
    OpenAIFile,
)
from app.http.validation import above_maximum, below_minimum, wrong_type, wrong_value
from app.service.file_sink import FileSink
from app.service.purposes import check_filename, parse_purpose

router = APIRouter(prefix="/v1/files", tags=["Files"])

_ANCHOR = "expires_after[anchor]"
_SECONDS = "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)
_DIGITS = re.compile(r"-?[0-9]{1,1000}")


class _UploadForm:
    """The form of POST /v1/files, checked as it arrives: what is wrong is refused before the rest is read."""

    def __init__(self, sink: FileSink) -> None:
        self._sink = sink
        self._seen: set[str] = set()
        self._purpose: Purpose | None = None
        self._filename: str | None = None
        self._anchor: str | None = None
        self._seconds: int | None = None

    async def take(self, event: Event) -> None:
        """Raises InvalidRequest, and what the sink raises."""
        if isinstance(event, FileData):
            await self._sink.write(event.data)
        elif isinstance(event, FileBegin):
            self._once(event.name)
            if event.name != "file":
                raise wrong_type(event.name, expected="a string", given={})
            self._filename = event.filename
            self._check_name()
        elif isinstance(event, Field):
            self._once(event.name)
            self._take_field(event)

    def _once(self, name: str) -> None:
        if name != "file" and name not in _FIELDS:
            shown = name[:64]
            raise InvalidRequest(f"Unknown parameter: '{shown}'.", code="unknown_parameter", param=shown)
        if name in self._seen:
            raise InvalidRequest(f"Duplicate parameter: '{name}'.", code="invalid_value", param=name)
        self._seen.add(name)

    def _take_field(self, field: Field) -> None:
        if field.name == "file":
            raise InvalidRequest(
                "Invalid type for 'file': expected a file, but got a string instead.", code="invalid_type", param="file"
            )
        if field.name == "purpose":
            self._purpose = parse_purpose(field.value)
            self._sink.declare(self._purpose)
            self._check_name()
        elif field.name == _ANCHOR:
            if field.value != "created_at":
                raise wrong_value(_ANCHOR, given=field.value, supported="'created_at'")
            self._anchor = field.value
        else:
            self._seconds = _expiry(field.value)

    def _check_name(self) -> None:
        if self._purpose is not None and self._filename is not None:
            check_filename(self._filename, purpose=self._purpose)

    async def finish(self, idempotency_key: str | None) -> OpenAIFile:
        """Raises InvalidRequest when a part is missing, and what the sink raises."""
        if self._filename is None:
            raise _missing("file")
        if self._purpose is None:
            raise _missing("purpose")
        if (self._anchor is None) != (self._seconds is None):
            raise _missing(_ANCHOR if self._anchor is None else _SECONDS)
        file = await self._sink.finish(
            purpose=self._purpose,
            filename=self._filename,
            expires_after_seconds=self._seconds,
            idempotency_key=idempotency_key,
        )
        return OpenAIFile.of(file)


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name)


def _expiry(text: str) -> int:
    if not _DIGITS.fullmatch(text):
        raise wrong_type(_SECONDS, expected="an integer", given=text)
    seconds = int(text)
    if seconds < EXPIRY_MIN_SECONDS:
        raise below_minimum(_SECONDS, minimum=EXPIRY_MIN_SECONDS, given=seconds)
    if seconds > EXPIRY_MAX_SECONDS:
        raise above_maximum(_SECONDS, maximum=EXPIRY_MAX_SECONDS, given=seconds)
    return seconds


@router.post(
    "",
    operation_id="createFile",
    summary="Upload a file",
    response_model=OpenAIFile,
    responses=errors(400, 401, 409, 413, 429, 500, 503),
    openapi_extra=CREATE_FILE_BODY,
)
async def create_file(
    request: Request, services: ServicesDep, project_id: ProjectDep, idempotency_key: IdempotencyKeyDep
) -> OpenAIFile:
    """The body is stored, hashed and checked while it arrives; a refused or broken upload leaves nothing."""
    reader = FormReader(request.headers.get("content-type"))
    file_max_bytes = services.files.file_max_bytes
    declared = declared_bytes(request)
    if declared is not None and declared > file_max_bytes + OVERHEAD_MAX_BYTES:
        raise BodyTooLarge(f"Request Entity Too Large: a file has at most {file_max_bytes} bytes.")
    async with services.files.upload(project_id) as sink:
        form = _UploadForm(sink)
        async for data in arriving(request):
            for event in reader.feed(data):
                await form.take(event)
        reader.finish()
        return await form.finish(idempotency_key)
    raise AssertionError("unreachable: the upload's context swallows no exception of ours")


@router.head("", include_in_schema=False)
@router.get(
    "",
    operation_id="listFiles",
    summary="List files",
    response_model=ListFilesResponse,
    responses=errors(400, 401, 500, 503) | NOT_MODIFIED,
    dependencies=[Depends(single_valued)],
)
async def list_files(
    request: Request,
    services: ServicesDep,
    project_id: ProjectDep,
    purpose: Annotated[str | None, Query(description="Only files with this purpose.")] = None,
    limit: Annotated[int, StrictInteger, Query(ge=1, le=10_000, description="Size of the page.")] = 10_000,
    order: Annotated[Literal["asc", "desc"], Query(description="By `created_at`.")] = "desc",
    after: After = None,
) -> Response:
    """Files of the project by creation."""
    page = await services.files.page(project_id, purpose=purpose, after=after, limit=limit, descending=order == "desc")
    data = [OpenAIFile.of(file) for file in page.items]
    return unless_known(request, ListFilesResponse.of(data, has_more=page.has_more))


@router.head("/{file_id}", include_in_schema=False)
@router.get(
    "/{file_id}",
    operation_id="retrieveFile",
    summary="Retrieve a file",
    response_model=OpenAIFile,
    responses=errors(401, 404, 500, 503) | NOT_MODIFIED,
)
async def retrieve_file(file_id: str, request: Request, services: ServicesDep, project_id: ProjectDep) -> Response:
    """What is known about a file."""
    return unless_known(request, OpenAIFile.of(await services.files.get(project_id, file_id)))


@router.delete(
    "/{file_id}",
    operation_id="deleteFile",
    summary="Delete a file",
    response_model=DeleteFileResponse,
    responses=errors(401, 404, 500, 503),
)
async def delete_file(file_id: str, services: ServicesDep, project_id: ProjectDep) -> DeleteFileResponse:
    """Gone at once for everybody; a running batch still reads its input to the end."""
    await services.files.delete(project_id, file_id)
    return DeleteFileResponse(id=file_id)


@router.head("/{file_id}/content", include_in_schema=False)
@router.get(
    "/{file_id}/content",
    operation_id="downloadFile",
    summary="Download a file",
    response_class=Response,
    responses=errors(400, 401, 404, 500, 503) | FILE_CONTENT | NOT_MODIFIED,
)
async def download_file(file_id: str, request: Request, services: ServicesDep, project_id: ProjectDep) -> Response:
    """The stored bytes. `Range` with one range is honoured."""
    content = await services.files.content(project_id, file_id)
    etag = f'"{content.file.id}"'
    if is_known(request, etag):
        return Response(status_code=304, headers={"etag": etag})
    part = requested_range(
        request.headers.get("range"),
        if_range=request.headers.get("if-range"),
        etag=etag,
        size_bytes=content.file.bytes,
    )
    headers = {
        "etag": etag,
        "accept-ranges": "bytes",
        "content-length": str(part.end - part.start),
        "content-type": "application/octet-stream",
    }
    if part.partial:
        headers["content-range"] = f"bytes {part.start}-{part.end - 1}/{content.file.bytes}"
    status = 206 if part.partial else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    blocks = content.stream(start=part.start, end=part.end)
    return await Download.begin(blocks, status=status, headers=headers)
