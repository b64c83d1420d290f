"""Uploads: a file that arrives in parts (openai-contract 1.2).

pending ──complete──► completed        a File is made of the parts, in the order that `complete` names
   ├────cancel──────► cancelled
   └────an hour─────► expired
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from app.domain.file import Purpose

#: An Upload lapses this long after its creation.
UPLOAD_SECONDS = 3600

_JSON_LINES = (
    "application/jsonl",
    "application/x-jsonl",
    "application/jsonlines",
    "application/x-jsonlines",
    "application/json-lines",
    "application/ndjson",
    "application/x-ndjson",
    "application/json",
    "application/octet-stream",
    "text/jsonl",
    "text/x-jsonl",
    "text/plain",
)
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DOCUMENTS = (
    "application/csv",
    "application/json",
    "application/msword",
    "application/octet-stream",
    "application/pdf",
    "application/typescript",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/x-sh",
    "application/x-tar",
    "application/xml",
    "application/zip",
    "text/css",
    "text/csv",
    "text/html",
    "text/javascript",
    "text/markdown",
    "text/plain",
    "text/x-c",
    "text/x-c++",
    "text/x-csharp",
    "text/x-golang",
    "text/x-java",
    "text/x-php",
    "text/x-python",
    "text/x-ruby",
    "text/x-script.python",
    "text/x-tex",
    "text/xml",
)

#: MIME types that an Upload of a purpose may state; a purpose that is not here takes any.
MIME_TYPES = {
    Purpose.BATCH: frozenset(_JSON_LINES),
    Purpose.FINE_TUNE: frozenset(_JSON_LINES),
    Purpose.EVALS: frozenset(_JSON_LINES),
    Purpose.VISION: frozenset(_IMAGES),
    Purpose.ASSISTANTS: frozenset(_DOCUMENTS + _IMAGES),
}
_MIME_TYPE = re.compile(r"([a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126})[ \t]*(;.{0,256})?")


def takes_mime_type(purpose: Purpose, text: str) -> bool:
    """Whether `text` is a MIME type, and one for files of `purpose`. Case and parameters do not matter."""
    match = _MIME_TYPE.fullmatch(text.strip().lower())
    return match is not None and (purpose not in MIME_TYPES or match[1] in MIME_TYPES[purpose])


class UploadStatus(StrEnum):
    """Statuses on the wire; the same words stand in the SQL CHECK."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Upload:
    """One Upload of a project. Times are Unix seconds; `bytes` is the declared size of the whole file.

    `completed_with` is a digest of what `complete` was asked with, so that a repeated call is known as such.
    """

    id: str
    project_id: str
    filename: str
    purpose: Purpose
    mime_type: str
    bytes: int
    status: UploadStatus
    created_at: int
    expires_at: int
    file_expires_after_seconds: int | None
    file_id: str | None
    completed_with: str | None = None


@dataclass(frozen=True, slots=True)
class UploadPart:
    """One received part. `key` names its blob."""

    id: str
    upload_id: str
    key: str
    bytes: int
    created_at: int
