"""Bodies of `/v1/uploads` (openai-contract 1.2). Conventions: `app.http.schemas`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

from app.domain import upload as domain_upload
from app.domain.file import UPLOAD_PURPOSES, File
from app.domain.upload import UploadStatus
from app.http.multipart import FILENAME_MAX_CHARS
from app.http.schemas import EXPIRY_MAX_SECONDS, EXPIRY_MIN_SECONDS, Input, OpenAIFile, Output, Storable

#: A part's id, or what a client takes for one.
_PartId = Annotated[str, StringConstraints(max_length=512), Storable]


class FileExpirationAfter(Input):
    """When the file ends. Without it a batch file lives thirty days, any other until it is deleted."""

    anchor: Literal["created_at"] = Field(description="What `seconds` counts from.")
    seconds: int = Field(ge=EXPIRY_MIN_SECONDS, le=EXPIRY_MAX_SECONDS, description="One hour to thirty days.")


class CreateUploadRequest(Input):
    """A file that will arrive in parts."""

    filename: Annotated[str, StringConstraints(min_length=1, max_length=FILENAME_MAX_CHARS), Storable]
    # Not an enum to the validator: the refusal has words of its own (openai-contract 3.3).
    purpose: Annotated[
        str, WithJsonSchema({"type": "string", "enum": [purpose.value for purpose in UPLOAD_PURPOSES]})
    ] = Field(description="What the file is for.")
    bytes: int = Field(ge=1, description="Size of the whole file; at most 8 GB, or the limit of the purpose.")
    mime_type: Annotated[str, StringConstraints(min_length=1, max_length=512), Storable] = Field(
        description="Must be one for the purpose."
    )
    expires_after: FileExpirationAfter | None = Field(None, description="Of the file, counted from completion.")


class CompleteUploadRequest(Input):
    """Which parts, in which order."""

    part_ids: list[_PartId] = Field(description="The file's bytes are those of the parts in this order.")
    md5: Annotated[str, StringConstraints(max_length=64), Storable] | None = Field(
        None, description="Of the whole file, as hex; another one is refused."
    )


class Upload(Output):
    """A file that arrives in parts. Times are Unix seconds."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int = Field(description="The declared size.")
    created_at: int
    expires_at: int = Field(description="Until then parts are taken.")
    filename: str
    purpose: str
    status: UploadStatus
    file: OpenAIFile | None = Field(description="Set once completed.")

    @classmethod
    def of(cls, upload: domain_upload.Upload, *, file: File | None = None) -> Upload:
        return cls(
            id=upload.id,
            bytes=upload.bytes,
            created_at=upload.created_at,
            expires_at=upload.expires_at,
            filename=upload.filename,
            purpose=upload.purpose.value,
            status=upload.status,
            file=None if file is None else OpenAIFile.of(file),
        )


class UploadPart(Output):
    """A part that has arrived."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int = Field(description="Unix seconds.")
    upload_id: str

    @classmethod
    def of(cls, part: domain_upload.UploadPart) -> UploadPart:
        return cls(id=part.id, created_at=part.created_at, upload_id=part.upload_id)


ADD_UPLOAD_PART_REQUEST: dict[str, Any] = {
    "title": "AddUploadPartRequest",
    "description": "A multipart form with one part.",
    "type": "object",
    "additionalProperties": False,
    "required": ["data"],
    "properties": {"data": {"type": "string", "format": "binary", "description": "At most 64 MiB, with a file name."}},
}

ADD_UPLOAD_PART_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": {"$ref": "#/components/schemas/AddUploadPartRequest"}}},
    }
}
