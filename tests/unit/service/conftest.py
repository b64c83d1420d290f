from __future__ import annotations

from pathlib import Path

import pytest

from app.blobs.local import LocalBlobs
from app.service.batches import BatchService
from app.service.files import FileService
from app.settings import LimitSettings, RetentionSettings
from app.store.db import Database


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(root: Path) -> LocalBlobs:
    return LocalBlobs(root)


@pytest.fixture
def limits() -> LimitSettings:
    return LimitSettings(batch_file_max_bytes=8 << 20, file_max_bytes=10 << 20)


@pytest.fixture
def files(sqlite_database: Database, blobs: LocalBlobs, limits: LimitSettings) -> FileService:
    return FileService(database=sqlite_database, blobs=blobs, limits=limits, retention=RetentionSettings())


@pytest.fixture
def batches(sqlite_database: Database) -> BatchService:
    return BatchService(database=sqlite_database, limits=LimitSettings(), retention=RetentionSettings())
