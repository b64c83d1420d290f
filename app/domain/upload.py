"""Uploads: a file that arrives in parts (openai-contract 1.2).

pending ──complete──► completed        a File is made of the parts, in the order that `complete` names
   ├────cancel──────► cancelled
   └────an hour─────► expired
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.domain.file import Purpose

#: An Upload lapses this long after its creation.
UPLOAD_SECONDS = 3600


class UploadStatus(StrEnum):
    """Statuses on the wire; the same words stand in the SQL CHECK."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Upload:
    """One Upload of a project. Times are Unix seconds; `bytes` is the declared size of the whole file."""

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


@dataclass(frozen=True, slots=True)
class UploadPart:
    """One received part. `key` names its blob."""

    id: str
    upload_id: str
    key: str
    bytes: int
    created_at: int
