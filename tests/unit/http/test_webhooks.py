from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.unit.http.scenes import error_of

PATH = "/v1/webhook_endpoints"
BODY: dict[str, Any] = {
    "name": "mine",
    "url": "https://example.com/hook",
    "event_types": ["batch.completed", "batch.failed"],
}
TYPES = ["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]


async def make(client: httpx2.AsyncClient, **changes: Any) -> dict[str, Any]:
    reply = await client.post(PATH, json=BODY | changes)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


async def test_life_of_an_endpoint(client: httpx2.AsyncClient) -> None:
    made = await make(client)
    secret = made.pop("signing_secret")
    assert made == {
        "id": made["id"],
        "object": "webhook_endpoint",
        "created_at": made["created_at"],
        "updated_at": made["created_at"],
        **BODY,
        "signing_secret_hint": f"whsec_********{secret[-5:-1]}",
    }
    assert made["id"].startswith("whe_")
    path = f"{PATH}/{made['id']}"
    assert (await client.get(path)).json() == made
    assert (await client.head(path)).status_code == 200
    changed = (await client.post(path, json={"name": "other"})).json()
    assert changed == made | {"name": "other", "updated_at": changed["updated_at"]}
    rotated = (await client.post(f"{path}/rotate_secret", json={})).json()
    assert rotated["signing_secret"] not in (secret, None)
    assert {**changed, **rotated} == rotated
    gone = await client.delete(path)
    assert gone.json() == {"id": made["id"], "object": "webhook_endpoint.deleted", "deleted": True}
    for reply in (await client.get(path), await client.delete(path), await client.post(path, json={})):
        assert reply.status_code == 404
        assert error_of(reply)["type"] == "invalid_request_error"


async def test_rotate_without_a_body(client: httpx2.AsyncClient) -> None:
    made = await make(client)
    reply = await client.post(f"{PATH}/{made['id']}/rotate_secret")
    assert reply.status_code == 200, reply.text
    assert reply.json()["signing_secret"] != made["signing_secret"]


async def test_list_pages_newest_first(client: httpx2.AsyncClient) -> None:
    empty = (await client.get(PATH)).json()
    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    ids = [(await make(client, name=str(number)))["id"] for number in range(3)][::-1]
    page = (await client.get(PATH, params={"limit": 2})).json()
    assert [one["id"] for one in page["data"]] == ids[:2]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[1], True)
    rest = (await client.get(PATH, params={"limit": 2, "after": ids[1]})).json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (ids[2:], False)
    assert "signing_secret" not in str(page["data"][0].keys() - {"signing_secret_hint"})


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=101", "limit", "integer_above_max_value"),
        ("after=whe_none", "after", None),
        ("after=no%20id", "after", None),
    ],
)
async def test_list_refuses_bad_parameters(
    client: httpx2.AsyncClient, query: str, param: str, code: str | None
) -> None:
    reply = await client.get(f"{PATH}?{query}")
    assert reply.status_code == 400
    assert (error_of(reply)["param"], error_of(reply)["code"]) == (param, code)


BAD = [
    ({"url": "http://example.com/"}, "url"),
    ({"url": "https://127.0.0.1/"}, "url"),
    ({"url": "https://example.com/" + "a" * 2048}, "url"),
    ({"url": "https://example.com/\0"}, "url"),
    ({"url": 5}, "url"),
    ({"name": ""}, "name"),
    ({"name": "a" * 257}, "name"),
    ({"name": "\0"}, "name"),
    ({"event_types": []}, "event_types"),
    ({"event_types": "batch.completed"}, "event_types"),
    ({"event_types": ["response.completed"]}, "event_types.0"),
    ({"event_types": ["batch.failed", 1]}, "event_types.1"),
    ({"secret": "mine"}, "secret"),
]


@pytest.mark.parametrize(("change", "param"), BAD, ids=lambda value: str(value)[:40])
async def test_create_and_change_refuse_bad_fields(
    client: httpx2.AsyncClient, change: dict[str, Any], param: str
) -> None:
    made = await make(client)
    for path, body in ((PATH, BODY | change), (f"{PATH}/{made['id']}", change)):
        reply = await client.post(path, json=body)
        assert reply.status_code == 400, reply.text
        assert error_of(reply)["param"] == param


async def test_event_type_of_another_service_is_told_the_four(client: httpx2.AsyncClient) -> None:
    reply = await client.post(PATH, json=BODY | {"event_types": ["response.completed"]})
    for name in TYPES:
        assert name in error_of(reply)["message"]


@pytest.mark.parametrize("missing", ["name", "url", "event_types"])
async def test_create_needs_every_field(client: httpx2.AsyncClient, missing: str) -> None:
    reply = await client.post(PATH, json={name: value for name, value in BODY.items() if name != missing})
    assert reply.status_code == 400
    assert error_of(reply)["code"] == "missing_required_parameter"


async def test_event_types_are_the_four_of_batches(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/v1/webhook_event_types")).json() == {"object": "list", "data": TYPES}


async def test_test_refuses_another_event_type_and_an_unreachable_receiver(client: httpx2.AsyncClient) -> None:
    made = await make(client, url="https://receiver.invalid/")
    path = f"{PATH}/{made['id']}/test"
    reply = await client.post(path, json={"event_type": "eval.run.failed"})
    assert (reply.status_code, error_of(reply)["param"]) == (400, "event_type")
    reply = await client.post(path, json={"event_type": "batch.failed"})
    assert reply.status_code == 400
    assert error_of(reply)["code"] == "webhook_test_failed"


@pytest.mark.parametrize("path", [PATH, f"{PATH}/whe_1", "/v1/webhook_event_types"])
async def test_no_call_without_a_key(client: httpx2.AsyncClient, path: str) -> None:
    reply = await client.get(path, headers={"authorization": ""})
    assert reply.status_code == 401
