"""The input, brought to a local disk if it is not on one, so that it can be read twice in bounded memory."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from app.errors import BatchyardError, SettingsInvalid
from app.offline import bucket, web
from app.offline.place import Kind, Place
from app.settings import BlobSettings

_COPY_BYTES = 1 << 20


async def bring(place: Place, *, folder: Path, s3: BlobSettings) -> BinaryIO:
    """The input's bytes as an open file: the file itself, or a nameless copy on the disk of `folder`.

    Raises SettingsInvalid when it cannot be had.
    """
    if place.kind is Kind.FILE:
        return _opened(place)
    try:
        copy: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller's, for as long as the run lasts
    except OSError as exc:
        raise SettingsInvalid(f"{folder} cannot take a copy of the input: {exc.strerror}") from exc
    try:
        if place.kind is Kind.HTTP:
            await web.download(place, copy)
        elif place.kind is Kind.S3:
            await bucket.download(place, copy, s3=s3)
        else:
            await asyncio.to_thread(_drink, place, copy)
        copy.flush()
    except OSError as exc:
        copy.close()
        raise SettingsInvalid(f"the input {place.shown} cannot be copied to {folder}: {exc.strerror}") from exc
    except BatchyardError as exc:
        copy.close()
        raise SettingsInvalid(f"the input cannot be had: {exc.message}") from exc
    except BaseException:
        copy.close()
        raise
    return copy


def _opened(place: Place) -> BinaryIO:
    assert place.path is not None
    if place.path.is_dir():
        raise SettingsInvalid(f"the input {place.text} is a folder")
    try:
        return place.path.open("rb", buffering=0)
    except OSError as exc:
        raise SettingsInvalid(f"the input {place.text} cannot be read: {exc.strerror}") from exc


def _drink(place: Place, copy: BinaryIO) -> None:
    if place.path is None:
        shutil.copyfileobj(sys.stdin.buffer, copy, _COPY_BYTES)
    else:
        with place.path.open("rb") as pipe:
            shutil.copyfileobj(pipe, copy, _COPY_BYTES)
