"""Webhooks beyond the checklist: management, the test call, crashes, private addresses, TLS, logs."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Generator
from pathlib import Path

import openai
import pytest
from openai.types.webhooks import BatchCancelledWebhookEvent, BatchCompletedWebhookEvent

from tests.acceptance.batch import chat, create, run
from tests.acceptance.conftest import StartServer
from tests.acceptance.webhook import EVENTS, OPEN, listen, make_due, messages, until
from tests.receiver import Receiver, make_certificate, receiving


@pytest.fixture
def receiver() -> Generator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_endpoints_are_managed_with_the_sdk(client: openai.OpenAI) -> None:
    made = [
        client.webhooks.create(name=f"n{n}", url="https://example.com/", event_types=["batch.failed"]) for n in range(3)
    ]
    assert [one.id for one in client.webhooks.list(limit=1)][:3] == [one.id for one in reversed(made)]
    changed = client.webhooks.update(made[0].id, event_types=["batch.expired", "batch.completed"])
    assert changed.event_types == ["batch.expired", "batch.completed"]
    assert client.webhooks.retrieve(made[0].id) == changed
    assert set(client.webhooks.event_types.list().data) == set(EVENTS)
    for one in made:
        gone = client.webhooks.delete(one.id)
        assert (gone.id, gone.deleted, gone.object) == (one.id, True, "webhook_endpoint.deleted")
        with pytest.raises(openai.NotFoundError):
            client.webhooks.retrieve(one.id)


def test_test_call_sends_a_sample_and_says_what_was_answered(start_server: StartServer, receiver: Receiver) -> None:
    server = start_server(settings=OPEN)
    with server.sdk() as client:
        endpoint = listen(client, receiver.url(), "batch.failed")
        for status in (200, 500, 302):
            receiver.status = status
            result = client.webhooks.test(endpoint.id, event_type="batch.cancelled")
            assert (result.status_code, result.success, result.event_type) == (status, True, "batch.cancelled")
            assert (result.webhook_endpoint_id, result.object) == (endpoint.id, "webhook_endpoint.test")
        request = receiver.received[0]
        event = client.webhooks.unwrap(request.body, request.headers, secret=endpoint.signing_secret)
        assert isinstance(event, BatchCancelledWebhookEvent)
        receiver.delay_seconds = 60
        with pytest.raises(openai.BadRequestError) as failed:
            client.webhooks.test(endpoint.id, event_type="batch.failed")
        assert failed.value.code == "webhook_test_failed"
        assert messages(server) == []


@pytest.mark.parametrize("moment", ["during-the-attempt", "before-any-attempt"])
def test_kill_between_the_end_and_its_delivery_loses_no_message(
    start_server: StartServer, receiver: Receiver, moment: str
) -> None:
    early = moment == "before-any-attempt"
    first = start_server(settings=OPEN | ({"BATCHYARD_DEBUG_FAILPOINT": "finished=kill"} if early else {}))
    receiver.delay_seconds = 60
    with first.sdk() as client:
        endpoint = listen(client, receiver.url())
        batch = create(client, [chat("a")])
        if early:
            assert first.process.wait(20) == -signal.SIGKILL
        else:
            receiver.wait(1)
            first.kill()
    seen = len(receiver.received)
    assert seen == (0 if early else 1)
    receiver.delay_seconds = 0
    second = start_server(data_dir=first.data_dir, settings=OPEN)
    row = until(second, delivered_at=..., seconds=30)  # at the latest when the lease of the dead has lapsed
    assert len(receiver.received) == seen + 1
    assert {request.headers["webhook-id"] for request in receiver.received} == {row["id"]}
    request = receiver.received[-1]
    event = client.webhooks.unwrap(request.body, request.headers, secret=endpoint.signing_secret)
    assert isinstance(event, BatchCompletedWebhookEvent)
    assert event.data.id == batch.id


def test_the_end_of_a_batch_is_told_at_once(start_server: StartServer, receiver: Receiver) -> None:
    """Polling alone would take a minute."""
    server = start_server(settings=OPEN | {"BATCHYARD_WEBHOOKS_POLL_SECONDS": "60"})
    with server.sdk() as client:
        listen(client, receiver.url())
        create(client, [chat("a")])
        receiver.wait(1)
        create(client, [b"{}", b"{"])
        receiver.wait(2)


def test_deleted_endpoint_gets_nothing_more(start_server: StartServer, receiver: Receiver) -> None:
    server = start_server(settings=OPEN)
    receiver.status = 500
    with server.sdk() as client:
        endpoint = listen(client, receiver.url())
        run(client, [chat("a")])
        until(server, attempts=1)
        client.webhooks.delete(endpoint.id)
        assert messages(server) == []
        run(client, [chat("a")])
        time.sleep(0.3)
    assert len(receiver.received) == 1


PRIVATE = ["127.0.0.1", "localhost", "[::1]", "10.0.0.1", "192.168.0.1", "169.254.169.254", "[::ffff:127.0.0.1]"]
PRIVATE += ["[fe80::1]", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0.0.0.0"]


@pytest.mark.parametrize("host", PRIVATE)
def test_private_hosts_are_refused(client: openai.OpenAI, host: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.webhooks.create(name="mine", url=f"https://{host}:8443/", event_types=["batch.failed"])
    assert refused.value.param == "url"


def test_private_addresses_are_refused_when_a_message_is_due(start_server: StartServer, receiver: Receiver) -> None:
    """Also for a name, and for endpoints made while a setting allowed them."""
    first = start_server(settings=OPEN)
    with first.sdk() as client:
        listen(client, receiver.url())
        listen(client, receiver.url(host="localhost"))
        listen(client, receiver.url(host=socket.gethostname()))
        first.stop()
    strict = OPEN | {"BATCHYARD_WEBHOOKS_ALLOW_PRIVATE_ADDRESSES": "false"}
    second = start_server(data_dir=first.data_dir, settings=strict)
    with second.sdk() as client:
        run(client, [chat("a")])
        for row in messages(second):
            until(second, id=row["id"], attempts=1, last_status=None)
    assert receiver.received == []
    failed = [event for event in second.events() if event["event"] == "webhook_failed"]
    assert [event["reason"] for event in failed[:2]] == ["address_refused"] * 2


def test_https_receiver_is_verified(start_server: StartServer, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "receiver.pem", name="localhost")
    settings = {
        "BATCHYARD_WEBHOOKS_ALLOW_PRIVATE_ADDRESSES": "true",
        "BATCHYARD_WEBHOOKS_POLL_SECONDS": "0.05",
    }
    trusting = start_server(settings=settings | {"BATCHYARD_WEBHOOKS_CA_FILE": str(certificate)})
    distrusting = start_server(settings=settings)
    with receiving(certificate=certificate) as receiver, trusting.sdk() as client, distrusting.sdk() as wary:
        for sdk in (client, wary):
            endpoint = listen(sdk, receiver.url(host="localhost"))
            run(sdk, [chat("a")])
            if sdk is client:
                (request,) = receiver.wait(1)
                sdk.webhooks.unwrap(request.body, request.headers, secret=endpoint.signing_secret)
        until(distrusting, attempts=1, last_status=None)
        assert len(receiver.received) == 1


def test_urls_and_secrets_stay_out_of_the_log(start_server: StartServer, receiver: Receiver) -> None:
    server = start_server(settings=OPEN | {"BATCHYARD_LOG_LEVEL": "debug"})
    with server.sdk() as client:
        endpoint = listen(client, receiver.url("/hush-path?hush=query").replace("://", "://hush-user:hush-word@"))
        client.webhooks.test(endpoint.id, event_type="batch.failed")
        receiver.status = 500
        run(client, [chat("a")])
        until(server, attempts=1)
        receiver.status = 200
        make_due(server)
        until(server, delivered_at=...)
    assert receiver.received[0].headers["authorization"].startswith("Basic ")
    assert "hush" not in server.log()
    assert endpoint.signing_secret.removeprefix("whsec_") not in server.log()
    for request in receiver.received:
        assert request.headers["webhook-signature"] not in server.log()


def test_process_with_the_role_api_delivers_nothing_by_itself(start_server: StartServer, receiver: Receiver) -> None:
    api = start_server(settings=OPEN | {"BATCHYARD_SERVER_ROLE": "api"})
    with api.sdk() as client:
        listen(client, receiver.url())
        create(client, [chat("a")])
        time.sleep(0.3)
        assert receiver.received == []
        worker = start_server(data_dir=api.data_dir, settings=OPEN)
        receiver.wait(1)
        worker.stop()
