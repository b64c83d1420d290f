from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.http.app import build_app
from app.settings import Settings
from app.store.db import Database
from tests.unit.http.scenes import Service, in_process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def ours() -> dict[str, Any]:
    """The document as the application gives it."""
    return build_app(settings=Settings(), lifespan=None).openapi()


@pytest.fixture(scope="session")
def published() -> dict[str, Any]:
    """OpenAI's own document, cut down to files and batches; it lies beside the repository, on some machines."""
    path = ROOT.parent / "shared" / "openai-subset.yaml"
    if not path.exists():
        pytest.skip("the published document is not on this machine")
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


@pytest.fixture
async def service(sqlite_database: Database, tmp_path: Path) -> AsyncGenerator[Service]:
    async with in_process(sqlite_database, tmp_path / "blobs") as service:
        yield service
