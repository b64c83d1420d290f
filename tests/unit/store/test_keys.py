from __future__ import annotations

from app.domain.key import ApiKey
from app.store import keys
from app.store.db import Database, Write


async def make(tx: Write, name: str, *, project_id: str = "team", **quotas: int) -> ApiKey:
    return await keys.create(
        tx, id=f"key_{name}", project_id=project_id, name=name, digest=f"digest-{name}", hint="sk…", quotas=quotas
    )


async def test_by_digest_finds_a_key_until_it_is_revoked(database: Database) -> None:
    async with database.write() as tx:
        made = await make(tx, "a", open_batches=3)
        assert made.quotas == {"open_batches": 3}
    async with database.read() as tx:
        assert await keys.by_digest(tx, "digest-a") == made
        assert await keys.by_digest(tx, "digest-b") is None
    async with database.write() as tx:
        ended = await keys.revoke(tx, "key_a")
        assert ended is not None
        assert ended.revoked_at is not None
        assert await keys.by_digest(tx, "digest-a") is None
        assert await keys.revoke(tx, "key_a") == ended, "the first end counts"
        assert await keys.revoke(tx, "key_none") is None


async def test_every_lists_by_project_then_age(database: Database) -> None:
    async with database.write() as tx:
        for name, project in (("b", "two"), ("a", "two"), ("c", "one")):
            await make(tx, name, project_id=project)
    async with database.read() as tx:
        assert [key.id for key in await keys.every(tx, project_id=None)] == ["key_c", "key_a", "key_b"]
        assert [key.id for key in await keys.every(tx, project_id="two")] == ["key_a", "key_b"]


async def test_exist_remembers_that_a_key_was_made(database: Database) -> None:
    async with database.write() as tx:
        assert not await keys.exist(tx)
        await make(tx, "a")
        await keys.revoke(tx, "key_a")
        assert await keys.exist(tx)


async def test_exist_of_a_database_without_tables(empty_url: str) -> None:
    empty = Database(empty_url)
    async with empty.read() as tx:
        assert not await keys.exist(tx)
    await empty.close()
