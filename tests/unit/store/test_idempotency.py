from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import func, select

from app.errors import Conflict
from app.store import idempotency
from app.store.contract_tables import idempotency_keys
from app.store.db import Database
from app.store.idempotency import KeyUse

USE = KeyUse("team", "files.create", "key", "digest", 3600)


async def claim(database: Database, use: KeyUse, object_id: str) -> str | None:
    async with database.write() as tx:
        return await idempotency.claim(tx, use, object_id=object_id)


async def number(database: Database) -> int:
    async with database.read() as tx:
        return int((await tx.conn.execute(select(func.count()).select_from(idempotency_keys))).scalar_one())


async def test_first_claim_names_the_object_and_the_next_finds_it(database: Database) -> None:
    async with database.read() as tx:
        assert await idempotency.earlier(tx, USE) is None
    assert await claim(database, USE, "file-1") is None
    assert await claim(database, USE, "file-2") == "file-1"
    async with database.read() as tx:
        assert await idempotency.earlier(tx, USE) == "file-1"


async def test_another_request_with_the_key_is_a_conflict(database: Database) -> None:
    await claim(database, USE, "file-1")
    with pytest.raises(Conflict) as caught:
        await claim(database, replace(USE, digest="other"), "file-2")
    assert caught.value.code == "idempotency_key_reused"
    assert await claim(database, USE, "file-3") == "file-1"


@pytest.mark.parametrize("other", [{"project_id": "b"}, {"operation": "batches.create"}, {"key": "Key"}])
async def test_a_key_belongs_to_its_project_and_operation(database: Database, other: dict[str, str]) -> None:
    await claim(database, USE, "file-1")
    assert await claim(database, replace(USE, digest="d", **other), "file-2") is None  # type: ignore[arg-type]


async def test_a_key_whose_time_is_over_is_free(database: Database) -> None:
    await claim(database, replace(USE, lifetime_seconds=0), "file-1")
    async with database.read() as tx:
        assert await idempotency.earlier(tx, replace(USE, digest="other")) is None
    assert await claim(database, replace(USE, digest="other"), "file-2") is None
    assert await claim(database, replace(USE, digest="other"), "file-3") == "file-2"


async def test_a_transaction_that_fails_leaves_the_key_free(database: Database) -> None:
    async def claim_and_fail() -> None:
        async with database.write() as tx:
            await idempotency.claim(tx, USE, object_id="file-1")
            raise LookupError

    with pytest.raises(LookupError):
        await claim_and_fail()
    assert await claim(database, USE, "file-2") is None


async def test_many_claims_at_once_have_one_winner(database: Database) -> None:
    found = await asyncio.gather(*(claim(database, USE, f"file-{n}") for n in range(8)))
    [winner] = [n for n, known in enumerate(found) if known is None]
    assert {known for known in found if known is not None} == {f"file-{winner}"}


async def test_forget_drops_what_is_over(database: Database) -> None:
    await claim(database, USE, "file-1")
    for n in range(5):
        await claim(database, replace(USE, key=f"old-{n}", lifetime_seconds=0), "file-2")
    async with database.write() as tx:
        assert await idempotency.forget(tx, limit=3) == 3
    async with database.write() as tx:
        assert await idempotency.forget(tx, limit=3) == 2
    assert await number(database) == 1
