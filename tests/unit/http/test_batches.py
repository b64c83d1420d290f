from __future__ import annotations

from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from app.store.tables import batches as batch_rows
from tests.unit.http.scenes import Service, error_of

BODY = {"input_file_id": "file-unknown", "endpoint": "/v1/embeddings", "completion_window": "24h"}


async def create(client: httpx2.AsyncClient, **more: Any) -> dict[str, Any]:
    reply = await client.post("/v1/batches", json=BODY | more)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


async def test_batch_object_has_every_key(service: Service) -> None:
    file = await service.upload()
    metadata = {"ü": "☃", "": ""}
    body = await create(service.client, input_file_id=file["id"], metadata=metadata)
    assert body == {
        "id": body["id"],
        "object": "batch",
        "endpoint": "/v1/embeddings",
        "model": None,
        "errors": None,
        "input_file_id": file["id"],
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": body["created_at"],
        "in_progress_at": None,
        "expires_at": body["created_at"] + 86_400,
        "finalizing_at": None,
        "completed_at": None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": None,
        "metadata": metadata,
    }
    assert (await service.client.get(f"/v1/batches/{body['id']}")).json() == body


async def test_failed_batch_lists_its_errors(service: Service) -> None:
    body = await create(service.client)
    problem = '[{"code": "invalid_json_line", "message": "m", "param": null, "line": 3}]'
    async with service.database.write() as tx:
        await tx.conn.execute(update(batch_rows).values(status="failed", failed_at=5, errors=problem))
    body = (await service.client.get(f"/v1/batches/{body['id']}")).json()
    assert body["errors"] == {
        "object": "list",
        "data": [{"code": "invalid_json_line", "message": "m", "param": None, "line": 3}],
    }
    assert body["usage"] is None


async def test_finished_batch_shows_its_usage(service: Service) -> None:
    body = await create(service.client)
    counts = {"total": 9, "completed": 5, "failed": 4, "input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    async with service.database.write() as tx:
        await tx.conn.execute(update(batch_rows).values(status="completed", completed_at=5, model="m", **counts))
    body = (await service.client.get(f"/v1/batches/{body['id']}")).json()
    assert body["request_counts"] == {"total": 9, "completed": 5, "failed": 4}
    assert body["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }
    assert body["model"] == "m"


async def test_input_file_of_another_purpose(service: Service) -> None:
    file = await service.upload(purpose="user_data")
    reply = await service.client.post("/v1/batches", json=BODY | {"input_file_id": file["id"]})
    assert reply.status_code == 400
    assert error_of(reply)["param"] == "input_file_id"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        b'{"input_file_id": "a" "b"}',
        b"[" * 100_000,
        b"1" * 5000,
    ],
)
async def test_body_that_is_not_a_json_object(client: httpx2.AsyncClient, content: bytes) -> None:
    reply = await client.post("/v1/batches", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    error = error_of(reply)
    assert error["message"].startswith("We could not parse the JSON body of your request.")
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)


async def test_body_of_another_content_type_is_not_read_as_json(client: httpx2.AsyncClient) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=B"):
        reply = await client.post(
            "/v1/batches",
            content=httpx2.Request("POST", "http://x", json=BODY).content,
            headers={"content-type": content_type},
        )
        assert reply.status_code == 400
        assert error_of(reply)["message"].startswith("We could not parse the JSON body")


@pytest.mark.parametrize(
    "content",
    [
        b'{"input_file_id":"\\ud800","endpoint":"/v1/embeddings","completion_window":"24h"}',
        b'{"input_file_id":"a","endpoint":"\\ud800","completion_window":"24h"}',
        b'{"input_file_id":"a","endpoint":"/v1/embeddings","completion_window":"24h","\\ud800":1}',
        b'{"input_file_id":"a","endpoint":"/v1/embeddings","completion_window":"24h","metadata":{"\\ud800":"a"}}',
        b'{"input_file_id":"a\\u0000","endpoint":"/v1/embeddings","completion_window":"24h"}',
        b'{"input_file_id":"a","endpoint":"/v1/embeddings","completion_window":"24h","metadata":{"\\u0000":"a"}}',
        b'{"input_file_id":NaN,"endpoint":"/v1/embeddings","completion_window":"24h"}',
    ],
)
async def test_characters_that_no_database_keeps(client: httpx2.AsyncClient, content: bytes) -> None:
    reply = await client.post("/v1/batches", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    error_of(reply)
    assert (await client.get("/v1/batches")).json()["data"] == []


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"endpoint": "/v1/invalid"}, "endpoint", "invalid_value"),
        ({"completion_window": "48h"}, "completion_window", "invalid_value"),
        ({"metadata": {"tags": ["a"]}}, "metadata.tags", "invalid_type"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            "output_expires_after.seconds",
            "integer_below_min_value",
        ),
        ({"model": "m"}, "model", "unknown_parameter"),
    ],
)
async def test_bad_parameter(client: httpx2.AsyncClient, change: dict[str, Any], param: str, code: str) -> None:
    reply = await client.post("/v1/batches", json=BODY | change)
    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


async def test_cancel_without_a_body_but_with_its_content_type(client: httpx2.AsyncClient) -> None:
    batch = await create(client)
    headers = {"content-type": "application/json", "content-length": "0"}
    reply = await client.post(f"/v1/batches/{batch['id']}/cancel", headers=headers)
    assert reply.status_code == 200
    assert reply.json()["status"] == "cancelling"
    assert (await client.post(f"/v1/batches/{batch['id']}/cancel", headers=headers)).json() == reply.json()


async def test_cancel_of_a_finished_batch_is_not_to_be_retried(service: Service) -> None:
    batch = await create(service.client)
    async with service.database.write() as tx:
        await tx.conn.execute(update(batch_rows).values(status="completed"))
    reply = await service.client.post(f"/v1/batches/{batch['id']}/cancel")
    assert reply.status_code == 409
    assert reply.headers["x-should-retry"] == "false"
    error = error_of(reply)
    assert error["message"] == "Cannot cancel a batch with status 'completed'."
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)


async def test_unknown_batch(client: httpx2.AsyncClient) -> None:
    for batch_id in ("batch_unknown", "%00", "x" * 200):
        for method, suffix in (("GET", ""), ("POST", "/cancel")):
            reply = await client.request(method, f"/v1/batches/{batch_id}{suffix}")
            assert reply.status_code == 404
            assert error_of(reply)["message"].startswith("No batch found with id '")


async def test_list_pages(client: httpx2.AsyncClient) -> None:
    ids = [(await create(client))["id"] for _ in range(21)]
    page = (await client.get("/v1/batches")).json()
    assert [batch["id"] for batch in page["data"]] == ids[:0:-1]
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", ids[20], ids[1], True)
    page = (await client.get("/v1/batches", params={"after": ids[1], "limit": 100})).json()
    assert ([batch["id"] for batch in page["data"]], page["has_more"]) == ([ids[0]], False)


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=101", "limit", "integer_above_max_value"),
        ("limit=abc", "limit", "invalid_type"),
        ("limit=1&limit=2", "limit", "invalid_value"),
        ("after=batch_unknown", "after", None),
    ],
)
async def test_list_with_a_bad_query(client: httpx2.AsyncClient, query: str, param: str, code: str | None) -> None:
    reply = await client.get(f"/v1/batches?{query}")
    assert reply.status_code == 400
    error = error_of(reply)
    assert (error["param"], error["code"]) == (param, code)
