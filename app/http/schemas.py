"""Bodies on the wire (openai-contract 1). Named as in OpenAI's published document, so that generated clients agree.

Inputs are strict and know every field they may have. Outputs always carry every key; what is not set is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.domain import batch as domain_batch
from app.domain import file as domain_file
from app.domain.batch import BatchStatus
from app.domain.file import Purpose


def _storable(text: str) -> str:
    """Neither database keeps NUL. Pydantic itself refuses lone surrogates."""
    if "\0" in text:
        raise PydanticCustomError("unstorable", "holds a NUL character")
    return text


Storable = AfterValidator(_storable)
EXPIRY_MIN_SECONDS = 3600
EXPIRY_MAX_SECONDS = 2_592_000


class Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Output(BaseModel):
    model_config = ConfigDict(
        # Every key is on the wire always, also those with a default.
        json_schema_serialization_defaults_required=True
    )


class Identified(Output):
    """What a list may hold."""

    id: str


Item = TypeVar("Item", bound=Identified)


class ListPage(Output, Generic[Item]):
    """A page of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None = Field(description="Null on an empty page.")
    last_id: str | None = Field(description="Null on an empty page.")
    has_more: bool

    @classmethod
    def of(cls, data: Sequence[Item], *, has_more: bool) -> Self:
        first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=list(data), first_id=first_id, last_id=last_id, has_more=has_more)


class BatchFileExpirationAfter(Input):
    """When the output and error files of a batch end; counted from the creation of each file."""

    anchor: Literal["created_at"] = Field(description="What `seconds` counts from.")
    seconds: int = Field(ge=EXPIRY_MIN_SECONDS, le=EXPIRY_MAX_SECONDS, description="One hour to thirty days.")


Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64), Storable],
        Annotated[str, StringConstraints(max_length=512), Storable],
    ],
    Field(max_length=16),
]


class CreateBatchRequest(Input):
    """A new batch."""

    input_file_id: Annotated[str, StringConstraints(min_length=1, max_length=512), Storable] = Field(
        description="A file with purpose `batch`: one JSON request a line."
    )
    endpoint: Literal[
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/v1/completions",
        "/v1/moderations",
        "/v1/chat/completions/batch",
        "/v1/messages",
        "/v1/score",
        "/score",
        "/v1/rerank",
        "/rerank",
        "/v2/rerank",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ] = Field(description="The endpoint of every request in the file. Which of them work is up to the model.")
    # Which windows there are is a setting, so the service looks at the value.
    completion_window: str = Field(
        description="Requests that did not run by then are written off. Extension: other windows than `24h` (`90m`, "
        "`1h`, `7d`), where the setting limits.completion_windows allows them.",
        json_schema_extra={"pattern": "^[1-9][0-9]{0,5}[mhd]$", "examples": ["24h"]},
    )
    metadata: Metadata | None = Field(None, description="Up to 16 strings of your own, echoed.")
    output_expires_after: BatchFileExpirationAfter | None = Field(
        None, description="Life of the result files; thirty days unless set."
    )


class OpenAIFile(Identified):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int = Field(description="Exact size.")
    created_at: int = Field(description="Unix seconds.")
    expires_at: int | None = Field(description="Unix seconds; null for a file without end.")
    filename: str
    purpose: Purpose
    status: Literal["uploaded", "processed", "error"] = Field("processed", description="Always `processed`.")
    status_details: str | None = None

    @classmethod
    def of(cls, file: domain_file.File) -> OpenAIFile:
        return cls(
            id=file.id,
            bytes=file.bytes,
            created_at=file.created_at,
            expires_at=file.expires_at,
            filename=file.filename,
            purpose=file.purpose,
        )


class ListFilesResponse(ListPage[OpenAIFile]):
    """A page of files."""


class DeleteFileResponse(Output):
    """The file is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class BatchError(Output):
    """Why the input file was refused."""

    code: str
    message: str
    param: str | None
    line: int | None = Field(description="Physical line of the input file, from 1.")


class BatchErrors(Output):
    """At most a hundred of them."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchRequestCounts(Output):
    """Lines that never ran, after cancel or expiry, count in `total` only."""

    total: int
    completed: int
    failed: int


class InputTokensDetails(Output):
    """Of the input tokens."""

    cached_tokens: int


class OutputTokensDetails(Output):
    """Of the output tokens."""

    reasoning_tokens: int


class BatchUsage(Output):
    """Tokens of all finished requests."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Batch(Identified):
    """A batch. Times are Unix seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = Field(description="The model that answered, once known.")
    errors: BatchErrors | None = Field(description="Set when the input file was refused.")
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchRequestCounts
    usage: BatchUsage | None = Field(description="Null until the batch has ended.")
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, batch: domain_batch.Batch) -> Batch:
        tally = batch.tally
        return cls(
            id=batch.id,
            endpoint=batch.endpoint,
            model=batch.model,
            errors=_errors(batch),
            input_file_id=batch.input_file_id,
            completion_window=batch.completion_window,
            status=batch.status,
            output_file_id=batch.output_file_id,
            error_file_id=batch.error_file_id,
            created_at=batch.created_at,
            in_progress_at=batch.in_progress_at,
            expires_at=batch.expires_at,
            finalizing_at=batch.finalizing_at,
            completed_at=batch.completed_at,
            failed_at=batch.failed_at,
            expired_at=batch.expired_at,
            cancelling_at=batch.cancelling_at,
            cancelled_at=batch.cancelled_at,
            request_counts=BatchRequestCounts(total=batch.total, completed=tally.completed, failed=tally.failed),
            usage=_usage(batch),
            metadata=None if batch.metadata is None else dict(batch.metadata),
        )


def _errors(batch: domain_batch.Batch) -> BatchErrors | None:
    if not batch.errors:
        return None
    return BatchErrors(
        data=[BatchError(code=one.code, message=one.message, param=one.param, line=one.line) for one in batch.errors]
    )


def _usage(batch: domain_batch.Batch) -> BatchUsage | None:
    """Null until finished (openai-contract 1.3), and for a batch whose file was refused: nothing ran."""
    if not batch.is_terminal or batch.status is BatchStatus.FAILED:
        return None
    usage = batch.tally.usage
    return BatchUsage(
        input_tokens=usage.input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )


class ListBatchesResponse(ListPage[Batch]):
    """A page of batches, newest first."""


class Error(Output):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Output):
    """Every error has this shape."""

    error: Error


class Health(Output):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(Output):
    """Whether the service can do its work, and what each part says."""

    ready: bool
    checks: dict[str, str]
