from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.http import body as body_module
from app.http.multipart import OVERHEAD_MAX_BYTES
from app.store.db import Database
from tests.unit.http.scenes import LINE, Service, error_of, in_process, until

ORDER = {"filename": "a.jsonl", "purpose": "evals", "mime_type": "text/plain"}


async def create(client: httpx2.AsyncClient, size: int, **changes: Any) -> str:
    reply = await client.post("/v1/uploads", json=ORDER | {"bytes": size} | changes)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


async def add(client: httpx2.AsyncClient, upload_id: str, data: bytes) -> httpx2.Response:
    return await client.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("upload", data)})


async def test_part_is_not_held_to_the_limit_of_json_bodies(sqlite_database: Database, tmp_path: Path) -> None:
    server = {"json_body_max_bytes": 2048, "api_keys": ["sk-the-right-key-0123456789"]}
    async with in_process(sqlite_database, tmp_path / "blobs", server=server) as service:
        upload_id = await create(service.client, 100_000)
        part = await add(service.client, upload_id, b"x" * 100_000)
        assert part.status_code == 200
        many = {"part_ids": ["part_" + "0" * 32] * 100}
        reply = await service.client.post(f"/v1/uploads/{upload_id}/complete", json=many)
        assert reply.status_code == 413
        done = await service.client.post(f"/v1/uploads/{upload_id}/complete", json={"part_ids": [part.json()["id"]]})
        assert done.json()["file"]["bytes"] == 100_000


async def test_part_above_its_limit(sqlite_database: Database, tmp_path: Path) -> None:
    async with in_process(sqlite_database, tmp_path / "blobs", limits={"upload_part_max_bytes": 1024}) as service:
        upload_id = await create(service.client, 5000)
        for size in (1025, 1024 + OVERHEAD_MAX_BYTES):
            error = error_of(await add(service.client, upload_id, b"x" * size))
            assert (error["message"], error["param"]) == ("File is too large.", "data")
        assert service.stored() == []
        assert (await add(service.client, upload_id, b"x" * 1024)).status_code == 200


async def test_part_for_a_closed_upload_is_refused_before_it_is_read(service: Service) -> None:
    upload_id = await create(service.client, 5)
    await service.client.post(f"/v1/uploads/{upload_id}/cancel")
    pulled = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal pulled
        while True:
            pulled += 1
            yield bytes(1 << 16)

    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/v1/uploads/{upload_id}/parts",
        "raw_path": b"",
        "query_string": b"",
        "headers": [
            (b"authorization", b"Bearer sk-the-right-key-0123456789"),
            (b"content-type", b"multipart/form-data; boundary=b"),
            (b"content-length", b"60000000"),
        ],
    }
    pieces = body()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": await anext(pieces), "more_body": True}

    async def collect(message: Any) -> None:
        sent.append(message)

    await service.asgi(scope, receive, collect)
    assert sent[0]["status"] == 400
    assert pulled == 0


async def test_client_that_falls_silent_is_given_up(served: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    upload_id = await create(served.client, 50)
    monkeypatch.setattr(body_module, "_SILENCE_MAX_SECONDS", 0.2)

    async def body() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="data"; filename="upload"\r\n\r\n' + LINE
        await asyncio.sleep(2)

    reply = await served.client.post(
        f"/v1/uploads/{upload_id}/parts",
        content=body(),
        headers={"content-type": "multipart/form-data; boundary=b"},
    )
    assert reply.status_code == 400
    await until(lambda: not served.stored())


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "part_ids", "missing_required_parameter"),
        ({"part_ids": "part_1"}, "part_ids", "invalid_type"),
        ({"part_ids": [1]}, "part_ids.0", "invalid_type"),
        ({"part_ids": ["a\0"]}, "part_ids.0", "invalid_value"),
        ({"part_ids": [], "md5": 5}, "md5", "invalid_type"),
        ({"part_ids": [], "sha256": "x"}, "sha256", "unknown_parameter"),
    ],
)
async def test_body_of_complete(service: Service, body: dict[str, Any], param: str, code: str) -> None:
    upload_id = await create(service.client, 5)
    reply = await service.client.post(f"/v1/uploads/{upload_id}/complete", json=body)
    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["param"], error["code"]) == (param, code)


async def test_there_is_no_way_to_look_at_an_upload(service: Service) -> None:
    upload_id = await create(service.client, 5)
    assert (await service.client.get("/v1/uploads")).status_code == 405
    assert (await service.client.get(f"/v1/uploads/{upload_id}")).status_code == 404
    assert (await service.client.get(f"/v1/uploads/{upload_id}/parts")).status_code == 405
