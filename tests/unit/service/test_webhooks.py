from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator

import pytest
from structlog.testing import capture_logs

from app.domain.webhook import EventType, WebhookEndpoint
from app.errors import Conflict, InvalidRequest, NotFound
from app.service.courier import Courier
from app.service.webhooks import WebhookService
from app.settings import RetentionSettings, WebhookSettings
from app.store.db import Database
from tests.receiver import Receiver, receiving

SETTINGS = WebhookSettings(allow_private_addresses=True, allow_http=True, timeout_seconds=0.5, endpoints_max=3)


@pytest.fixture
def receiver() -> Generator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
async def service(sqlite_database: Database) -> AsyncGenerator[WebhookService]:
    courier = Courier(SETTINGS)
    yield WebhookService(database=sqlite_database, courier=courier, settings=SETTINGS, retention=RetentionSettings())
    await courier.close()


async def make(
    service: WebhookService, url: str = "https://example.com/", *, project_id: str = "team"
) -> WebhookEndpoint:
    return await service.create(project_id, name="mine", url=url, event_types=[EventType.BATCH_FAILED])


async def test_create_refuses_one_too_many_and_counts_by_project(service: WebhookService) -> None:
    made = [await make(service) for _ in range(3)]
    with pytest.raises(InvalidRequest, match="has 3 webhook endpoints already") as refused:
        await make(service)
    assert refused.value.code == "webhook_endpoint_limit_exceeded"
    await make(service, project_id="others")
    await service.delete("team", made[0].id)
    await make(service)


async def test_create_again_with_its_key_gives_the_first_endpoint_and_its_secret(service: WebhookService) -> None:
    async def create(name: str) -> WebhookEndpoint:
        return await service.create(
            "team", name=name, url="https://example.com/", event_types=[EventType.BATCH_FAILED], idempotency_key="k"
        )

    first = await create("mine")
    assert await create("mine") == first
    with pytest.raises(Conflict):
        await create("another")
    await service.delete("team", first.id)
    with pytest.raises(Conflict):
        await create("mine")


async def test_create_keeps_each_event_type_once(service: WebhookService) -> None:
    types = [EventType.BATCH_FAILED, EventType.BATCH_COMPLETED, EventType.BATCH_FAILED]
    made = await service.create("team", name="mine", url="https://example.com/", event_types=types)
    assert made.event_types == (EventType.BATCH_FAILED, EventType.BATCH_COMPLETED)


@pytest.mark.parametrize("endpoint_id", ["whe_0", "no such id", "a" * 500])
async def test_unknown_endpoint_is_not_found_by_any_call(service: WebhookService, endpoint_id: str) -> None:
    calls = (
        service.get("team", endpoint_id),
        service.change("team", endpoint_id, name="new"),
        service.rotate("team", endpoint_id, keep_old=True),
        service.test("team", endpoint_id, event_type=EventType.BATCH_FAILED),
        service.delete("team", endpoint_id),
    )
    for call in calls:
        with pytest.raises(NotFound, match="No webhook endpoint found with id"):
            await call


async def test_change_checks_the_url(service: WebhookService) -> None:
    made = await make(service)
    with pytest.raises(InvalidRequest):
        await service.change("team", made.id, url="gopher://example.com/")
    assert await service.get("team", made.id) == made


async def test_test_sends_a_signed_sample_at_once(service: WebhookService, receiver: Receiver) -> None:
    made = await make(service, receiver.url())
    rotated = await service.rotate("team", made.id, keep_old=True)
    receiver.status = 503
    assert await service.test("team", made.id, event_type=EventType.BATCH_EXPIRED) == 503
    (request,) = receiver.received
    event = json.loads(request.body)
    assert (event["type"], event["data"]) == ("batch.expired", {"id": "batch_test"})
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    assert (await service.get("team", made.id)).updated_at == rotated.updated_at


async def test_test_that_gets_no_answer_says_why(service: WebhookService, receiver: Receiver) -> None:
    receiver.delay_seconds = 30
    made = await make(service, receiver.url())
    with pytest.raises(InvalidRequest, match="did not answer in time") as refused:
        await service.test("team", made.id, event_type=EventType.BATCH_EXPIRED)
    assert refused.value.code == "webhook_test_failed"


async def test_test_does_not_reach_a_private_address(sqlite_database: Database, receiver: Receiver) -> None:
    """The endpoint was made while a setting allowed it."""
    courier, strict = Courier(SETTINGS), Courier(WebhookSettings(allow_http=True))
    service = WebhookService(
        database=sqlite_database, courier=courier, settings=SETTINGS, retention=RetentionSettings()
    )
    made = await make(service, receiver.url())
    assert await service.test("team", made.id, event_type=EventType.BATCH_FAILED) == 200
    service = WebhookService(database=sqlite_database, courier=strict, settings=SETTINGS, retention=RetentionSettings())
    with pytest.raises(InvalidRequest, match="no public address"):
        await service.test("team", made.id, event_type=EventType.BATCH_FAILED)
    await courier.close()
    await strict.close()
    assert len(receiver.received) == 1


async def test_logs_hold_ids_only(service: WebhookService, receiver: Receiver) -> None:
    with capture_logs() as logs:
        made = await make(service, receiver.url("/?token=hush"))
        rotated = await service.rotate("team", made.id, keep_old=False)
        await service.test("team", made.id, event_type=EventType.BATCH_FAILED)
        await service.change("team", made.id, url=receiver.url("/?token=hush2"))
        await service.delete("team", made.id)
    assert [one["event"] for one in logs] == [
        "webhook_endpoint_created",
        "webhook_secret_rotated",
        "webhook_tested",
        "webhook_endpoint_changed",
        "webhook_endpoint_deleted",
    ]
    for secret in ("hush", made.secret, rotated.secret):
        assert secret not in str(logs)
