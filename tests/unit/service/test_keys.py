from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from app.domain.key import Caller, digest, hint, is_plausible, new_key
from app.domain.quota import Quotas
from app.errors import InvalidRequest, NotFound, Unavailable
from app.service import keys as module
from app.service.keys import KeyService
from app.store import keys as store
from app.store.db import Database


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("app.service.keys.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests that the database was asked for."""
    asked: list[str] = []
    real = store.by_digest

    async def counted(tx: Any, key_digest: str) -> Any:
        asked.append(key_digest)
        return await real(tx, key_digest)

    monkeypatch.setattr("app.service.keys.keys.by_digest", counted)
    return asked


@pytest.fixture
def service(sqlite_database: Database) -> KeyService:
    return KeyService(database=sqlite_database, configured=["configured-key"], quotas=Quotas(open_batches=5))


def test_new_key_has_256_random_bits_and_a_prefix() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert all(key.startswith("sk-by-") and len(key) == 49 and is_plausible(key) for key in made)


def test_digest_and_hint_give_no_key_away() -> None:
    key = new_key()
    assert digest(key) == hashlib.sha256(key.encode()).hexdigest()
    assert len(hint(key)) == 15
    assert len(digest("\ud800")) == 64


@pytest.mark.parametrize("key", ["", "sk-by-", "sk-by-" + "x" * 42, "sk-by-" + "x" * 44, "sk-by-" + "é" * 43, "x" * 49])
def test_is_plausible_refuses_what_was_never_made(key: str) -> None:
    assert not is_plausible(key)


async def test_caller_of_a_stored_and_of_a_configured_key(service: KeyService) -> None:
    key, made = await service.create(project_id="team", name="n", quotas={"open_batches": 0, "stored_bytes": 9})
    assert await service.caller(key) == Caller("team", made.id, Quotas(stored_bytes=9), bucket="team")
    found = await service.caller("configured-key")
    assert found is not None
    assert (found.project_id, found.quotas, found.bucket) == ("proj_default", Quotas(open_batches=5), "proj_default")
    own, made = await service.create(quotas={"requests_per_minute": 3})
    own_caller = await service.caller(own)
    assert own_caller is not None
    assert own_caller.bucket == made.id, "its own limit, its own count"


async def test_caller_asks_the_database_once_for_each_key(
    service: KeyService, lookups: list[str], clock: Clock
) -> None:
    key, _ = await service.create()
    wrong = new_key()
    for _ in range(3):
        assert await asyncio.gather(*(service.caller(one) for one in (key, wrong, key, wrong))) is not None
    assert sorted(lookups) == sorted([digest(key), digest(wrong)])
    for odd in ("", "nonsense", "configured-ke", "sk-by-short"):
        assert await service.caller(odd) is None
    assert len(lookups) == 2
    clock.now += module.CACHE_SECONDS + 0.01
    assert await service.caller(key) is not None
    assert len(lookups) == 3


async def test_caller_of_a_revoked_key_ends_within_the_cache_time(service: KeyService, clock: Clock) -> None:
    key, made = await service.create()
    assert await service.caller(key) is not None
    await service.revoke(made.id)
    assert await service.caller(key) is not None, "remembered"
    clock.now += module.CACHE_SECONDS
    assert await service.caller(key) is None
    assert module.CACHE_SECONDS < 5


async def test_caller_remembers_few_wrong_keys_and_they_push_out_no_real_one(
    service: KeyService, lookups: list[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CACHED_MAX", 5)
    key, _ = await service.create()
    await service.caller(key)
    for _ in range(20):
        assert await service.caller(new_key()) is None
    assert len(service._unknown._entries) == 5
    asked = len(lookups)
    assert await service.caller(key) is not None
    assert len(lookups) == asked


async def test_required_once_a_key_was_made(sqlite_database: Database, clock: Clock) -> None:
    service = KeyService(database=sqlite_database)
    assert not await service.required()
    _, made = await service.create()
    await service.revoke(made.id)
    assert not await service.required(), "remembered"
    clock.now += module.CACHE_SECONDS + 0.01
    assert await service.required()
    assert await KeyService(database=sqlite_database, configured=["x"]).required()


async def test_a_database_that_is_away_is_no_wrong_key(tmp_path: Path) -> None:
    away = Database(f"sqlite+aiosqlite:///{tmp_path}/none/none.db")
    service = KeyService(database=away, configured=["configured-key"])
    assert await service.caller("configured-key") is not None
    assert await service.caller("nonsense") is None
    with pytest.raises(Unavailable):
        await service.caller(new_key())
    with pytest.raises(Unavailable):
        await KeyService(database=away).required()
    await away.close()


@pytest.mark.parametrize("project", ["", "-a", "a b", "a/b", "x" * 65, "é", "a\n"])
async def test_create_refuses_a_project_that_cannot_be_named(service: KeyService, project: str) -> None:
    with pytest.raises(InvalidRequest):
        await service.create(project_id=project)


@pytest.mark.parametrize("wrong", [{"name": "x" * 257}, {"name": "a\nb"}, {"quotas": {"open_batches": -1}}], ids=str)
async def test_create_refuses_odd_names_and_limits(service: KeyService, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await service.create(**wrong)


async def test_every_and_revoke(service: KeyService) -> None:
    _, first = await service.create(project_id="one")
    _, second = await service.create(project_id="two")
    assert [key.id for key in await service.every()] == [first.id, second.id]
    assert [key.id for key in await service.every(project_id="two")] == [second.id]
    with pytest.raises(NotFound):
        await service.revoke("key_none")
