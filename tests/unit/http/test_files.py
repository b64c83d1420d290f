from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import httpx2
import pytest

from app.http import body as body_module
from app.store.db import Database
from tests.unit.http.scenes import KEY, LINE, Service, error_of, in_process, until

CONTENT_TYPE = {"content-type": "multipart/form-data; boundary=B"}
FILE = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + LINE + b"\r\n"
END = b"--B--\r\n"


def field(name: str, value: str) -> bytes:
    return f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


PURPOSE = field("purpose", "batch")


async def send(client: httpx2.AsyncClient, *parts: bytes) -> httpx2.Response:
    return await client.post("/v1/files", content=b"".join(parts), headers=CONTENT_TYPE)


async def test_file_object_has_every_key(service: Service) -> None:
    body = await service.upload(name="naïve ☃.jsonl")
    assert body == {
        "id": body["id"],
        "object": "file",
        "bytes": len(LINE),
        "created_at": body["created_at"],
        "expires_at": body["created_at"] + 2_592_000,
        "filename": "naïve ☃.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    assert (await service.client.get(f"/v1/files/{body['id']}")).json() == body


async def test_upload_with_the_file_first(client: httpx2.AsyncClient) -> None:
    reply = await send(client, FILE, PURPOSE, END)
    assert reply.status_code == 200
    assert reply.json()["bytes"] == len(LINE)


async def test_upload_with_expiry(client: httpx2.AsyncClient) -> None:
    for seconds in (3600, 2_592_000):
        expiry = field("expires_after[seconds]", str(seconds)) + field("expires_after[anchor]", "created_at")
        body = (await send(client, PURPOSE, expiry, FILE, END)).json()
        assert body["expires_at"] == body["created_at"] + seconds


async def test_other_purpose_does_not_expire(service: Service) -> None:
    assert (await service.upload(purpose="user_data", name="a.txt"))["expires_at"] is None


ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
ANCHORED = field(ANCHOR, "created_at")


@pytest.mark.parametrize(
    ("parts", "param", "code"),
    [
        ((PURPOSE,), "file", "missing_required_parameter"),
        ((FILE,), "purpose", "missing_required_parameter"),
        ((), "file", "missing_required_parameter"),
        ((field("purpose", "vector_store"), FILE), "purpose", None),
        ((field("purpose", ""), FILE), "purpose", None),
        ((PURPOSE, PURPOSE, FILE), "purpose", "invalid_value"),
        ((PURPOSE, FILE, FILE), "file", "invalid_value"),
        ((PURPOSE, field("foo", "1"), FILE), "foo", "unknown_parameter"),
        ((PURPOSE, FILE.replace(b'"file"', b'"foo"')), "foo", "unknown_parameter"),
        ((PURPOSE, field("file", "text")), "file", "invalid_type"),
        ((FILE.replace(b'"file"', b'"purpose"'),), "purpose", "invalid_type"),
        ((PURPOSE, FILE.replace(b"a.jsonl", b"notes.txt")), None, None),
        ((FILE.replace(b"a.jsonl", b"notes.txt"), PURPOSE), None, None),
        ((PURPOSE, ANCHORED, field(SECONDS, "3599"), FILE), SECONDS, "integer_below_min_value"),
        ((PURPOSE, ANCHORED, field(SECONDS, "2592001"), FILE), SECONDS, "integer_above_max_value"),
        ((PURPOSE, ANCHORED, field(SECONDS, "-1"), FILE), SECONDS, "integer_below_min_value"),
        ((PURPOSE, ANCHORED, field(SECONDS, "1e4"), FILE), SECONDS, "invalid_type"),
        ((PURPOSE, ANCHORED, field(SECONDS, "3600.0"), FILE), SECONDS, "invalid_type"),
        ((PURPOSE, ANCHORED, field(SECONDS, "²"), FILE), SECONDS, "invalid_type"),
        ((PURPOSE, ANCHORED, field(SECONDS, ""), FILE), SECONDS, "invalid_type"),
        ((PURPOSE, field(ANCHOR, "foo"), field(SECONDS, "3600"), FILE), ANCHOR, "invalid_value"),
        ((PURPOSE, ANCHORED, FILE), SECONDS, "missing_required_parameter"),
        ((PURPOSE, field(SECONDS, "3600"), FILE), ANCHOR, "missing_required_parameter"),
        ((PURPOSE, FILE.replace(LINE, b"")), None, None),
        ((PURPOSE, FILE.replace(LINE, b"not json")), None, None),
        ((PURPOSE, FILE.replace(b"a.jsonl", b"\xff.jsonl")), None, None),
    ],
)
async def test_bad_form_is_refused_and_leaves_nothing(
    service: Service, parts: tuple[bytes, ...], param: str | None, code: str | None
) -> None:
    reply = await send(service.client, *parts, END)
    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert service.stored() == []
    assert (await service.client.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize("cut", [1, 40, 90, len(PURPOSE) + len(FILE) - 3, len(PURPOSE) + len(FILE) + 3])
async def test_half_a_form_is_refused_and_leaves_nothing(service: Service, cut: int) -> None:
    reply = await send(service.client, (PURPOSE + FILE + END)[:cut])
    assert reply.status_code == 400
    error_of(reply)
    assert service.stored() == []


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", "text/plain; boundary=B"])
async def test_other_content_type(service: Service, content_type: str) -> None:
    reply = await service.client.post("/v1/files", content=PURPOSE + FILE + END, headers={"content-type": content_type})
    assert reply.status_code == 400
    error_of(reply)


async def test_refusal_comes_before_the_rest_of_the_body_is_read(service: Service) -> None:
    pulled = 0

    async def body() -> AsyncGenerator[bytes]:
        nonlocal pulled
        yield field("purpose", "nonsense") + FILE
        for _ in range(100):
            pulled += 1
            yield bytes(1000)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/files",
        "query_string": b"",
        "headers": [
            (b"content-type", CONTENT_TYPE["content-type"].encode()),
            (b"content-length", b"100000"),
            (b"authorization", f"Bearer {KEY}".encode()),
        ],
    }
    pieces = body()
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": await anext(pieces), "more_body": True}

    async def collect(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message)

    await service.asgi(scope, receive, collect)
    await pieces.aclose()
    assert sent[0]["status"] == 400
    assert pulled == 0


async def test_file_above_its_limit(sqlite_database: Database, tmp_path: Path) -> None:
    limits = {"batch_file_max_bytes": 1000, "file_max_bytes": 2000}
    async with in_process(sqlite_database, tmp_path / "blobs", limits=limits) as service:
        data = LINE.ljust(1000, b"\n")
        assert (await service.upload(data))["bytes"] == 1000
        for parts in ((PURPOSE, FILE.replace(LINE, data + b"\n")), (FILE.replace(LINE, data + b"\n"), PURPOSE)):
            reply = await send(service.client, *parts, END)
            assert reply.status_code == 400
            assert error_of(reply)["message"] == "File is too large."
        reply = await send(service.client, PURPOSE, FILE.replace(LINE, bytes(1_000_000)), END)
        assert reply.status_code == 413
        assert error_of(reply)["message"].startswith("Request Entity Too Large")
        assert len(service.stored()) == 1


async def test_client_that_leaves_half_way_leaves_nothing(served: Service) -> None:
    url = served.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: {CONTENT_TYPE['content-type']}\r\nContent-Length: 99000000\r\n\r\n"
    )
    writer.write(head.encode() + PURPOSE + FILE[:-2] + LINE * 100_000)
    await writer.drain()
    await until(lambda: bool(served.stored()))
    writer.close()
    await until(lambda: not served.stored())
    assert await reader.read() == b""
    assert (await served.client.get("/v1/files")).json()["data"] == []


async def test_client_that_falls_silent_is_given_up(served: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "_SILENCE_MAX_SECONDS", 0.2)

    async def body() -> AsyncIterator[bytes]:
        yield PURPOSE + FILE
        await asyncio.sleep(2)

    reply = await served.client.post("/v1/files", content=body(), headers=CONTENT_TYPE)
    assert reply.status_code == 400
    assert served.stored() == []


async def test_content_is_the_same_bytes(service: Service) -> None:
    data = LINE + bytes(range(256)) + b"\r\n" + os.urandom(3_000_000)
    file = await service.upload(data)
    reply = await service.client.get(f"/v1/files/{file['id']}/content", headers={"accept": "application/json"})
    assert reply.content == data
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["content-length"] == str(len(data))
    assert reply.headers["x-request-id"].startswith("req_")


async def test_content_of_an_empty_file(service: Service) -> None:
    file = await service.upload(b"", purpose="vision", name="empty")
    reply = await service.client.get(f"/v1/files/{file['id']}/content")
    assert (reply.status_code, reply.content, reply.headers["content-length"]) == (200, b"", "0")


async def test_content_by_range(service: Service) -> None:
    file = await service.upload()
    url = f"/v1/files/{file['id']}/content"
    whole = await service.client.get(url)
    reply = await service.client.get(url, headers={"range": "bytes=2-10", "if-range": whole.headers["etag"]})
    assert (reply.status_code, reply.content) == (206, LINE[2:11])
    assert reply.headers["content-range"] == f"bytes 2-10/{len(LINE)}"
    assert reply.headers["content-length"] == "9"
    outside = await service.client.get(url, headers={"range": "bytes=1000-"})
    assert outside.status_code == 416
    assert outside.headers["content-range"] == f"bytes */{len(LINE)}"
    error_of(outside)


async def test_head_gives_the_headers_of_get(service: Service) -> None:
    file = await service.upload()
    for url in (f"/v1/files/{file['id']}", f"/v1/files/{file['id']}/content"):
        got, headed = await service.client.get(url), await service.client.head(url)
        assert headed.status_code == 200
        assert headed.headers["content-length"] == got.headers["content-length"]
    assert (await service.client.head("/v1/files/nope")).status_code == 404


async def test_content_of_a_forbidden_purpose(service: Service) -> None:
    file = await service.upload(purpose="user_data")
    reply = await service.client.get(f"/v1/files/{file['id']}/content")
    assert reply.status_code == 400
    assert error_of(reply)["message"] == "Not allowed to download files of purpose: user_data"


async def test_content_whose_blob_is_lost_is_a_500_in_the_envelope(service: Service) -> None:
    file = await service.upload()
    service.stored()[0].unlink()
    reply = await service.client.get(f"/v1/files/{file['id']}/content")
    assert reply.status_code == 500
    assert error_of(reply)["message"] == "The server had an error while processing your request."


async def test_reader_that_leaves_half_way_frees_its_file(served: Service) -> None:
    file = await served.upload(LINE * 500_000)
    (path,) = served.stored()

    def opened() -> list[str]:
        links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [str(link) for link in links if link == path]

    async with served.client.stream("GET", f"/v1/files/{file['id']}/content") as reply:
        await anext(reply.aiter_bytes())
        assert opened()
    await until(lambda: not opened())


@pytest.mark.parametrize("file_id", ["file-unknown", "%00", "a%20b", "x" * 200, "%ff"])
async def test_unknown_file(client: httpx2.AsyncClient, file_id: str) -> None:
    for method, suffix in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        reply = await client.request(method, f"/v1/files/{file_id}{suffix}")
        assert reply.status_code == 404
        error = error_of(reply)
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "id", None)
        assert error["message"].startswith("No such File object: ")


async def test_delete_once(service: Service) -> None:
    file = await service.upload()
    reply = await service.client.delete(f"/v1/files/{file['id']}", headers={"content-type": "application/json"})
    assert reply.json() == {"id": file["id"], "object": "file", "deleted": True}
    assert (await service.client.delete(f"/v1/files/{file['id']}")).status_code == 404


async def test_list_pages(service: Service) -> None:
    ids = [(await service.upload())["id"] for _ in range(5)]
    page = (await service.client.get("/v1/files")).json()
    assert [file["id"] for file in page["data"]] == ids[::-1]
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", ids[4], ids[0], False)
    page = (await service.client.get("/v1/files", params={"limit": 2, "order": "asc", "after": ids[0]})).json()
    assert [file["id"] for file in page["data"]] == ids[1:3]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[1], ids[2], True)
    page = (await service.client.get("/v1/files", params={"purpose": "evals", "unknown": "x"})).json()
    assert page == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=-1", "limit", "integer_below_min_value"),
        ("limit=10001", "limit", "integer_above_max_value"),
        ("limit=abc", "limit", "invalid_type"),
        ("limit=", "limit", "invalid_type"),
        ("limit=1.0", "limit", "invalid_type"),
        ("limit=1_0", "limit", "invalid_type"),
        ("limit=%201", "limit", "invalid_type"),
        ("limit=" + "9" * 5000, "limit", "invalid_type"),
        ("limit=1&limit=1", "limit", "invalid_value"),
        ("order=foo", "order", "invalid_value"),
        ("order=ASC", "order", "invalid_value"),
        ("after=file-unknown", "after", None),
        ("after=", "after", None),
        ("after=%00", "after", None),
        ("after=%ff", "after", None),
        ("after=a&after=b", "after", "invalid_value"),
    ],
)
async def test_list_with_a_bad_query(client: httpx2.AsyncClient, query: str, param: str, code: str | None) -> None:
    reply = await client.get(f"/v1/files?{query}")
    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
