from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest

from app.store.db import Database
from tests.unit.http.scenes import Service, in_process, on_a_socket


@pytest.fixture
async def service(sqlite_database: Database, tmp_path: Path) -> AsyncGenerator[Service]:
    async with in_process(sqlite_database, tmp_path / "blobs") as service:
        yield service


@pytest.fixture
async def served(sqlite_database: Database, tmp_path: Path) -> AsyncGenerator[Service]:
    async with on_a_socket(sqlite_database, tmp_path / "blobs") as service:
        yield service


@pytest.fixture
def client(service: Service) -> httpx2.AsyncClient:
    return service.client
