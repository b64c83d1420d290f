"""Checklist of openai-contract 9, cancel, expiry and restart: items 82-88."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx2
import openai
import pytest
from openai.types import Batch

from tests.acceptance.batch import (
    LATER,
    TERMINAL,
    by_id,
    chat,
    counts,
    create,
    hanging,
    refused,
    rows,
    run,
    wait,
    wait_for_progress,
)
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.wire import refusal

CANCELLED = {
    "code": "batch_cancelled",
    "message": "This request was not executed because the batch was cancelled.",
}
EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}


def half_done(client: openai.OpenAI) -> Batch:
    """A running batch of 4 good lines and 1 refused one, all of them ended, and of 5 that never end."""
    lines = [chat(f"good-{n}") for n in range(4)] + [refused("bad")] + [hanging(f"hung-{n}") for n in range(5)]
    return wait_for_progress(client, create(client, lines).id, lines=5)


def check_half_done(client: openai.OpenAI, batch: Batch, error: dict[str, str]) -> None:
    assert counts(batch) == (10, 4, 1)
    output, errors = by_id(rows(client, batch.output_file_id)), by_id(rows(client, batch.error_file_id))
    assert set(output) == {f"good-{n}" for n in range(4)}
    assert set(errors) == {"bad"} | {f"hung-{n}" for n in range(5)}
    assert errors.pop("bad")["response"]["status_code"] == 400
    for row in errors.values():
        assert row["response"] is None
        assert row["error"] == error
    assert batch.usage is not None
    assert batch.usage.total_tokens > 0


def test_item_82_and_83_cancel_keeps_what_finished(client: openai.OpenAI) -> None:
    running = half_done(client)
    accepted = client.batches.cancel(running.id)
    assert accepted.status == "cancelling"
    assert accepted.cancelling_at is not None
    assert (accepted.cancelled_at, accepted.output_file_id, accepted.error_file_id) == (None, None, None)
    ended = wait(client, running.id, until={"cancelled"})
    assert ended.cancelled_at is not None
    assert running.created_at <= accepted.cancelling_at <= ended.cancelled_at
    assert ended.cancelling_at == accepted.cancelling_at
    assert (ended.completed_at, ended.failed_at, ended.expired_at) == (None, None, None)
    check_half_done(client, ended, CANCELLED)


def test_item_83_cancel_ends_within_two_seconds(client: openai.OpenAI) -> None:
    """OpenAI says up to ten minutes; ours aborts what runs."""
    running = half_done(client)
    start = time.monotonic()
    client.batches.cancel(running.id)
    wait(client, running.id, until={"cancelled"}, seconds=5)
    assert time.monotonic() - start < 2


def test_item_83_cancel_before_any_line_ended_has_no_output_file(client: openai.OpenAI) -> None:
    running = create(client, [hanging(str(number)) for number in range(3)])
    wait(client, running.id, until={"in_progress"})
    client.batches.cancel(running.id)
    ended = wait(client, running.id, until={"cancelled"})
    assert counts(ended) == (3, 0, 0)
    assert ended.output_file_id is None
    assert len(by_id(rows(client, ended.error_file_id))) == 3


def test_item_84_cancel_again_changes_nothing(client: openai.OpenAI, start_server: StartServer) -> None:
    running = half_done(client)
    client.batches.cancel(running.id)
    ended = wait(client, running.id, until={"cancelled"})
    assert client.batches.cancel(running.id) == ended
    idle = start_server(settings={"BATCHYARD_SERVER_ROLE": "api"})
    with idle.sdk() as waiting:
        first = waiting.batches.cancel(create(waiting, [chat("a")]).id)
        assert first.status == "cancelling"
        assert waiting.batches.cancel(first.id) == first
        assert waiting.batches.retrieve(first.id) == first


@pytest.mark.parametrize("status", ["completed", "failed", "expired"])
def test_item_85_cancel_of_an_ended_batch_is_409(server: Server, client: openai.OpenAI, status: str) -> None:
    """'expired' is [I]: the same refusal."""
    ended = {"completed": _completed, "failed": _failed, "expired": _expired}[status](server, client)
    with server.http() as http:
        reply = http.post(f"/v1/batches/{ended.id}/cancel")
    message = f"Cannot cancel a batch with status '{status}'."
    refusal(reply, 409, type="invalid_request_error", param=None, code=None, message=message)
    assert reply.headers["x-should-retry"] == "false"
    requests: list[httpx2.Request] = []
    with (
        httpx2.Client(event_hooks={"request": [requests.append]}) as plain,
        server.sdk(http_client=plain, max_retries=2) as retrying,
        pytest.raises(openai.ConflictError, match="Cannot cancel a batch"),
    ):
        retrying.batches.cancel(ended.id)
    assert len(requests) == 1
    assert client.batches.retrieve(ended.id) == ended


def _completed(server: Server, client: openai.OpenAI) -> Batch:
    return run(client, [chat("a")])


def _failed(server: Server, client: openai.OpenAI) -> Batch:
    return run(client, [chat("a"), b"{"])


def _expired(server: Server, client: openai.OpenAI) -> Batch:
    running = half_done(client)
    with server.database() as database:
        changed = database.execute("UPDATE batches SET expires_at = ? WHERE id = ?", (int(time.time()) - 1, running.id))
        assert changed.rowcount == 1
    return wait(client, running.id, until={"expired"})


def test_item_86_expiry_keeps_what_finished(server: Server, client: openai.OpenAI) -> None:
    ended = _expired(server, client)
    assert ended.expired_at is not None
    assert ended.in_progress_at is not None
    assert (ended.completed_at, ended.failed_at, ended.cancelled_at) == (None, None, None)
    check_half_done(client, ended, EXPIRED)


def test_item_86_a_batch_nobody_began_in_time_expires_whole(start_server: StartServer) -> None:
    idle = start_server(settings={"BATCHYARD_SERVER_ROLE": "api"})
    with idle.sdk() as client:
        batch = create(client, [chat("a"), chat("b")])
    idle.stop()
    with idle.database() as database:
        database.execute("UPDATE batches SET expires_at = ?", (int(time.time()) - 1,))
    with start_server(data_dir=idle.data_dir).sdk() as client:
        ended = wait(client, batch.id, until={"expired"})
        assert counts(ended) == (2, 0, 0)
        assert ended.output_file_id is None
        assert {row["error"]["code"] for row in rows(client, ended.error_file_id)} == {"batch_expired"}


def test_item_87_cancel_while_validating_runs_nothing(start_server: StartServer) -> None:
    """[I]: a batch cancelled before it was validated has no lines, hence no counts and no files."""
    idle = start_server(settings={"BATCHYARD_SERVER_ROLE": "api"})
    with idle.sdk() as client:
        batch = create(client, [chat("a"), b"not json"])
        accepted = client.batches.cancel(batch.id)
        assert (accepted.status, accepted.in_progress_at) == ("cancelling", None)
        assert accepted.cancelling_at is not None
    idle.stop()
    working = start_server(data_dir=idle.data_dir)
    with working.sdk() as client:
        ended = wait(client, batch.id, until={"cancelled"})
        assert [name for name in LATER if getattr(ended, name) is not None] == ["cancelling_at", "cancelled_at"]
        assert counts(ended) == (0, 0, 0)
        assert (ended.errors, ended.output_file_id, ended.error_file_id) == (None, None, None)
        assert run(client, [chat("a")]).status == "completed"
    assert working.metrics()["batch_engine_call_seconds_count"] == 1


def test_item_87_cancel_right_after_create_ends_in_cancelled(client: openai.OpenAI) -> None:
    lines = [hanging(str(number)) for number in range(300)]
    batches = [create(client, lines).id for _ in range(5)]
    for number, batch_id in enumerate(batches):
        time.sleep(0.01 * number)
        assert client.batches.cancel(batch_id).status == "cancelling"
    for batch_id in batches:
        ended = wait(client, batch_id, until={"cancelled"})
        total, completed, failed = counts(ended)
        assert (completed, failed) == (0, 0)
        assert total in (0, 300)
        assert len(rows(client, ended.error_file_id)) == total


@pytest.mark.timeout(120)
@pytest.mark.parametrize("hard", [True, False], ids=["kill", "term"])
def test_item_88_a_restart_keeps_every_state(start_server: StartServer, hard: bool) -> None:
    """[I]: terminal batches and files are as they were; what ran or waited goes on to its end."""
    first = start_server(settings={"BATCHYARD_SERVER_STOP_SECONDS": "3"})
    end: Callable[[], None] = first.kill if hard else first.stop
    with first.sdk() as client:
        ended = [run(client, [chat("a"), refused("b")]), run(client, [b"{}"]), _expired(first, client)]
        hung = half_done(client)
        validating = create(client, [chat(str(number)) for number in range(1000)])
        cancelling = half_done(client)
        client.batches.cancel(cancelling.id)
        files = list(client.files.list())
        end()
    with start_server(data_dir=first.data_dir).sdk() as client:
        for batch in ended:
            assert client.batches.retrieve(batch.id) == batch
        assert {file.id for file in files} <= {file.id for file in client.files.list()}
        assert counts(wait(client, validating.id, until={"completed"})) == (1000, 1000, 0)
        check_half_done(client, wait(client, cancelling.id, until={"cancelled"}), CANCELLED)
        waiting = client.batches.retrieve(hung.id)
        assert waiting.status == "in_progress"
        assert counts(waiting) == (10, 4, 1)
        client.batches.cancel(hung.id)
        check_half_done(client, wait(client, hung.id, until={"cancelled"}), CANCELLED)
        assert [batch.id for batch in client.batches.list()] == [
            batch.id for batch in (cancelling, validating, hung, *ended[::-1])
        ]
        assert {batch.status for batch in client.batches.list()} <= TERMINAL
