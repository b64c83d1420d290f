from __future__ import annotations

import pytest
from sqlalchemy import update

from app.domain.id import new_webhook_endpoint_id
from app.domain.webhook import EventType, WebhookEndpoint, new_secret
from app.errors import InvalidRequest
from app.store import webhooks
from app.store.contract_tables import webhook_endpoints
from app.store.db import Database

DAY = 86_400
BOTH = [EventType.BATCH_COMPLETED, EventType.BATCH_FAILED]


async def make(database: Database, *, project_id: str = "team", name: str = "mine") -> WebhookEndpoint:
    async with database.write() as tx:
        return await webhooks.create(
            tx,
            id=new_webhook_endpoint_id(),
            project_id=project_id,
            name=name,
            url="https://example.com/hook",
            event_types=BOTH,
            secret=new_secret(),
        )


async def look(database: Database, endpoint_id: str, *, project_id: str = "team") -> WebhookEndpoint | None:
    async with database.read() as tx:
        return await webhooks.get(tx, endpoint_id, project_id=project_id)


async def age(database: Database, endpoint: WebhookEndpoint, *, seconds: int) -> None:
    """Let all that happened to the endpoint be `seconds` longer ago."""
    table = webhook_endpoints
    shifted = {name: table.c[name] - seconds for name in ("created_at", "updated_at", "old_secret_until")}
    async with database.write() as tx:
        await tx.conn.execute(update(table).where(table.c.id == endpoint.id).values(shifted))


async def test_create_and_get(database: Database) -> None:
    made = await make(database)
    assert made.created_at == made.updated_at
    assert made.event_types == tuple(BOTH)
    assert await look(database, made.id) == made


async def test_every_call_of_another_project_finds_nothing(database: Database) -> None:
    made = await make(database)
    assert await look(database, made.id, project_id="others") is None
    async with database.write() as tx:
        assert await webhooks.change(tx, made.id, project_id="others", name="theirs") is None
        assert await webhooks.rotate(tx, made.id, project_id="others", secret=new_secret(), keep_old=True) is None
        assert not await webhooks.delete(tx, made.id, project_id="others")
        assert await webhooks.count(tx, project_id="others") == 0
        assert (await webhooks.page(tx, project_id="others", after=None, limit=5)).items == []
        with pytest.raises(InvalidRequest):
            await webhooks.page(tx, project_id="others", after=made.id, limit=5)
    assert await look(database, made.id) == made


async def test_page_is_newest_first_and_goes_on_after_the_last(database: Database) -> None:
    made = [await make(database, name=str(number)) for number in range(5)]
    await make(database, project_id="others")
    seen: list[str] = []
    after, more = None, True
    while more:
        async with database.read() as tx:
            page = await webhooks.page(tx, project_id="team", after=after, limit=2)
        seen += [endpoint.id for endpoint in page.items]
        after, more = seen[-1], page.has_more
    assert seen == [endpoint.id for endpoint in reversed(made)]


async def test_change_moves_updated_at_only_when_something_differs(database: Database) -> None:
    made = await make(database)
    await age(database, made, seconds=100)
    old = await look(database, made.id)
    assert old is not None
    async with database.write() as tx:
        same = await webhooks.change(
            tx, made.id, project_id="team", name=made.name, url=made.url, event_types=BOTH[::-1]
        )
        assert same == old
        assert await webhooks.change(tx, made.id, project_id="team") == old
        changed = await webhooks.change(tx, made.id, project_id="team", event_types=[EventType.BATCH_EXPIRED])
    assert changed is not None
    assert changed.event_types == (EventType.BATCH_EXPIRED,)
    assert (changed.name, changed.url, changed.secret) == (made.name, made.url, made.secret)
    assert changed.created_at == old.created_at
    assert changed.updated_at > old.updated_at
    assert await look(database, made.id) == changed


async def test_rotate_keeps_the_old_secret_for_a_day_when_asked(database: Database) -> None:
    made = await make(database)
    second = new_secret()
    async with database.write() as tx:
        rotated = await webhooks.rotate(tx, made.id, project_id="team", secret=second, keep_old=True)
    assert rotated is not None
    assert rotated.secret == second
    now = await look(database, made.id)
    assert now is not None
    assert now.signing_secrets == (second, made.secret)
    await age(database, made, seconds=DAY - 10)
    now = await look(database, made.id)
    assert now is not None
    assert now.signing_secrets == (second, made.secret)
    await age(database, made, seconds=10)
    now = await look(database, made.id)
    assert now is not None
    assert now.signing_secrets == (second,)


async def test_rotate_again_drops_the_secret_before_the_last(database: Database) -> None:
    made = await make(database)
    second, third = new_secret(), new_secret()
    async with database.write() as tx:
        await webhooks.rotate(tx, made.id, project_id="team", secret=second, keep_old=True)
        await webhooks.rotate(tx, made.id, project_id="team", secret=third, keep_old=True)
        now = await webhooks.get(tx, made.id, project_id="team")
    assert now is not None
    assert now.signing_secrets == (third, second)


async def test_rotate_without_keeping_ends_every_older_secret_at_once(database: Database) -> None:
    made = await make(database)
    third = new_secret()
    async with database.write() as tx:
        await webhooks.rotate(tx, made.id, project_id="team", secret=new_secret(), keep_old=True)
        await webhooks.rotate(tx, made.id, project_id="team", secret=third, keep_old=False)
        now = await webhooks.get(tx, made.id, project_id="team")
    assert now is not None
    assert now.signing_secrets == (third,)


async def test_delete_is_seen_at_once_and_happens_once(database: Database) -> None:
    made = await make(database)
    async with database.write() as tx:
        assert await webhooks.count(tx, project_id="team") == 1
        assert await webhooks.delete(tx, made.id, project_id="team")
        assert not await webhooks.delete(tx, made.id, project_id="team")
        assert await webhooks.count(tx, project_id="team") == 0
    assert await look(database, made.id) is None
