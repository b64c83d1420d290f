"""Steps that the tests of this room share."""

from __future__ import annotations

from pathlib import Path

from app.domain.file import File, Purpose
from app.service.files import FileService

LINE = b'{"custom_id":"1","method":"POST","url":"/v1/embeddings","body":{}}\n'


def stored(root: Path) -> list[Path]:
    """Every file below the blob folder, finished or not."""
    return [path for path in root.rglob("*") if path.is_file()]


async def upload(
    files: FileService,
    data: bytes = LINE,
    *,
    purpose: Purpose = Purpose.BATCH,
    filename: str = "a.jsonl",
    project_id: str = "team",
    expires_after_seconds: int | None = None,
    step_bytes: int = 70_000,
) -> File:
    async with files.upload(project_id) as sink:
        for start in range(0, len(data), step_bytes):
            await sink.write(memoryview(data)[start : start + step_bytes])
        return await sink.finish(purpose=purpose, filename=filename, expires_after_seconds=expires_after_seconds)


async def content(files: FileService, file: File, *, start: int = 0, end: int | None = None) -> bytes:
    found = await files.content(file.project_id, file.id)
    return b"".join([block async for block in found.stream(start=start, end=end)])
