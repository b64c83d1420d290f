"""`Idempotency-Key`: a create call repeated with its key makes nothing new, whatever happened to the first answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx2
import openai
import pytest

from tests.acceptance.batch import CHAT, chat, jsonl, refused, run
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.wire import refusal

LINE = b'{"custom_id": "a"}\n'
MIME = "application/jsonl"

Call = Callable[[httpx2.Client, str], httpx2.Response]


def create_file(http: httpx2.Client, key: str, *, data: bytes = LINE, **fields: str) -> httpx2.Response:
    return http.post(
        "/v1/files",
        files={"file": ("a.jsonl", data)},
        data={"purpose": "batch"} | fields,
        headers={"Idempotency-Key": key},
    )


def create_batch(http: httpx2.Client, key: str, **changes: Any) -> httpx2.Response:
    body = {"input_file_id": "file-unknown", "endpoint": CHAT, "completion_window": "24h"} | changes
    return http.post("/v1/batches", json=body, headers={"Idempotency-Key": key})


def create_upload(http: httpx2.Client, key: str, **changes: Any) -> httpx2.Response:
    body = {"filename": "a.jsonl", "purpose": "batch", "mime_type": MIME, "bytes": len(LINE)} | changes
    return http.post("/v1/uploads", json=body, headers={"Idempotency-Key": key})


CREATES = pytest.mark.parametrize("create", [create_file, create_batch, create_upload], ids=lambda call: call.__name__)
OTHERS: dict[Any, list[dict[str, Any]]] = {
    create_file: [{"data": LINE * 2}, {"purpose": "fine-tune"}],
    create_batch: [{"metadata": {"a": "b"}}, {"endpoint": "/v1/embeddings"}],
    create_upload: [{"bytes": 1}, {"expires_after": {"anchor": "created_at", "seconds": 3600}}],
}


def new_key() -> str:
    return uuid4().hex


def same(*replies: httpx2.Response) -> str:
    """The id that every reply names."""
    for reply in replies:
        assert reply.status_code == 200, reply.text
    [found] = {reply.json()["id"] for reply in replies}
    return str(found)


@CREATES
def test_same_key_and_body_give_the_same_object(http: httpx2.Client, create: Any) -> None:
    key = new_key()
    first, again = create(http, key), create(http, key)
    same(first, again)
    assert {**again.json(), "status": 0, "errors": 0, "failed_at": 0} == {
        **first.json(), "status": 0, "errors": 0, "failed_at": 0
    }  # fmt: skip
    assert create(http, new_key()).json()["id"] != first.json()["id"]


@CREATES
def test_another_body_with_the_key_is_409(http: httpx2.Client, create: Any) -> None:
    key = new_key()
    first = create(http, key)
    for changes in OTHERS[create]:
        reply = create(http, key, **changes)
        refusal(reply, 409, type="invalid_request_error", code="idempotency_key_reused")
        assert reply.headers["x-should-retry"] == "false"
    same(first, create(http, key))


def test_body_is_compared_by_meaning(http: httpx2.Client) -> None:
    headers = {"Idempotency-Key": new_key(), "content-type": "application/json"}
    texts = (
        b'{"input_file_id":"f","endpoint":"/v1/embeddings","completion_window":"24h","metadata":{"a":"1","b":"2"}}',
        b'{ "metadata": {"b":"2", "a":"1"}, "completion_window":"24h", "endpoint":"/v1/embeddings",\n'
        b'"input_file_id":"f", "output_expires_after": null}',
    )
    same(*(http.post("/v1/batches", content=text, headers=headers) for text in texts))


def test_key_belongs_to_its_operation(http: httpx2.Client) -> None:
    key = new_key()
    assert [create(http, key).status_code for create in (create_file, create_batch, create_upload)] == [200] * 3


def test_refused_call_leaves_the_key_free(http: httpx2.Client) -> None:
    key = new_key()
    refusal(create_file(http, key, data=b"not json\n"), 400)
    refusal(create_upload(http, key, bytes=-1), 400)
    refusal(create_batch(http, key, endpoint="/v1/unknown"), 400)
    assert create_file(http, key).status_code == 200
    assert create_upload(http, key).status_code == 200
    assert create_batch(http, key).status_code == 200


@CREATES
@pytest.mark.timeout(120)
def test_eight_at_once_make_one_object(server: Server, create: Any) -> None:
    key = new_key()
    before = server.blobs()

    def call(_: int) -> httpx2.Response:
        with server.http() as http:
            return create(http, key)  # type: ignore[no-any-return]

    with ThreadPoolExecutor(8) as pool:
        same(*pool.map(call, range(8)))
    assert len(server.blobs() - before) == (1 if create is create_file else 0)


@pytest.mark.parametrize("key", ["", "x" * 256, "ü".encode()], ids=["empty", "long", "not-ascii"])
def test_unusable_key_is_400(http: httpx2.Client, key: Any) -> None:
    body = {"input_file_id": "f", "endpoint": CHAT, "completion_window": "24h"}
    reply = http.post("/v1/batches", json=body, headers=[("Idempotency-Key", key)])
    refusal(reply, 400, type="invalid_request_error", param="Idempotency-Key")


def test_repeated_header_is_400(http: httpx2.Client) -> None:
    body = {"input_file_id": "f", "endpoint": CHAT, "completion_window": "24h"}
    reply = http.post("/v1/batches", json=body, headers=[("Idempotency-Key", "a"), ("idempotency-key", "a")])
    refusal(reply, 400, type="invalid_request_error", param="Idempotency-Key")


def test_deleted_file_is_not_made_again(http: httpx2.Client) -> None:
    key = new_key()
    file_id = create_file(http, key).json()["id"]
    assert http.delete(f"/v1/files/{file_id}").status_code == 200
    refusal(create_file(http, key), 409, code="idempotency_key_object_gone")
    assert http.get(f"/v1/files/{file_id}").status_code == 404


def test_complete_with_a_key(http: httpx2.Client, client: openai.OpenAI) -> None:
    key = {"Idempotency-Key": new_key()}
    uploads = [client.uploads.create(filename="a.jsonl", purpose="batch", mime_type=MIME, bytes=19) for _ in "ab"]
    ids = [client.uploads.parts.create(upload.id, data=LINE).id for upload in uploads]
    url = f"/v1/uploads/{uploads[0].id}/complete"
    done = [http.post(url, json={"part_ids": ids[:1]}, headers=key) for _ in range(3)]
    same(*done)
    assert len({reply.json()["file"]["id"] for reply in done}) == 1
    other = {"part_ids": ids[:1], "md5": hashlib.md5(LINE).hexdigest()}
    refusal(http.post(url, json=other, headers=key), 409, code="idempotency_key_reused")
    elsewhere = http.post(f"/v1/uploads/{uploads[1].id}/complete", json={"part_ids": ids[1:]}, headers=key)
    refusal(elsewhere, 409, code="idempotency_key_reused")


def test_retry_with_a_key(http: httpx2.Client, client: openai.OpenAI) -> None:
    batch = run(client, [chat("a"), refused("b")])
    key = {"Idempotency-Key": new_key()}
    url = f"/v1/batches/{batch.id}/retry"
    same(*(http.post(url, headers=key) for _ in range(3)))
    changed = http.post(url, headers=key, json={"metadata": {"a": "b"}})
    refusal(changed, 409, code="idempotency_key_reused")


@CREATES
@pytest.mark.timeout(120)
def test_key_outlives_a_kill_right_after_the_commit(start_server: StartServer, create: Any) -> None:
    """The process dies with the object made and the answer not sent; the client asks again after the restart."""
    point = {create_file: "upload_named", create_batch: "create_committed"}.get(create)
    key = new_key()
    settings = {} if point is None else {"BATCHYARD_DEBUG_FAILPOINT": f"{point}=kill"}
    first = start_server(settings=settings)
    with first.http() as http:
        if point is None:
            made = create(http, key).json()["id"]
            first.kill()
        else:
            with pytest.raises(httpx2.TransportError):
                create(http, key)
            made = None
    second = start_server(data_dir=first.data_dir)
    with second.http() as http:
        found = same(create(http, key), create(http, key))
        assert made in (None, found)
    table = {create_file: "files", create_batch: "batches", create_upload: "uploads"}[create]
    with second.database() as database:
        assert database.execute(f"SELECT id FROM {table}").fetchall() == [(found,)]


@pytest.mark.timeout(120)
def test_key_of_a_call_that_died_before_the_commit_is_free(start_server: StartServer) -> None:
    key = new_key()
    first = start_server(settings={"BATCHYARD_DEBUG_FAILPOINT": "upload_stored=kill"})
    with first.http() as http, pytest.raises(httpx2.TransportError):
        create_file(http, key)
    second = start_server(data_dir=first.data_dir)
    with second.http() as http:
        same(create_file(http, key), create_file(http, key))
    with second.database() as database:
        assert database.execute("SELECT count(*) FROM files").fetchone() == (1,)


def test_key_is_forgotten_after_its_time(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_RETENTION_SWEEP_SECONDS": "0.1"})
    key = new_key()
    with server.http() as http:
        first = create_file(http, key).json()["id"]
        with server.database() as database:
            database.execute("UPDATE idempotency_keys SET expires_at = expires_at - 86399")
        assert same(create_file(http, key)) == first
        with server.database() as database:
            database.execute("UPDATE idempotency_keys SET expires_at = expires_at - 1")
        assert same(create_file(http, key, data=LINE * 2)) != first


def test_sdk_sends_the_key_as_an_extra_header(client: openai.OpenAI) -> None:
    headers = {"Idempotency-Key": new_key()}
    data = jsonl([chat("a")])
    files = [client.files.create(file=("a.jsonl", data), purpose="batch", extra_headers=headers) for _ in "ab"]
    assert files[0] == files[1]
