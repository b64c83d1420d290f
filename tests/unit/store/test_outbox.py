from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import select, update

from app.domain.batch import Batch, BatchProblem, BatchStatus
from app.domain.chunk import Tally
from app.domain.webhook import EventType, WebhookEndpoint, new_secret
from app.store import batches, outbox, validations, webhooks
from app.store.contract_tables import webhook_messages
from app.store.db import Database
from app.store.outbox import Claimed
from tests.unit.store.scenes import LAPSED, LONG, claimed, finish, make_batch, running, seal
from tests.unit.store.test_webhooks import look, make

THREE_DAYS = 3 * 86_400


async def rows(database: Database) -> list[dict[str, Any]]:
    async with database.read() as tx:
        found = await tx.conn.execute(select(webhook_messages).order_by(webhook_messages.c.id))
        return [dict(row) for row in found.mappings()]


async def shift(database: Database, **values: Any) -> None:
    async with database.write() as tx:
        await tx.conn.execute(update(webhook_messages).values(values))


async def listen(database: Database, *types: EventType, project_id: str = "team") -> WebhookEndpoint:
    made = await make(database, project_id=project_id)
    async with database.write() as tx:
        changed = await webhooks.change(tx, made.id, project_id=project_id, event_types=types or list(EventType))
    assert changed is not None
    return changed


async def completed(database: Database, *, project_id: str = "team") -> Batch:
    batch = await running(database, 1, project_id=project_id)
    await seal(database, await claimed(database), Tally(1))
    ended = await finish(database, batch.id)
    assert ended is not None
    return ended


async def take(database: Database, *, limit: int = 10, per_endpoint: int = 10, **options: Any) -> list[Claimed]:
    async with database.write() as tx:
        return await outbox.claim(tx, limit=limit, per_endpoint=per_endpoint, **({"lease_seconds": LONG} | options))


async def test_completed_batch_leaves_one_message_for_each_listener(database: Database) -> None:
    everything = await listen(database)
    one = await listen(database, EventType.BATCH_COMPLETED)
    await listen(database, EventType.BATCH_FAILED, EventType.BATCH_EXPIRED)
    await listen(database, project_id="others")
    batch = await completed(database)
    found = await rows(database)
    assert {row["endpoint_id"] for row in found} == {everything.id, one.id}
    assert len({row["id"] for row in found}) == 2
    (body,) = {row["body"] for row in found}
    event = json.loads(body)
    assert event == {
        "id": event["id"],
        "object": "event",
        "created_at": batch.completed_at,
        "type": "batch.completed",
        "data": {"id": batch.id},
    }
    assert event["id"].startswith("evt_")
    assert all(row["id"].startswith("wh_") for row in found)


async def test_failed_batch_leaves_a_message(database: Database) -> None:
    await listen(database)
    async with database.write() as tx:
        batch = await make_batch(tx)
        claim = await validations.claim(tx, lease_seconds=LONG)
        assert claim is not None
        failed = await validations.reject(tx, claim, problems=[BatchProblem("bad", "bad")])
    (row,) = await rows(database)
    assert (row["type"], row["batch_id"], row["created_at"]) == ("batch.failed", batch.id, failed.failed_at)


async def test_cancelled_and_expired_batches_leave_their_own_message(database: Database) -> None:
    await listen(database)
    async with database.write() as tx:
        cancelled = await make_batch(tx)
        await batches.cancel(tx, cancelled.id, project_id="team")
    assert await rows(database) == []  # cancelling is not the end
    await finish(database, cancelled.id)
    expired = await running(database, 1, window_seconds=0)
    await seal(database, await claimed(database), Tally(unrun=1))
    await finish(database, expired.id)
    found = {(row["batch_id"], row["type"]) for row in await rows(database)}
    assert found == {(cancelled.id, "batch.cancelled"), (expired.id, "batch.expired")}


async def test_end_that_is_rolled_back_leaves_no_message(database: Database) -> None:
    await listen(database)
    batch = await running(database, 1)
    await seal(database, await claimed(database), Tally(1))

    async def finish_and_fail() -> None:
        async with database.write() as tx:
            await batches.advance(tx, batch.id, to=BatchStatus.FINALIZING)
            await batches.advance(tx, batch.id, to=BatchStatus.COMPLETED)
            raise RuntimeError("the process dies here")

    with pytest.raises(RuntimeError, match="dies here"):
        await finish_and_fail()
    assert await rows(database) == []
    await finish(database, batch.id)
    assert len(await rows(database)) == 1


async def test_message_is_claimed_once_and_carries_all_of_an_attempt(database: Database) -> None:
    endpoint = await listen(database)
    batch = await completed(database)
    async with database.read() as tx:
        assert await outbox.is_due(tx)
        assert await outbox.pending(tx) == 1
    (taken,) = await take(database)
    assert taken.endpoint == endpoint
    assert (taken.batch_id, taken.type, taken.attempts) == (batch.id, EventType.BATCH_COMPLETED, 0)
    assert taken.body == (await rows(database))[0]["body"]
    assert await take(database) == []
    async with database.read() as tx:
        assert not await outbox.is_due(tx)
        assert await outbox.pending(tx) == 1


async def test_message_goes_where_the_endpoint_points_by_then_with_both_secrets(database: Database) -> None:
    endpoint = await listen(database)
    await completed(database)
    async with database.write() as tx:
        await webhooks.change(tx, endpoint.id, project_id="team", url="https://elsewhere.example/")
        await webhooks.rotate(tx, endpoint.id, project_id="team", secret=new_secret(), keep_old=True)
    (taken,) = await take(database)
    assert taken.endpoint == await look(database, endpoint.id)
    assert taken.endpoint.url == "https://elsewhere.example/"
    assert taken.endpoint.signing_secrets[1] == endpoint.secret


async def test_delivered_message_is_over(database: Database) -> None:
    await listen(database)
    await completed(database)
    (taken,) = await take(database)
    async with database.write() as tx:
        assert await outbox.delivered(tx, taken, status=204)
        assert not await outbox.delivered(tx, taken, status=204)
        assert await outbox.pending(tx) == 0
    (row,) = await rows(database)
    assert (row["attempts"], row["last_status"], row["lease_token"], row["gave_up_at"]) == (1, 204, None, None)
    assert row["delivered_at"] is not None
    await shift(database, due_at=0)
    assert await take(database) == []


async def test_failed_message_is_due_again_after_its_pause(database: Database) -> None:
    await listen(database)
    await completed(database)
    (taken,) = await take(database)
    async with database.write() as tx:
        now = await tx.now()
        over = await outbox.failed(tx, taken, status=500, pause_seconds=40, give_up_seconds=THREE_DAYS)
    assert over is False
    (row,) = await rows(database)
    assert now + 40 <= row["due_at"] < now + 50
    assert (row["attempts"], row["last_status"], row["lease_token"]) == (1, 500, None)
    assert await take(database) == []
    await shift(database, due_at=now - 1)
    (again,) = await take(database)
    assert (again.message_id, again.body, again.attempts) == (taken.message_id, taken.body, 1)
    assert again.token != taken.token


async def test_last_pause_ends_when_the_message_is_to_be_given_up(database: Database) -> None:
    await listen(database)
    batch = await completed(database)
    assert batch.completed_at is not None
    await shift(database, created_at=batch.completed_at - THREE_DAYS + 100)
    (taken,) = await take(database)
    async with database.write() as tx:
        assert await outbox.failed(tx, taken, status=None, pause_seconds=9_000, give_up_seconds=THREE_DAYS) is False
    (row,) = await rows(database)
    assert row["due_at"] == batch.completed_at + 100
    await shift(database, created_at=batch.completed_at - THREE_DAYS - 1, due_at=0)
    (taken,) = await take(database)
    async with database.write() as tx:
        assert await outbox.failed(tx, taken, status=None, pause_seconds=9_000, give_up_seconds=THREE_DAYS) is True
        assert await outbox.pending(tx) == 0
    (row,) = await rows(database)
    assert (row["attempts"], row["last_status"], row["delivered_at"]) == (2, None, None)
    assert row["gave_up_at"] is not None
    await shift(database, due_at=0)
    assert await take(database) == []


async def test_lapsed_lease_lets_another_try_and_fences_the_first(database: Database) -> None:
    await listen(database)
    await completed(database)
    (late,) = await take(database, lease_seconds=LAPSED)
    (taken,) = await take(database)
    assert taken.message_id == late.message_id
    async with database.write() as tx:
        assert not await outbox.delivered(tx, late, status=200)
        assert await outbox.failed(tx, late, status=500, pause_seconds=1, give_up_seconds=1) is None
        assert await outbox.delivered(tx, taken, status=200)


async def test_claim_is_fair_between_endpoints(database: Database) -> None:
    slow, quick = await listen(database, EventType.BATCH_COMPLETED), await listen(database, EventType.BATCH_FAILED)
    for _ in range(5):
        await completed(database)
    async with database.write() as tx:
        await make_batch(tx)
        claim = await validations.claim(tx, lease_seconds=LONG)
        assert claim is not None
        await validations.reject(tx, claim, problems=[])
    taken = await take(database, limit=4, per_endpoint=2, held={slow.id: 1})
    assert sorted(one.endpoint.id for one in taken) == sorted([slow.id, quick.id])
    assert await take(database, limit=4, per_endpoint=2, held={slow.id: 2, quick.id: 1}) == []
    assert len(await take(database, limit=3, per_endpoint=9)) == 3


async def test_claims_at_once_share_the_messages(database: Database) -> None:
    await listen(database)
    for _ in range(12):
        await completed(database)
    taken = await asyncio.gather(*(take(database, limit=4, per_endpoint=4) for _ in range(6)))
    ids = [one.message_id for some in taken for one in some]
    assert len(ids) == len(set(ids))
    ids += [one.message_id for one in await take(database, limit=12, per_endpoint=12)]
    assert len(ids) == len(set(ids)) == 12


async def test_deleted_endpoint_takes_its_messages_along(database: Database) -> None:
    endpoint, other = await listen(database), await listen(database)
    await completed(database)
    taken = await take(database)
    async with database.write() as tx:
        assert await webhooks.delete(tx, endpoint.id, project_id="team")
    assert [row["endpoint_id"] for row in await rows(database)] == [other.id]
    (gone,) = (one for one in taken if one.endpoint.id == endpoint.id)
    async with database.write() as tx:
        assert not await outbox.delivered(tx, gone, status=200)


async def test_delete_while_a_batch_ends_waits_or_is_first(database: Database) -> None:
    """Neither the end of the batch nor the deletion fails, and no message stays behind."""
    endpoint = await listen(database)
    batch = await running(database, 1)
    await seal(database, await claimed(database), Tally(1))

    async def remove() -> None:
        async with database.write() as tx:
            await webhooks.delete(tx, endpoint.id, project_id="team")

    ended, _ = await asyncio.gather(finish(database, batch.id), remove())
    assert ended is not None
    assert ended.status is BatchStatus.COMPLETED
    assert await rows(database) == []


async def test_forget_removes_what_was_settled_long_ago(database: Database) -> None:
    await listen(database)
    for _ in range(3):
        await completed(database)
    delivered, given_up, _ = await take(database)
    async with database.write() as tx:
        await outbox.delivered(tx, delivered, status=200)
        await outbox.failed(tx, given_up, status=500, pause_seconds=1, give_up_seconds=-10)
        assert not await outbox.has_old(tx, after_seconds=60)
        assert await outbox.forget(tx, after_seconds=60, limit=10) == 0
        assert await outbox.has_old(tx, after_seconds=0)
        assert await outbox.forget(tx, after_seconds=0, limit=1) == 1
        assert await outbox.forget(tx, after_seconds=0, limit=10) == 1
        assert await outbox.pending(tx) == 1
    assert len(await rows(database)) == 1
