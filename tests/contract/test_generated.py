"""Requests made up from the document: no answer is a 5xx, or of a shape or status that the document does not name."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.specs.openapi import checks

from app.http.app import build_app
from app.settings import Settings
from app.store.db import Database
from tests.unit.http.scenes import KEY, build

#: Generated values break rules that a schema cannot say (a cursor names an object, a first line is JSON), unknown query
#: parameters are ignored on purpose, and the key is always sent.
EXCLUDED = [
    checks.positive_data_acceptance,
    checks.negative_data_rejection,
    checks.ignored_auth,
    checks.missing_required_header,
]
SETTINGS = Settings.model_validate({"server": {"api_keys": [KEY]}})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        database = Database(f"sqlite+aiosqlite:///{folder}/batchyard.db")
        await database.migrate()
        _, services = build(SETTINGS, database, Path(folder, "blobs"))
        yield {"services": services}
        await database.close()


# Not from a fixture: each generated case is to be a test of its own, named at collection.
schema = schemathesis.openapi.from_asgi("/openapi.json", build_app(settings=SETTINGS, lifespan=lifespan))


# What is handed to a model server is not described, and so not made up.
@schema.exclude(tag="Interactive").parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
# From pytest 9.2 a test's id is made of `originalname`, in which schemathesis 4.32 names the operation only for a test
# with parameters of its own.
@pytest.mark.parametrize("key", [KEY], ids=["keyed"])
def test_generated_request(case: Case[Any], key: str) -> None:
    case.call_and_validate(headers={"authorization": f"Bearer {key}"}, excluded_checks=EXCLUDED)
