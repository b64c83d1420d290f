"""Checklist of openai-contract 9, lists of files: items 33-40."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import httpx2
import openai
import pytest

from tests.acceptance.batch import upload
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.wire import refusal

LINE = b'{"custom_id": "a"}\n'


@pytest.fixture
def empty(start_server: StartServer) -> Server:
    """A server without a file."""
    return start_server()


@pytest.fixture
def requests() -> list[httpx2.Request]:
    return []


@pytest.fixture
def lister(empty: Server, requests: list[httpx2.Request]) -> Generator[openai.OpenAI]:
    """A client of the empty server that notes its requests."""
    with httpx2.Client(event_hooks={"request": [requests.append]}) as plain, empty.sdk(http_client=plain) as client:
        yield client


def _five(client: openai.OpenAI) -> list[str]:
    """Ids of five files, oldest first."""
    return [upload(client, LINE, name=f"{number}.jsonl").id for number in range(5)]


def test_item_33_newest_first_and_asc_reverses(empty: Server, lister: openai.OpenAI) -> None:
    ids = _five(lister)
    with empty.database() as rows:
        for number, file_id in enumerate(ids):
            rows.execute("UPDATE files SET created_at = created_at + ? WHERE id = ?", (number, file_id))
    assert [file.id for file in lister.files.list()] == ids[::-1]
    assert [file.id for file in lister.files.list(order="desc")] == ids[::-1]
    assert [file.id for file in lister.files.list(order="asc")] == ids
    with empty.http() as http:
        error = refusal(http.get("/v1/files", params={"order": "sideways"}), 400, type="invalid_request_error")
    assert error["param"] == "order"


def test_item_34_purpose_filter(client: openai.OpenAI, http: httpx2.Client) -> None:
    batch = upload(client, LINE)
    data = client.files.create(file=("notes.txt", b"hello"), purpose="user_data")
    assert {file.purpose for file in client.files.list(purpose="user_data")} == {"user_data"}
    assert data.id in [file.id for file in client.files.list(purpose="user_data")]
    assert batch.id in [file.id for file in client.files.list(purpose="batch", limit=10)]
    assert http.get("/v1/files", params={"purpose": "nonsense"}).json()["data"] == []


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("0", "integer_below_min_value"),
        ("-1", "integer_below_min_value"),
        ("10001", "integer_above_max_value"),
        ("9" * 60, "integer_above_max_value"),
        ("abc", "invalid_type"),
        ("1.5", "invalid_type"),
        ("", "invalid_type"),
    ],
)
def test_item_35_limit_out_of_bounds_is_400(http: httpx2.Client, limit: str, code: str) -> None:
    reply = http.get("/v1/files", params={"limit": limit})
    refusal(reply, 400, type="invalid_request_error", param="limit", code=code)


@pytest.mark.parametrize("limit", [1, 10_000])
def test_item_35_limits_of_the_range_are_accepted(http: httpx2.Client, limit: int) -> None:
    assert http.get("/v1/files", params={"limit": limit}).status_code == 200


def test_item_36_iterating_with_limit_two_takes_three_requests(
    lister: openai.OpenAI, requests: list[httpx2.Request]
) -> None:
    ids = _five(lister)
    requests.clear()
    assert [file.id for file in lister.files.list(limit=2, purpose="batch")] == ids[::-1]
    assert len(requests) == 3
    assert [request.url.params.get("after") for request in requests] == [None, ids[3], ids[1]]
    assert all(request.url.params["purpose"] == "batch" for request in requests)


def test_item_37_first_and_last_id_match_and_has_more_ends(empty: Server, lister: openai.OpenAI) -> None:
    ids = _five(lister)[::-1]
    with empty.http() as http:
        pages = [
            http.get("/v1/files", params={"limit": 2} | ({"after": after} if after else {})).json()
            for after in (None, ids[1], ids[3])
        ]
        full = http.get("/v1/files", params={"limit": 5}).json()
    for page, expected in zip(pages, (ids[:2], ids[2:4], ids[4:]), strict=True):
        assert set(page) == {"object", "data", "first_id", "last_id", "has_more"}
        assert page["object"] == "list"
        assert [file["id"] for file in page["data"]] == expected
        assert (page["first_id"], page["last_id"]) == (expected[0], expected[-1])
    assert [page["has_more"] for page in pages] == [True, True, False]
    assert len(full["data"]) == 5
    assert full["has_more"] is False


def test_item_38_an_empty_list_has_null_ids(empty: Server) -> None:
    with empty.http() as http:
        for path in ("/v1/files", "/v1/batches"):
            expected: dict[str, Any] = {
                "object": "list",
                "data": [],
                "first_id": None,
                "last_id": None,
                "has_more": False,
            }
            assert http.get(path).json() == expected


def test_item_38_an_unknown_after_is_400(http: httpx2.Client) -> None:
    """[I]: refused, so that a client's slip does not look like the end of the list."""
    for path in ("/v1/files", "/v1/batches"):
        for after in ("file-unknown", "", "%00", "x" * 300):
            reply = http.get(path, params={"after": after})
            refusal(reply, 400, type="invalid_request_error", param="after")


def test_item_38_the_id_of_a_deleted_file_still_positions(lister: openai.OpenAI) -> None:
    """A client that deletes what it lists goes on paging."""
    ids = _five(lister)[::-1]
    lister.files.delete(ids[1])
    assert [file.id for file in lister.files.list(after=ids[1])] == ids[2:]


def test_item_39_an_expired_file_is_gone(server: Server, client: openai.OpenAI) -> None:
    file = upload(client, LINE)
    with server.database() as rows:
        changed = rows.execute("UPDATE files SET expires_at = ? WHERE id = ?", (int(time.time()) - 1, file.id))
        assert changed.rowcount == 1
    assert file.id not in [item.id for item in client.files.list(limit=50)]
    for get in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            get(file.id)
        assert caught.value.param == "id"


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_item_40_files_of_one_second_paginate_without_loss(empty: Server, lister: openai.OpenAI, order: Any) -> None:
    ids = [upload(lister, LINE).id for _ in range(11)]
    with empty.database() as rows:
        rows.execute("UPDATE files SET created_at = (SELECT min(created_at) FROM files)")
    found = [file.id for file in lister.files.list(limit=3, order=order)]
    assert found == sorted(ids, reverse=order == "desc")
