from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import select, update
from structlog.testing import capture_logs

from app.domain.batch import BatchStatus
from app.domain.id import new_batch_id, new_webhook_endpoint_id
from app.domain.webhook import EventType, WebhookEndpoint, new_secret
from app.errors import Unavailable
from app.service.courier import Courier
from app.settings import WebhookSettings
from app.store import batches, webhooks
from app.store.contract_tables import webhook_messages
from app.store.db import Database
from app.worker.webhooks import WebhookDelivery
from tests.receiver import Receiver, receiving
from tests.unit.worker.yard import HeldDatabase

QUICK = WebhookSettings(
    allow_private_addresses=True, allow_http=True, poll_seconds=0.02, timeout_seconds=5, retry_first_seconds=1000
)


@pytest.fixture
def receiver() -> Generator[Receiver]:
    with receiving() as receiver:
        yield receiver


@asynccontextmanager
async def delivering(database: Database, settings: WebhookSettings = QUICK) -> AsyncGenerator[WebhookDelivery]:
    courier = Courier(settings)
    delivery = WebhookDelivery(database=database, courier=courier, settings=settings)
    stop = asyncio.Event()
    task = asyncio.create_task(delivery.run(stop))
    try:
        yield delivery
        assert not task.done()
    finally:
        stop.set()
        delivery.bell.ring()
        await task
        await courier.close()


async def listen(database: Database, url: str, *, project_id: str = "team") -> WebhookEndpoint:
    async with database.write() as tx:
        return await webhooks.create(
            tx,
            id=new_webhook_endpoint_id(),
            project_id=project_id,
            name="mine",
            url=url,
            event_types=list(EventType),
            secret=new_secret(),
        )


async def end_a_batch(database: Database, *, project_id: str = "team") -> str:
    """A batch that has failed."""
    batch_id = new_batch_id()
    async with database.write() as tx:
        await batches.create(
            tx,
            id=batch_id,
            project_id=project_id,
            endpoint="/v1/embeddings",
            input_file_id="file-1",
            completion_window="24h",
            window_seconds=60,
            metadata=None,
            output_expires_after_seconds=None,
        )
        await batches.advance(tx, batch_id, to=BatchStatus.FAILED)
    return batch_id


async def rows(database: Database) -> list[dict[str, Any]]:
    async with database.read() as tx:
        found = await tx.conn.execute(select(webhook_messages).order_by(webhook_messages.c.id))
        return [dict(row) for row in found.mappings()]


async def until(database: Database, **wanted: Any) -> dict[str, Any]:
    """The one message, once it has these values; None stands for null, ... for anything else."""
    while True:
        (row,) = await rows(database)
        if all(row[name] is not None if value is ... else row[name] == value for name, value in wanted.items()):
            return row
        await asyncio.sleep(0.01)


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what happens in another thread or task."""
    while not holds():  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)


async def make_due(database: Database) -> None:
    async with database.write() as tx:
        await tx.conn.execute(update(webhook_messages).values(due_at=0))


def outcomes() -> dict[str, float]:
    names = ("delivered", "failed", "given_up")
    return {name: REGISTRY.get_sample_value("batch_webhook_deliveries_total", {"outcome": name}) or 0 for name in names}


async def test_message_is_delivered_once(database: Database, receiver: Receiver) -> None:
    before = outcomes()
    await listen(database, receiver.url())
    async with delivering(database):
        batch_id = await end_a_batch(database)
        row = await until(database, delivered_at=...)
        await asyncio.sleep(0.1)
    (request,) = receiver.received
    assert request.headers["webhook-id"] == row["id"]
    assert request.body.decode() == row["body"]
    assert json.loads(request.body)["data"] == {"id": batch_id}
    assert (row["attempts"], row["last_status"], row["gave_up_at"]) == (1, 200, None)
    assert outcomes()["delivered"] == before["delivered"] + 1


async def test_failure_is_tried_again_with_the_same_id_and_growing_gaps(database: Database, receiver: Receiver) -> None:
    await listen(database, receiver.url())
    gaps = []
    async with delivering(database):
        await end_a_batch(database)
        for attempt, status in enumerate((500, 302, 404, 503), start=1):
            receiver.status = status
            if attempt > 1:
                await make_due(database)
            row = await until(database, attempts=attempt)
            async with database.read() as tx:
                gaps.append(row["due_at"] - await tx.now())
            assert (row["last_status"], row["delivered_at"]) in {(status, None), (200, None)}
        receiver.status = 200
        await make_due(database)
        row = await until(database, delivered_at=...)
    assert row["attempts"] == 5
    assert all(longer > shorter * 1.5 for shorter, longer in pairwise(gaps))
    assert 750 < gaps[0] <= 1000
    assert {request.headers["webhook-id"] for request in receiver.received} == {row["id"]}
    assert len({request.body for request in receiver.received}) == 1


async def test_message_is_given_up_when_its_time_is_over(sqlite_database: Database, receiver: Receiver) -> None:
    before = outcomes()
    receiver.status = 500
    await listen(sqlite_database, receiver.url())
    await end_a_batch(sqlite_database)
    async with sqlite_database.write() as tx:
        past = webhook_messages.c.created_at - 3 * 86_400
        await tx.conn.execute(update(webhook_messages).values(created_at=past))
    with capture_logs() as logs:
        async with delivering(sqlite_database):
            row = await until(sqlite_database, gave_up_at=...)
            await make_due(sqlite_database)
            await asyncio.sleep(0.1)
    assert (row["attempts"], row["last_status"], row["delivered_at"]) == (1, 500, None)
    assert len(receiver.received) == 1
    assert outcomes()["given_up"] == before["given_up"] + 1
    assert [one["log_level"] for one in logs if one["event"] == "webhook_given_up"] == ["warning"]


async def test_logs_name_no_url_and_no_secret(sqlite_database: Database, receiver: Receiver) -> None:
    endpoint = await listen(sqlite_database, receiver.url("/path?token=hush").replace("://", "://me:hush@"))
    receiver.status = 500
    with capture_logs() as logs:
        async with delivering(sqlite_database):
            await end_a_batch(sqlite_database)
            await until(sqlite_database, attempts=1)
            receiver.status = 200
            await make_due(sqlite_database)
            await until(sqlite_database, delivered_at=...)
    assert {"webhook_failed", "webhook_delivered"} <= {one["event"] for one in logs}
    assert "hush" not in str(logs)
    assert endpoint.secret not in str(logs)


async def test_hanging_receiver_does_not_hold_up_another(sqlite_database: Database, receiver: Receiver) -> None:
    settings = QUICK.model_copy(update={"concurrency": 3, "concurrency_per_endpoint": 2, "timeout_seconds": 3})
    with receiving() as slow:
        slow.delay_seconds = 60
        await listen(sqlite_database, slow.url(), project_id="slow")
        await listen(sqlite_database, receiver.url())
        for _ in range(8):
            await end_a_batch(sqlite_database, project_id="slow")
        async with delivering(sqlite_database, settings):
            await eventually(lambda: len(slow.received) >= 2)
            for _ in range(5):
                await end_a_batch(sqlite_database)
            await eventually(lambda: len(receiver.received) >= 5)
            assert len(slow.received) == 2
    assert sum(row["delivered_at"] is not None for row in await rows(sqlite_database)) == 5


async def test_crash_during_an_attempt_repeats_it_with_the_same_id(
    sqlite_url: str, sqlite_database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.worker.webhooks.LEASE_MARGIN_SECONDS", -4.5)
    receiver.delay_seconds = 30
    await listen(sqlite_database, receiver.url())
    held = HeldDatabase(sqlite_url)
    courier = Courier(QUICK)
    task = asyncio.create_task(WebhookDelivery(database=held, courier=courier, settings=QUICK).run(asyncio.Event()))
    await end_a_batch(sqlite_database)
    await eventually(lambda: bool(receiver.received))
    held.hold()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await courier.close()
    await held.close()
    receiver.delay_seconds = 0
    async with delivering(sqlite_database):
        row = await until(sqlite_database, delivered_at=...)
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == row["id"]
    assert first.body == second.body


async def test_several_workers_deliver_each_message_once(database: Database, receiver: Receiver) -> None:
    await listen(database, receiver.url())
    async with delivering(database), delivering(database), delivering(database):
        for _ in range(30):
            await end_a_batch(database)
        await eventually(lambda: len(receiver.received) >= 30)
    many = Counter(request.headers["webhook-id"] for request in receiver.received)
    assert (len(many), set(many.values())) == (30, {1})


async def test_database_that_is_away_is_waited_for(
    sqlite_url: str, sqlite_database: Database, receiver: Receiver
) -> None:
    held = HeldDatabase(sqlite_url)
    held.fail(Unavailable("gone"))
    await listen(sqlite_database, receiver.url())
    await end_a_batch(sqlite_database)
    with capture_logs() as logs:
        async with delivering(held):
            await eventually(lambda: any(one["event"] == "webhooks_wait" for one in logs))
            held.fail(None)
            await until(sqlite_database, delivered_at=...)
    await held.close()


async def test_stop_lets_an_attempt_end(sqlite_database: Database, receiver: Receiver) -> None:
    receiver.delay_seconds = 0.3
    await listen(sqlite_database, receiver.url())
    async with delivering(sqlite_database):
        await end_a_batch(sqlite_database)
        await eventually(lambda: bool(receiver.received))
    (row,) = await rows(sqlite_database)
    assert row["delivered_at"] is not None


async def test_pending_is_counted_and_old_messages_are_forgotten(
    sqlite_database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.worker.webhooks.TIDY_SECONDS", 0.05)
    receiver.status = 500
    await listen(sqlite_database, receiver.url())
    async with delivering(sqlite_database):
        await end_a_batch(sqlite_database)
        await eventually(lambda: REGISTRY.get_sample_value("batch_webhooks_pending") == 1)
        async with sqlite_database.write() as tx:
            long_ago = {"gave_up_at": webhook_messages.c.created_at - 8 * 86_400}
            await tx.conn.execute(update(webhook_messages).values(long_ago))
        await eventually(lambda: REGISTRY.get_sample_value("batch_webhooks_pending") == 0)
    assert await rows(sqlite_database) == []
