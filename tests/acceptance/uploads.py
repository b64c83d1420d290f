"""Uploads as the tests make them."""

from __future__ import annotations

from typing import Any

import openai
from openai.types import FileObject, Upload

from tests.acceptance.server import Server

MIME = "application/jsonl"
LINE = b'{"custom_id": "a"}\n'


def create(client: openai.OpenAI, size: int, **options: Any) -> Upload:
    usual: dict[str, Any] = {"filename": "a.jsonl", "purpose": "batch", "mime_type": MIME}
    return client.uploads.create(bytes=size, **(usual | options))


def add(client: openai.OpenAI, upload: Upload, *pieces: bytes) -> list[str]:
    return [client.uploads.parts.create(upload.id, data=piece).id for piece in pieces]


def file_of(upload: Upload) -> FileObject:
    assert upload.status == "completed"
    assert upload.file is not None
    return upload.file


def shift(server: Server, upload_id: str, seconds: int) -> None:
    """Let the Upload be `seconds` older."""
    with server.database() as database:
        database.execute(
            "UPDATE uploads SET created_at = created_at - ?, expires_at = expires_at - ? WHERE id = ?",
            (seconds, seconds, upload_id),
        )
