from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import httpx2
import pytest
import structlog
from sqlalchemy import text

from app.errors import (
    BatchyardError,
    BodyTooLarge,
    Conflict,
    Internal,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    RateLimited,
    StorageFull,
    Unavailable,
)
from app.http.errors import envelope
from app.store.db import Database
from tests.unit.http.scenes import KEY, LINE, Service, error_of, in_process, until


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("m", code="c", param="p"), 400, "invalid_request_error"),
        (PermissionDenied("m"), 403, "invalid_request_error"),
        (NotFound("m"), 404, "invalid_request_error"),
        (Conflict("m"), 409, "invalid_request_error"),
        (BodyTooLarge("m"), 413, "invalid_request_error"),
        (RateLimited("m", retry_after_seconds=7), 429, "requests"),
        (Unavailable("m", retry_after_seconds=9), 503, "server_error"),
        (StorageFull("m"), 503, "server_error"),
    ],
)
def test_envelope(error: BatchyardError, status: int, kind: str) -> None:
    response = envelope(error)
    assert response.status_code == status
    for name, value in error.headers().items():
        assert response.headers[name] == value
    expected = {"message": "m", "type": kind, "param": error.param, "code": error.code}
    assert httpx2.Response(200, content=bytes(response.body)).json() == {"error": expected}


def test_internal_error_keeps_its_words_to_itself() -> None:
    assert b"blob uploads/secret" not in bytes(envelope(Internal("blob uploads/secret")).body)


def test_lone_surrogate_in_a_message() -> None:
    assert b"\\ud800" in bytes(envelope(InvalidRequest("\ud800", param="\ud800")).body)


async def test_unknown_url(client: httpx2.AsyncClient) -> None:
    for method, url in (
        ("POST", "/v1/foo"),
        ("GET", "/"),
        ("GET", "/v1/files/"),
        ("GET", "/v1/files/a/b/c"),
        ("GET", "/docs"),
    ):
        reply = await client.request(method, url)
        assert reply.status_code == 404
        assert error_of(reply) == {
            "message": f"Invalid URL ({method} {url})",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }


@pytest.mark.parametrize(
    ("method", "url", "allow"),
    [
        ("PUT", "/v1/files", "GET, HEAD, POST"),
        ("DELETE", "/v1/batches", "GET, HEAD, POST"),
        ("POST", "/v1/files/file-1", "DELETE, GET, HEAD"),
        ("GET", "/v1/batches/batch_1/cancel", "POST"),
        ("OPTIONS", "/v1/files", "GET, HEAD, POST"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_wrong_method(client: httpx2.AsyncClient, method: str, url: str, allow: str) -> None:
    reply = await client.request(method, url)
    assert reply.status_code == 405
    error = error_of(reply)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "method_not_supported")
    assert error["message"] == f"Not allowed to {method} on {url}."
    assert reply.headers["allow"] == allow


async def test_unforeseen_error_is_logged_once_and_tells_nothing(service: Service) -> None:
    """A database without tables: the driver's own error, which nobody translates."""
    async with service.database.write() as tx:
        await tx.conn.execute(text("DROP TABLE batches"))
    with structlog.testing.capture_logs() as logs:
        reply = await service.client.get("/v1/batches")
    assert reply.status_code == 500
    error = error_of(reply)
    assert error["type"] == "server_error"
    assert "batches" not in reply.text
    assert [line["event"] for line in logs] == ["request_failed", "http_request"]


async def test_database_that_is_away_is_503_with_retry_after(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/no/such/folder/a.db")
    async with in_process(database, tmp_path / "blobs") as service:
        upload = service.client.post("/v1/files", files={"file": ("a.jsonl", LINE)}, data={"purpose": "batch"})
        for reply in (await service.client.get("/v1/files"), await upload):
            assert reply.status_code == 503
            assert 1 <= int(reply.headers["retry-after"]) <= 120
            assert error_of(reply)["type"] == "server_error"
    await database.close()


async def test_database_that_is_locked_is_503_and_the_upload_leaves_nothing(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url, busy_timeout_seconds=0.1)
    other = sqlite3.connect(sqlite_url.partition(":///")[2])
    other.execute("BEGIN IMMEDIATE")
    async with in_process(database, tmp_path / "blobs") as service:
        reply = await service.client.post("/v1/files", files={"file": ("a.jsonl", LINE)}, data={"purpose": "batch"})
        assert reply.status_code == 503
        assert "retry-after" in reply.headers
        assert service.stored() == []
        other.rollback()
        assert (await service.upload())["bytes"] == len(LINE)
    other.close()
    await database.close()


async def test_download_that_breaks_half_way_ends_the_connection(served: Service) -> None:
    """A short body must not look whole: the declared length is not reached."""
    file = await served.upload(LINE * 500_000)
    (path,) = served.stored()
    with path.open("r+b") as stored:
        stored.truncate(20_000_000)
    with structlog.testing.capture_logs() as logs:
        with pytest.raises(httpx2.RemoteProtocolError):
            await served.client.get(f"/v1/files/{file['id']}/content")
        await asyncio.sleep(0.05)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["response_cut_short"]
    (line,) = [line for line in logs if line["event"] == "http_request"]
    assert not line["whole"]


async def test_client_that_leaves_is_no_error(served: Service) -> None:
    url = served.client.base_url
    _, writer = await asyncio.open_connection(url.host, url.port)
    with structlog.testing.capture_logs() as logs:
        writer.write(
            f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 1000\r\n"
            "Content-Type: multipart/form-data; boundary=B\r\n\r\n--B\r\n".encode()
        )
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        await until(lambda: any(line["event"] == "http_request" for line in logs))
    assert [line["event"] for line in logs] == ["client_gone", "http_request"]
