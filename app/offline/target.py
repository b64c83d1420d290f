"""Where a result file goes. Checked before the model loads, filled when every line has ended."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import BinaryIO

from app.errors import SettingsInvalid, Unavailable
from app.offline import bucket, web
from app.offline.place import Kind, Place
from app.settings import BlobSettings

_COPY_BYTES = 1 << 20


class Target:
    """One result file at `place`."""

    def __init__(self, place: Place, *, s3: BlobSettings) -> None:
        """Raises SettingsInvalid when it can be seen that nothing can be written there."""
        self.place = place
        self._s3 = s3
        if place.kind is not Kind.FILE:
            return
        assert place.path is not None
        folder = place.path.parent
        if place.path.is_dir():
            raise SettingsInvalid(f"the output {place.text} is a folder")
        if not folder.is_dir():
            raise SettingsInvalid(f"the folder of the output {place.text} does not exist")
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            raise SettingsInvalid(f"the folder of the output {place.text} is not writable")

    def is_same_file(self, other: Place) -> bool:
        """True when both name one file, also by a link."""
        mine, its = self.place.path, other.path
        if self.place.kind is not Kind.FILE or other.kind is not Kind.FILE or mine is None or its is None:
            return False  # one terminal, say, may well be both
        return mine == its or (mine.exists() and its.exists() and mine.samefile(its))

    def draft(self, base: Path) -> Path:
        """Where to write the file first: on its own disk, or beside `base`."""
        if self.place.kind is Kind.FILE and self.place.path is not None:
            return self.place.path.with_name(f"{self.place.path.name}.partial")
        return base.with_name(f"{base.name}.partial")

    async def deliver(self, draft: Path) -> None:
        """Put the finished draft in its place; a local one is moved. Raises Unavailable, InvalidRequest."""
        if self.place.kind is Kind.FILE:
            assert self.place.path is not None
            await asyncio.to_thread(_replace, draft, self.place.path)
            return
        with draft.open("rb") as file:
            if self.place.kind is Kind.HTTP:
                await web.upload(self.place, file)
            elif self.place.kind is Kind.S3:
                await bucket.upload(self.place, file, s3=self._s3)
            else:
                await asyncio.to_thread(_pour, file, self.place)


def _replace(draft: Path, path: Path) -> None:
    try:
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as exc:
        raise Unavailable(f"the output {path} cannot be written: {exc.strerror}") from exc


def _pour(file: BinaryIO, place: Place) -> None:
    try:
        if place.path is None:
            shutil.copyfileobj(file, sys.stdout.buffer, _COPY_BYTES)
            sys.stdout.buffer.flush()
        else:
            with place.path.open("wb") as pipe:
                shutil.copyfileobj(file, pipe, _COPY_BYTES)
    except OSError as exc:
        raise Unavailable(f"the output {place.text} cannot be written: {exc.strerror}") from exc
