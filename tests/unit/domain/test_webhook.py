from __future__ import annotations

import json
from itertools import pairwise

import pytest
from standardwebhooks import Webhook

from app.domain.batch import TERMINAL, BatchStatus
from app.domain.webhook import (
    EventType,
    WebhookEndpoint,
    headers,
    new_secret,
    pause_seconds,
    payload,
    signature,
)

# The vector of openai-contract 7.2.
SECRET = "whsec_RdvaYFYUXuIFuEbvZHwMfYFhUf7aMYjYcmM24+Aj40c="
MESSAGE_ID = "wh_685c059ae39c8190af8c71ed1022a24d"
TIMESTAMP = 1750861210
BODY = (
    '{"id": "evt_685c059ae3a481909bdc86819b066fb6", "object": "event", "created_at": 1750861210, '
    '"type": "response.completed", "data": {"id": "resp_123"}}'
)


def test_signature_of_the_published_vector() -> None:
    signed = signature(BODY, message_id=MESSAGE_ID, timestamp=TIMESTAMP, secrets=[SECRET])
    assert signed == "v1,gUAg4R2hWouRZqRQG4uJypNS8YK885G838+EHb4nKBY="


def test_signature_by_two_secrets_is_two_values_newest_first() -> None:
    secrets = [new_secret(), new_secret()]
    signed = signature(BODY, message_id=MESSAGE_ID, timestamp=TIMESTAMP, secrets=secrets)
    alone = [signature(BODY, message_id=MESSAGE_ID, timestamp=TIMESTAMP, secrets=[one]) for one in secrets]
    assert signed.split(" ") == alone


def test_headers_are_those_of_the_contract() -> None:
    assert headers(BODY, message_id=MESSAGE_ID, timestamp=TIMESTAMP, secrets=[SECRET]) == {
        "content-type": "application/json",
        "user-agent": "OpenAI/1.0 (+https://platform.openai.com/docs/webhooks)",
        "webhook-id": MESSAGE_ID,
        "webhook-timestamp": "1750861210",
        "webhook-signature": "v1,gUAg4R2hWouRZqRQG4uJypNS8YK885G838+EHb4nKBY=",
    }


def test_new_secret_is_a_fresh_key_of_32_bytes() -> None:
    first, second = new_secret(), new_secret()
    assert first != second
    assert first.startswith("whsec_")
    assert len(Webhook(first)._whsecret) == 32


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_every_end_has_its_event(status: BatchStatus) -> None:
    assert EventType.of(status).value == f"batch.{status.value}"


@pytest.mark.parametrize("status", sorted(set(BatchStatus) - TERMINAL))
def test_nothing_but_an_end_is_an_event(status: BatchStatus) -> None:
    with pytest.raises(ValueError, match=status.value):
        EventType.of(status)


def test_payload_holds_the_id_of_the_batch_only() -> None:
    text = payload(EventType.BATCH_FAILED, event_id="evt_1", batch_id="batch_1", created_at=7)
    assert json.loads(text) == {
        "id": "evt_1",
        "object": "event",
        "created_at": 7,
        "type": "batch.failed",
        "data": {"id": "batch_1"},
    }
    assert text.isascii()


def test_endpoint_shows_neither_secret_nor_url_in_a_log_or_traceback() -> None:
    endpoint = WebhookEndpoint(
        id="whe_1",
        project_id="team",
        name="mine",
        url="https://user:password@example.com/?token=1",
        event_types=(EventType.BATCH_FAILED,),
        secret=SECRET,
        created_at=1,
        updated_at=1,
        old_secret="whsec_b2xk",
    )
    assert "whsec" not in repr(endpoint)
    assert "password" not in repr(endpoint)
    assert endpoint.secret_hint == "whsec_********j40c"
    assert endpoint.signing_secrets == (SECRET, "whsec_b2xk")


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_pauses_grow_up_to_the_longest_and_fill_three_days_with_few_attempts(jitter: float) -> None:
    pauses = [pause_seconds(n, first_seconds=5, max_seconds=21_600, jitter=jitter) for n in range(1, 60)]
    assert pauses[0] == 5 * (1 - 0.2 * jitter)
    assert all(longer > shorter for shorter, longer in pairwise(pauses[:13]))
    assert set(pauses[14:]) == {21_600 * (1 - 0.2 * jitter)}
    spent, attempts = 0.0, 0
    while spent < 3 * 86_400:
        spent += pauses[attempts]
        attempts += 1
    assert 20 <= attempts <= 30


def test_pauses_grow_however_the_jitter_falls() -> None:
    least = pause_seconds(2, first_seconds=5, max_seconds=3600, jitter=0.999)
    assert least > pause_seconds(1, first_seconds=5, max_seconds=3600, jitter=0)


def test_pause_after_very_many_attempts_is_still_a_number() -> None:
    assert pause_seconds(5000, first_seconds=5, max_seconds=3600, jitter=0) == 3600
