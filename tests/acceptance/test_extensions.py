"""What the service can do beyond OpenAI's API: results so far, retry of failed lines, other completion windows."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Batch

from tests.acceptance.batch import (
    CHAT,
    by_id,
    chat,
    counts,
    create,
    hanging,
    jsonl,
    refused,
    rows,
    run,
    slow,
    upload,
    wait,
    wait_for_progress,
)
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.wire import refusal

MONTH_SECONDS = 2_592_000


def read(http: httpx2.Client, batch_id: str, offset: int = 0, **query: Any) -> tuple[bytes, int, bool]:
    """(bytes, next offset, complete) of one call."""
    reply = http.get(f"/v1/batches/{batch_id}/results", params={"offset": offset} | query)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/jsonl"
    following = int(reply.headers["batchyard-next-offset"])
    assert following - offset == len(reply.content)
    assert reply.content.endswith(b"\n") or not reply.content
    return reply.content, following, reply.headers["batchyard-complete"] == "true"


def follow(http: httpx2.Client, batch_id: str, *, offset: int = 0, seconds: float = 60, **query: Any) -> list[bytes]:
    """Every call's bytes until the results are complete."""
    pieces = []
    deadline = time.monotonic() + seconds
    while True:
        piece, offset, complete = read(http, batch_id, offset, **query)
        pieces.append(piece)
        if complete:
            return pieces
        assert time.monotonic() < deadline, f"{len(pieces)} calls, {offset} bytes"
        time.sleep(0.05)


def final(client: openai.OpenAI, file_id: str | None) -> bytes:
    return b"" if file_id is None else client.files.content(file_id).content


@pytest.mark.parametrize("settings", [{}, {"BATCHYARD_WORKER_CHUNK_MAX_LINES": "7"}], ids=["one-chunk", "many-chunks"])
@pytest.mark.timeout(120)
def test_results_grow_while_the_batch_runs(start_server: StartServer, settings: dict[str, str]) -> None:
    server = start_server(settings=settings | {"BATCHYARD_ENGINE_WINDOW": "8"})
    lines = [refused(f"bad{n}") if n % 5 == 4 else slow(f"r{n}", delay_ms=60) for n in range(150)]
    with server.sdk() as client, server.http() as http:
        batch = create(client, lines)
        output = follow(http, batch.id)
        error = follow(http, batch.id, kind="error")
        batch = wait(client, batch.id)
        assert b"".join(output) == final(client, batch.output_file_id)
        assert b"".join(error) == final(client, batch.error_file_id)
        assert counts(batch) == (150, 120, 30)
        grew = [piece for piece in output if piece]
        assert len(grew) >= 5, "rows come while the batch runs, not at its end"
        assert [row["custom_id"] for piece in grew for row in map(json.loads, piece.splitlines())] == [
            line["custom_id"] for line in lines if not line["custom_id"].startswith("bad")
        ]


@pytest.mark.timeout(180)
def test_offset_stays_good_across_kills(start_server: StartServer) -> None:
    settings = {"BATCHYARD_ENGINE_WINDOW": "8", "BATCHYARD_WORKER_CHUNK_MAX_LINES": "40"}
    lines = [slow(f"r{n}", delay_ms=60) for n in range(200)]
    server = start_server(settings=settings)
    with server.sdk() as client:
        batch_id = create(client, lines).id
    found, offset = b"", 0
    for progress in (30, 90, 140):
        with server.sdk() as client, server.http() as http:
            wait_for_progress(client, batch_id, lines=progress)
            piece, offset, complete = read(http, batch_id, offset)
            assert piece
            assert not complete
            found += piece
        server.kill()
        server = start_server(settings=settings, data_dir=server.data_dir)
    with server.sdk() as client, server.http() as http:
        found += b"".join(follow(http, batch_id, offset=offset))
        batch = wait(client, batch_id)
        assert counts(batch) == (200, 200, 0)
        assert found == final(client, batch.output_file_id)


def test_results_of_an_ended_batch_are_its_files(client: openai.OpenAI, http: httpx2.Client) -> None:
    batch = run(client, [chat("a"), refused("b"), chat("c")])
    output, error = final(client, batch.output_file_id), final(client, batch.error_file_id)
    assert read(http, batch.id) == (output, len(output), True)
    assert read(http, batch.id, kind="error") == (error, len(error), True)
    assert read(http, batch.id, 10) == (output[10:], len(output), True)
    assert read(http, batch.id, len(output)) == (b"", len(output), True)
    head = http.head(f"/v1/batches/{batch.id}/results")
    assert (head.headers["content-length"], head.headers["batchyard-status"]) == (str(len(output)), "completed")
    failed = run(client, [b"{}"])
    assert read(http, failed.id) == (b"", 0, True)
    whole = run(client, [chat("a")])
    assert read(http, whole.id, kind="error") == (b"", 0, True)
    client.files.delete(batch.output_file_id or "")
    refusal(http.get(f"/v1/batches/{batch.id}/results"), 404)
    assert read(http, batch.id, kind="error") == (error, len(error), True)


def test_results_begin_empty(start_server: StartServer) -> None:
    server = start_server()
    with server.sdk() as client, server.http() as http:
        batch = create(client, [hanging("a"), chat("b")])
        assert read(http, batch.id) == (b"", 0, False)
        wait_for_progress(client, batch.id, lines=1)
        assert read(http, batch.id) == (b"", 0, False), "the first line has not ended"
        client.batches.cancel(batch.id)
        batch = wait(client, batch.id)
        assert read(http, batch.id)[0] == final(client, batch.output_file_id)
        assert read(http, batch.id, kind="error")[0] == final(client, batch.error_file_id)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("offset=-1", "offset"),
        ("offset=x", "offset"),
        ("offset=1&offset=1", "offset"),
        ("offset=999999", "offset"),
        (f"offset={10**40}", "offset"),
        ("kind=both", "kind"),
    ],
)
def test_bad_results_query_is_400(client: openai.OpenAI, http: httpx2.Client, query: str, param: str) -> None:
    batch = run(client, [chat("a")])
    refusal(http.get(f"/v1/batches/{batch.id}/results?{query}"), 400, param=param)


@pytest.mark.parametrize("batch_id", ["batch_unknown", "ünï", "file-1"])
def test_extensions_of_an_unknown_batch_are_404(http: httpx2.Client, batch_id: str) -> None:
    refusal(http.get(f"/v1/batches/{batch_id}/results"), 404)
    refusal(http.post(f"/v1/batches/{batch_id}/retry"), 404)


def retry(http: httpx2.Client, batch: Batch, **body: Any) -> dict[str, Any]:
    reply = (
        http.post(f"/v1/batches/{batch.id}/retry", json=body) if body else http.post(f"/v1/batches/{batch.id}/retry")
    )
    assert reply.status_code == 200, reply.text
    made: dict[str, Any] = reply.json()
    return made


def test_retry_runs_the_failed_lines_of_a_completed_batch(client: openai.OpenAI, http: httpx2.Client) -> None:
    lines = [refused(f"ü{n}☃") if n % 3 == 0 else chat(f"r{n}") for n in range(60)]
    batch = run(
        client, b"\xef\xbb\xbf" + jsonl(lines).replace(b"\n", b"\r\n").removesuffix(b"\r\n"), metadata={"a": "b"}
    )
    made = retry(http, batch)
    assert (made["status"], made["endpoint"], made["completion_window"]) == ("validating", CHAT, "24h")
    assert made["metadata"] == {"a": "b", "retry_of": batch.id}
    assert made["input_file_id"] != batch.input_file_id
    file = client.files.retrieve(made["input_file_id"])
    assert (file.purpose, file.filename) == ("batch", f"{batch.id}_retry.jsonl")
    assert file.expires_at == file.created_at + MONTH_SECONDS
    assert final(client, file.id) == jsonl(line for n, line in enumerate(lines) if n % 3 == 0)
    again = wait(client, made["id"])
    assert (again.status, counts(again)) == ("completed", (20, 0, 20))


def test_retry_runs_what_a_cancel_cut_off(client: openai.OpenAI, http: httpx2.Client) -> None:
    batch = create(client, [chat("a"), refused("b"), *(hanging(f"h{n}") for n in range(30))])
    wait_for_progress(client, batch.id, lines=2)
    client.batches.cancel(batch.id)
    batch = wait(client, batch.id)
    made = retry(http, batch, metadata={})
    assert made["metadata"] == {"retry_of": batch.id}
    wanted = {"b", *(f"h{n}" for n in range(30))}
    assert {json.loads(line)["custom_id"] for line in final(client, made["input_file_id"]).splitlines()} == wanted
    client.batches.cancel(made["id"])
    assert set(by_id(rows(client, wait(client, made["id"]).error_file_id))) <= wanted


def test_retry_of_an_expired_batch(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_LIMITS_COMPLETION_WINDOWS": "24h,any"})
    with server.sdk() as client, server.http() as http:
        batch = create(client, [chat("a"), hanging("h")])
        wait_for_progress(client, batch.id, lines=1)
        with server.database() as database:
            database.execute("UPDATE batches SET expires_at = created_at")
        batch = wait(client, batch.id)
        assert batch.status == "expired"
        made = retry(
            http, batch, completion_window="2h", output_expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert made["expires_at"] == made["created_at"] + 7200
        assert [json.loads(line)["custom_id"] for line in final(client, made["input_file_id"]).splitlines()] == ["h"]


def test_retry_that_cannot_be(client: openai.OpenAI, http: httpx2.Client) -> None:
    good = run(client, [chat("a")])
    refusal(http.post(f"/v1/batches/{good.id}/retry"), 400, type="invalid_request_error")
    failed = run(client, [b"{}"])
    refusal(http.post(f"/v1/batches/{failed.id}/retry"), 409, message="Cannot retry a batch with status 'failed'.")
    running = create(client, [hanging("a")])
    refusal(http.post(f"/v1/batches/{running.id}/retry"), 409)
    client.batches.cancel(running.id)
    bad = run(client, [refused("a")])
    refusal(http.post(f"/v1/batches/{bad.id}/retry", json={"completion_window": "1h"}), 400, param="completion_window")
    refusal(http.post(f"/v1/batches/{bad.id}/retry", json={"colour": 1}), 400, param="colour")
    client.files.delete(bad.input_file_id)
    refusal(http.post(f"/v1/batches/{bad.id}/retry"), 409, code="file_gone")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_retry_of_a_large_batch_takes_little_memory(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_LIMITS_BATCH_MAX_LINES": "100000"})
    lines = [refused(f"r{n}") | {"x": "y" * 4000} if n % 50 == 0 else chat(f"r{n}", "z" * 4000) for n in range(20_000)]
    with server.sdk() as client, server.http() as http:
        batch = run(client, lines, seconds=150)
        assert counts(batch) == (20_000, 19_600, 400)
        small = run(client, [refused("a")])
        retry(http, small)
        before = server.memory_bytes()
        made = retry(http, batch)
        assert server.memory_bytes() - before < 40 << 20
        assert len(final(client, made["input_file_id"]).splitlines()) == 400


WINDOWS = {
    "BATCHYARD_LIMITS_COMPLETION_WINDOWS": "24h,1h,90d",
    "BATCHYARD_LIMITS_COMPLETION_WINDOW_MAX_SECONDS": "7200",
}


def test_listed_completion_windows(start_server: StartServer) -> None:
    server = start_server(settings=WINDOWS)
    with server.sdk() as client:
        file = upload(client, jsonl([chat("a")]))
        window: Any
        for window, seconds in (("24h", 86_400), ("1h", 3600), ("90d", 90 * 86_400)):
            batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=window)
            assert batch.completion_window == window
            assert batch.expires_at == batch.created_at + seconds
        for window in ("2h", "60m", "7d", "any"):
            with pytest.raises(openai.BadRequestError, match="Supported values: '24h', '1h', '90d'") as caught:
                client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=window)
            assert (caught.value.param, caught.value.code) == ("completion_window", "invalid_value")


def test_any_completion_window_within_bounds(start_server: StartServer) -> None:
    server = start_server(settings=WINDOWS | {"BATCHYARD_LIMITS_COMPLETION_WINDOWS": "any"})
    with server.sdk() as client:
        file = upload(client, jsonl([chat("a")]))
        window: Any
        for window, seconds in (("1m", 60), ("120m", 7200), ("2h", 7200)):
            batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=window)
            assert batch.expires_at == batch.created_at + seconds
        for window in ("121m", "3h", "1d", "0m", "01h", "1s", "h", "", "1 h", "1H", "999999d", "9" * 500 + "h"):
            with pytest.raises(openai.BadRequestError) as caught:
                client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=window)
            assert (caught.value.param, caught.value.code) == ("completion_window", "invalid_value")


def test_windows_order_the_work(start_server: StartServer) -> None:
    """An earlier deadline goes first, within one project."""
    server = start_server(settings=WINDOWS | {"BATCHYARD_ENGINE_WINDOW": "4", "BATCHYARD_WORKER_CHUNK_MAX_LINES": "20"})
    with server.sdk() as client:
        patient = create(client, [slow(f"p{n}", delay_ms=50) for n in range(400)])
        wait_for_progress(client, patient.id, lines=1)
        file = upload(client, jsonl(chat(f"u{n}") for n in range(20)))
        window: Any = "1h"
        urgent = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=window)
        assert wait(client, urgent.id).status == "completed"
        assert client.batches.retrieve(patient.id).status == "in_progress"


def test_without_the_setting_only_24h_is_taken(server: Server, client: openai.OpenAI) -> None:
    window: Any
    for window in ("1h", "7d", "48h", "1440m", "1d"):
        with pytest.raises(openai.BadRequestError, match="Supported values: '24h'") as caught:
            create_with(client, window)
        assert caught.value.param == "completion_window"


def create_with(client: openai.OpenAI, window: Any) -> Batch:
    return client.batches.create(input_file_id="file-1", endpoint=CHAT, completion_window=window)
