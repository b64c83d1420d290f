"""Checklist of openai-contract 9, webhooks: items 89-94. A receiver listens on the loopback, so settings allow it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import openai
import pytest
from openai.types import Batch

from tests.acceptance.batch import chat, create, hanging, run, wait
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.webhook import EVENTS, OPEN, THREE_DAYS, listen, make_due, until
from tests.acceptance.wire import refusal
from tests.receiver import Received, Receiver, receiving


@pytest.fixture
def receiver() -> Generator[Receiver]:
    with receiving() as receiver:
        yield receiver


def end_in_every_way(server: Server, client: openai.OpenAI) -> dict[str, Batch]:
    """One batch for each terminal status."""
    expiring, cancelled = create(client, [hanging("a")]), create(client, [hanging("b")])
    for batch in (expiring, cancelled):
        wait(client, batch.id, until={"in_progress"})
    with server.database() as database:
        database.execute("UPDATE batches SET expires_at = created_at WHERE id = ?", [expiring.id])
    client.batches.cancel(cancelled.id)
    return {
        "batch.completed": run(client, [chat("a")]),
        "batch.failed": run(client, [chat("a"), chat("a")]),
        "batch.expired": wait(client, expiring.id, until={"expired"}),
        "batch.cancelled": wait(client, cancelled.id, until={"cancelled"}),
    }


def test_item_89_and_90_each_end_sends_one_event_that_the_sdk_unwraps(
    start_server: StartServer, receiver: Receiver
) -> None:
    server = start_server(settings=OPEN)
    with server.sdk() as client, receiving() as picky:
        endpoint = listen(client, receiver.url("/all?who=me"))
        listen(client, picky.url(), "batch.failed", "batch.expired")
        ended = end_in_every_way(server, client)
        receiver.wait(4)
        picky.wait(2)
        time.sleep(0.5)
        assert (len(receiver.received), len(picky.received)) == (4, 2)
        assert {json.loads(request.body)["type"] for request in picky.received} == {"batch.failed", "batch.expired"}
        told: dict[str, Any] = {}
        for request in receiver.received:
            assert (request.method, request.path) == ("POST", "/all?who=me")
            assert request.headers["content-type"] == "application/json"
            assert request.headers["user-agent"] == "OpenAI/1.0 (+https://platform.openai.com/docs/webhooks)"
            event: Any = client.webhooks.unwrap(request.body, request.headers, secret=endpoint.signing_secret)
            assert isinstance(event, EVENTS[event.type])
            assert (event.object, event.id[:4]) == ("event", "evt_")
            told[event.type] = event
        for type, batch in ended.items():
            status = type.removeprefix("batch.")
            assert batch.status == status
            assert told[type].data.id == batch.id
            assert told[type].created_at == getattr(batch, f"{status}_at")
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(request.body + b" ", request.headers, secret=endpoint.signing_secret)
    assert server.metrics()["batch_webhook_deliveries_total{outcome=delivered}"] == 6


def test_item_90_signature_is_hmac_of_id_timestamp_and_the_very_bytes(
    start_server: StartServer, receiver: Receiver
) -> None:
    """Computed by hand, as contract 7.2 writes it down; its test vector is in tests/unit/domain/test_webhook.py."""
    server = start_server(settings=OPEN)
    with server.sdk() as client:
        endpoint = listen(client, receiver.url())
        assert endpoint.signing_secret.startswith("whsec_")
        run(client, [chat("a")])
    (request,) = receiver.wait(1)
    assert signature(request, endpoint.signing_secret) == request.headers["webhook-signature"]


def signature(request: Received, secret: str) -> str:
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    assert len(key) == 32
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def test_item_91_and_92_retries_keep_the_id_refresh_the_timestamp_and_their_gaps_grow(
    start_server: StartServer, receiver: Receiver
) -> None:
    server = start_server(settings=OPEN)
    with server.sdk() as client, receiving() as elsewhere:
        endpoint = listen(client, receiver.url())
        receiver.headers = {"location": elsewhere.url("/moved")}
        gaps = []
        for attempt, (status, delay_seconds) in enumerate([(500, 0), (302, 0), (200, 60), (404, 0)], start=1):
            receiver.status, receiver.delay_seconds = status, delay_seconds
            if attempt == 1:
                run(client, [chat("a")])
            else:
                time.sleep(1)  # so that a refreshed timestamp, in whole seconds, is another one
                make_due(server)
            row = until(server, attempts=attempt)
            gaps.append(row["due_at"] - time.time())
            assert row["last_status"] == (None if delay_seconds else status)
            assert (row["delivered_at"], row["gave_up_at"]) == (None, None)
        assert 0 < gaps[0] <= 5
        assert all(longer > shorter for shorter, longer in pairwise(gaps))
        receiver.status = 204
        time.sleep(1)
        make_due(server)
        row = until(server, delivered_at=...)
        make_due(server)
        time.sleep(0.5)
        assert len(receiver.received) == 5
        assert elsewhere.received == []
        assert {request.headers["webhook-id"] for request in receiver.received} == {row["id"]}
        assert row["id"].startswith("wh_")
        assert json.loads(receiver.received[0].body)["id"] != row["id"]
        assert len({request.body for request in receiver.received}) == 1
        stamps = [int(request.headers["webhook-timestamp"]) for request in receiver.received]
        assert all(later > earlier for earlier, later in pairwise(stamps))
        for request in receiver.received:
            assert abs(int(request.headers["webhook-timestamp"]) - request.at) < 5
            client.webhooks.unwrap(request.body, request.headers, secret=endpoint.signing_secret)


def test_item_92_retries_end_after_72_hours(start_server: StartServer, receiver: Receiver) -> None:
    server = start_server(settings=OPEN)
    receiver.status = 500
    with server.sdk() as client:
        listen(client, receiver.url())
        run(client, [chat("a")])
        until(server, attempts=1)
        make_due(server, older_by=THREE_DAYS - 60)
        row = until(server, attempts=2)
        assert row["gave_up_at"] is None
        assert row["due_at"] <= row["created_at"] + THREE_DAYS  # the last attempt is made then
        make_due(server, older_by=60)
        until(server, attempts=3, gave_up_at=...)
        make_due(server)
        time.sleep(0.5)
    assert len(receiver.received) == 3
    assert [event["attempt"] for event in server.events() if event["event"] == "webhook_given_up"] == [3]


def test_item_93_rotation_signs_twice_for_a_day_when_asked(start_server: StartServer, receiver: Receiver) -> None:
    server = start_server(settings=OPEN)
    with server.sdk() as client:
        endpoint = listen(client, receiver.url())
        kept = client.webhooks.rotate_secret(endpoint.id, keep_old_secret_active_for_24_hours=True)
        run(client, [chat("a")])
        (first,) = receiver.wait(1)
        assert len(first.headers["webhook-signature"].split(" ")) == 2
        for secret in (endpoint.signing_secret, kept.signing_secret):
            client.webhooks.unwrap(first.body, first.headers, secret=secret)
        with server.database() as database:
            database.execute("UPDATE webhook_endpoints SET old_secret_until = old_secret_until - 86400")
        run(client, [chat("a")])
        second = receiver.wait(2)[1]
        assert second.headers["webhook-signature"] == signature(second, kept.signing_secret)
        client.webhooks.rotate_secret(endpoint.id, keep_old_secret_active_for_24_hours=True)
        last = client.webhooks.rotate_secret(endpoint.id)
        run(client, [chat("a")])
        third = receiver.wait(3)[2]
        assert third.headers["webhook-signature"] == signature(third, last.signing_secret)


def test_item_94_secret_is_in_the_replies_of_create_and_rotate_only(server: Server, client: openai.OpenAI) -> None:
    created = client.webhooks.create(name="mine", url="https://example.com/", event_types=["batch.failed"])
    rotated = client.webhooks.rotate_secret(created.id)
    secrets = (created.signing_secret, rotated.signing_secret)
    assert len({*secrets, None}) == 3
    with server.http() as http:
        path = f"/v1/webhook_endpoints/{created.id}"
        for reply in (
            http.get(path),
            http.get("/v1/webhook_endpoints"),
            http.post(path, json={"name": "other"}),
            http.post(path, json={"url": "http://example.com/"}),
            http.post(f"{path}/test", json={"event_type": "batch.failed"}),
            http.delete(path),
        ):
            assert not any(secret.removeprefix("whsec_") in reply.text for secret in secrets)
            assert '"signing_secret"' not in reply.text
    assert not any(secret.removeprefix("whsec_") in server.log() for secret in secrets)


def test_item_94_url_must_be_https(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.webhooks.create(name="mine", url="http://example.com/", event_types=["batch.failed"])
    assert refused.value.param == "url"
    endpoint = client.webhooks.create(name="mine", url="https://example.com/", event_types=["batch.failed"])
    with server.http() as http:
        refusal(
            http.post(f"/v1/webhook_endpoints/{endpoint.id}", json={"url": "http://example.com/"}), 400, param="url"
        )
    assert client.webhooks.retrieve(endpoint.id).url == "https://example.com/"
    client.webhooks.delete(endpoint.id)
