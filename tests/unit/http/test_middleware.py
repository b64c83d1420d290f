from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import openai
import pytest
import structlog

from app.http import middleware as module
from app.store.db import Database
from tests.unit.http.scenes import KEY, LINE, Service, error_of, in_process, on_a_socket

NO_KEY = "You didn't provide an API key."


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", KEY, "Bearer\t" + KEY])
async def test_no_key(service: Service, header: str | None) -> None:
    client = service.client
    del client.headers["authorization"]
    for method, url in (("GET", "/v1/files"), ("POST", "/v1/files"), ("GET", "/v1/nothing"), ("GET", "/v1")):
        reply = await client.request(method, url, headers={} if header is None else {"authorization": header})
        assert reply.status_code == 401
        error = error_of(reply)
        assert error["message"].startswith(NO_KEY)
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", ["x", KEY + "x", KEY[:-1], KEY.upper(), "sk-\xe9\xff", "\x80" * 40])
async def test_wrong_key(service: Service, key: str) -> None:
    reply = await service.client.get("/v1/files", headers={b"authorization": b"Bearer " + key.encode("latin-1")})
    assert reply.status_code == 401
    error = error_of(reply)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_api_key")
    assert error["message"].startswith("Incorrect API key provided: ")
    assert key not in error["message"]


async def test_two_authorization_headers_are_none(service: Service) -> None:
    headers = [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer x")]
    async with httpx2.AsyncClient(transport=service.client._transport, base_url="http://x") as client:
        assert (await client.get("/v1/files", headers=headers)).status_code == 401


async def test_any_configured_key_and_any_spelling_of_bearer(sqlite_database: Database, tmp_path: Path) -> None:
    server = {"api_keys": ["one", "two"]}
    async with in_process(sqlite_database, tmp_path / "blobs", server=server) as service:
        for header in ("Bearer one", "bearer two", "BEARER  two "):
            reply = await service.client.get("/v1/files", headers={"authorization": header})
            assert reply.status_code == 200


async def test_without_any_key_none_is_asked_for(sqlite_database: Database, tmp_path: Path) -> None:
    async with in_process(sqlite_database, tmp_path / "blobs", server={}) as service:
        assert (await service.client.get("/v1/files")).status_code == 200
        del service.client.headers["authorization"]
        assert (await service.client.get("/v1/files")).status_code == 200


async def test_wrong_key_is_refused_before_the_body_is_touched(service: Service) -> None:
    async def receive() -> dict[str, object]:
        raise AssertionError("the body was asked for")

    sent: list[dict[str, object]] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message)

    headers = [(b"content-length", b"50000000"), (b"content-type", b"multipart/form-data; boundary=B")]
    scope = {"type": "http", "method": "POST", "path": "/v1/files", "query_string": b"", "headers": headers}
    await service.asgi(scope, receive, send)
    assert sent[0]["status"] == 401


async def test_sdk_with_a_wrong_key_and_a_large_file_sees_the_refusal(served: Service) -> None:
    data = LINE * (50_000_000 // len(LINE))
    async with openai.AsyncOpenAI(api_key="wrong", base_url=f"{served.client.base_url}/v1", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.files.create(file=("a.jsonl", data), purpose="batch")
    assert caught.value.code == "invalid_api_key"
    assert caught.value.request_id is not None
    assert served.stored() == []
    assert (await served.client.get("/v1/files")).json()["data"] == []


async def test_refused_body_without_a_declared_length_is_drained_then_the_connection_ends(served: Service) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(300):
            yield bytes(100_000)

    for _ in range(2):
        reply = await served.client.post("/v1/files", content=body(), headers={"authorization": "Bearer wrong"})
        assert reply.status_code == 401
        assert reply.headers["connection"] == "close"


async def test_endless_body_is_cut_off(sqlite_database: Database, tmp_path: Path) -> None:
    limits = {"batch_file_max_bytes": 1000, "file_max_bytes": 1_000_000}
    async with on_a_socket(sqlite_database, tmp_path / "blobs", limits=limits) as served:
        url = served.client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")  # at once, not when the body ends
        written = 0

        async def write() -> None:
            nonlocal written
            while written < 200_000_000:
                writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
                await writer.drain()
                written += 65_536

        with pytest.raises(ConnectionError):
            await write()
        assert 900_000 <= written < 20_000_000
        writer.close()


async def test_slow_endless_body_is_cut_off(served: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DRAIN_SECONDS", 0.2)
    url = served.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
    async with asyncio.timeout(5):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 401 ")
    writer.close()


async def test_connection_lives_on_after_a_refused_body_of_known_length(served: Service) -> None:
    """Two requests on one connection: the second is not mistaken for a part of the first one's body."""
    url = served.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
        writer.write(bytes(1_000_000) + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        rest = await reader.read()
    assert b"HTTP/1.1 200 OK" in rest
    assert rest.endswith(b'{"status":"ok"}')
    writer.close()


@pytest.mark.parametrize("declared", [True, False])
async def test_json_body_above_its_limit(service: Service, declared: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    content = b" " * 2_000_000 if declared else body()
    reply = await service.client.post("/v1/batches", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 413
    assert error_of(reply)["message"].startswith("Request Entity Too Large")


async def test_every_response_is_named_timed_and_versioned(service: Service) -> None:
    seen = set()
    for method, url in (
        ("GET", "/v1/files"),
        ("GET", "/health"),
        ("GET", "/v1/x"),
        ("PATCH", "/v1/files"),
        ("GET", "/metrics"),
    ):
        reply = await service.client.request(method, url)
        seen.add(reply.headers["x-request-id"])
        assert float(reply.headers["openai-processing-ms"]) >= 0
        assert reply.headers["openai-version"] == "2020-10-01"
    assert len(seen) == 5


async def test_headers_of_the_sdk_are_accepted(client: httpx2.AsyncClient) -> None:
    headers = {"openai-organization": "org", "openai-project": "proj", "x-stainless-retry-count": "2"}
    assert (await client.get("/v1/files", headers=headers)).status_code == 200


async def test_one_log_line_a_request_without_key_or_query(service: Service) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        reply = await service.client.get("/v1/files/file-1?secret=query")
    (line,) = [entry for entry in logs if entry["event"] == "http_request"]
    assert line["request_id"] == reply.headers["x-request-id"]
    assert (line["method"], line["path"], line["status"], line["whole"]) == ("GET", "/v1/files/file-1", 404, True)
    assert line["bytes_out"] == len(reply.content)
    written = json.dumps(logs, default=str)
    assert KEY not in written
    assert "query" not in written


async def test_request_id_does_not_stick_to_the_task(service: Service) -> None:
    await service.client.get("/v1/files")
    assert "request_id" not in structlog.contextvars.get_contextvars()


async def test_uvicorn_itself_has_nothing_to_complain_about(served: Service, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for method, url in (
            ("GET", "/v1/files"),
            ("HEAD", "/health"),
            ("POST", "/v1/batches"),
            ("OPTIONS", "/v1/files"),
        ):
            await served.client.request(method, url)
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
