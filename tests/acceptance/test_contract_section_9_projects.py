"""Checklist of openai-contract 9, item 8 and the rest of 9: keys of several projects, made and ended by command."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.acceptance.batch import chat, create, jsonl, run, upload
from tests.acceptance.conftest import StartServer
from tests.acceptance.keys import batchyard, listed, make_key, revoke
from tests.acceptance.server import KEY, Server
from tests.acceptance.wire import refusal

UNKNOWN = "0000000000000000000000"


def file_of(client: openai.OpenAI) -> str:
    return upload(client, jsonl([chat("a")])).id


def batch_of(client: openai.OpenAI) -> str:
    return create(client, [chat("a")]).id


def upload_of(client: openai.OpenAI) -> str:
    return client.uploads.create(filename="a.jsonl", purpose="batch", bytes=9, mime_type="application/jsonl").id


def webhook_of(client: openai.OpenAI) -> str:
    made: Any = client.post(
        "/webhook_endpoints",
        body={"name": "n", "url": "https://example.org/hook", "event_types": ["batch.completed"]},
        cast_to=object,
    )
    return str(made["id"])


def call(method: str, path: str, **options: Any) -> Callable[[openai.OpenAI, str], object]:
    """One call of the SDK's own transport, for what it has no method for."""

    def made(client: openai.OpenAI, object_id: str) -> object:
        return getattr(client, method)(path.format(object_id), cast_to=object, **options)

    return made


FOREIGN: list[tuple[Callable[[openai.OpenAI], str], Callable[[openai.OpenAI, str], object]]] = [
    (file_of, lambda client, id: client.files.retrieve(id)),
    (file_of, lambda client, id: client.files.content(id)),
    (file_of, lambda client, id: client.files.delete(id)),
    (batch_of, lambda client, id: client.batches.retrieve(id)),
    (batch_of, lambda client, id: client.batches.cancel(id)),
    (upload_of, lambda client, id: client.uploads.parts.create(id, data=b"x")),
    (upload_of, lambda client, id: client.uploads.complete(id, part_ids=["part_1"])),
    (upload_of, lambda client, id: client.uploads.cancel(id)),
    (webhook_of, call("get", "/webhook_endpoints/{}")),
    (webhook_of, call("post", "/webhook_endpoints/{}", body={"name": "x"})),
    (webhook_of, call("delete", "/webhook_endpoints/{}")),
]


@pytest.fixture
def shared(server: Server) -> Server:
    """The shared server; keys of other projects are made on its database while it runs."""
    return server


def test_item_08_two_projects_cannot_see_each_others_objects(shared: Server) -> None:
    mine, other = (make_key(shared.data_dir, "--project", project) for project in ("team-a", "team-b"))
    with shared.sdk(api_key=mine) as owner, shared.sdk(api_key=other) as stranger:
        for make, use in FOREIGN:
            object_id = make(owner)
            unknown = object_id[: -len(UNKNOWN)] + UNKNOWN
            with pytest.raises(openai.NotFoundError) as foreign:
                use(stranger, object_id)
            with pytest.raises(openai.NotFoundError) as missing:
                use(stranger, unknown)
            assert foreign.value.body == {  # word for word as if it did not exist
                key: value.replace(unknown, object_id) if isinstance(value, str) else value
                for key, value in dict(missing.value.body).items()  # type: ignore[call-overload]
            }
        assert not list(stranger.files.list())
        assert not list(stranger.batches.list())
        assert list(owner.files.list())
        with pytest.raises(openai.BadRequestError) as cursor:
            stranger.files.list(after=file_of(owner))
        assert cursor.value.param == "after"


def test_item_08_a_batch_cannot_read_another_projects_file(shared: Server) -> None:
    mine, other = (make_key(shared.data_dir, "--project", project) for project in ("team-c", "team-d"))
    with shared.sdk(api_key=mine) as owner, shared.sdk(api_key=other) as stranger:
        batch = stranger.batches.create(
            input_file_id=file_of(owner), endpoint="/v1/chat/completions", completion_window="24h"
        )
        deadline = time.monotonic() + 15
        while batch.status == "validating":
            assert time.monotonic() < deadline
            time.sleep(0.05)
            batch = stranger.batches.retrieve(batch.id)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [error.param for error in batch.errors.data] == ["file_id"]


def test_item_08_keys_of_one_project_share_its_objects(shared: Server) -> None:
    first, second = (make_key(shared.data_dir, "--project", "team-e") for _ in range(2))
    with shared.sdk(api_key=first) as one, shared.sdk(api_key=second) as two:
        assert two.files.retrieve(file_of(one)).purpose == "batch"
        assert run(two, [chat("a")]).status == "completed"
    with shared.sdk(api_key=make_key(shared.data_dir)) as stored, shared.sdk(api_key=KEY) as configured:
        assert configured.files.retrieve(file_of(stored)).purpose == "batch"


def test_item_09_the_key_names_the_project_whatever_the_headers_say(shared: Server) -> None:
    key = make_key(shared.data_dir, "--project", "team-f")
    with shared.sdk(api_key=key) as plain, shared.sdk(api_key=key, organization="org-1", project="team-a") as named:
        assert plain.files.retrieve(file_of(named)).purpose == "batch"
    with shared.http(key=key) as http:
        headers = {"openai-project": "team-a", "openai-organization": "org-none"}
        assert http.get("/v1/quota", headers=headers).json()["project"] == "team-f"


def test_a_revoked_key_is_refused_within_five_seconds(shared: Server) -> None:
    key, sibling = (make_key(shared.data_dir, "--project", "team-g", "--name", name) for name in ("gone", "stays"))
    (row,) = [row for row in listed(shared.data_dir) if row["name"] == "gone"]
    assert row["hint"].startswith(key[:10])
    with shared.http(key=key) as http:
        assert http.get("/v1/files").status_code == 200
        revoke(shared.data_dir, row["id"])
        revoked_at = time.monotonic()
        while (reply := http.get("/v1/files")).status_code == 200:
            assert time.monotonic() - revoked_at < 5
            time.sleep(0.1)
        refusal(reply, 401, code="invalid_api_key")
    with shared.http(key=sibling) as http:
        assert http.get("/v1/files").status_code == 200


def test_a_first_key_closes_a_server_without_keys_and_revoking_it_does_not_open_it(start_server: StartServer) -> None:
    server = start_server(key=None)
    with server.http(key="") as http:
        assert http.get("/v1/files").status_code == 200
        key = make_key(server.data_dir)
        made_at = time.monotonic()
        while (reply := http.get("/v1/files")).status_code == 200:
            assert time.monotonic() - made_at < 5
            time.sleep(0.1)
        refusal(reply, 401, code=None)
        assert http.get("/v1/files", headers={"authorization": f"Bearer {key}"}).status_code == 200
        revoke(server.data_dir, listed(server.data_dir)[0]["id"])
        while (reply := http.get("/v1/files", headers={"authorization": f"Bearer {key}"})).status_code == 200:
            time.sleep(0.1)
        refusal(reply, 401, code="invalid_api_key")
        refusal(http.get("/v1/files"), 401, code=None)


def test_a_stored_key_is_enough_for_other_addresses(tmp_path: Path) -> None:
    key = make_key(tmp_path / "data")
    flags = ("--engine", "echo", "--host", "0.0.0.0")
    server = Server(tmp_path / "data", tmp_path / "log", flags=flags, key=None).start()
    try:
        with server.http(key="") as http:
            refusal(http.get("/v1/files"), 401)
        with server.http(key=key) as http:
            assert http.get("/v1/files").status_code == 200
    finally:
        server.stop()


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=lambda headers: " ".join(headers.values()),
)
def test_without_keys_no_web_page_gets_through(keyless: Server, headers: dict[str, str]) -> None:
    """DNS rebinding shows in Host; a form or a fetch of a stranger's page in Origin and Sec-Fetch-Site."""
    with keyless.http(key="") as http:
        for method, path in (("GET", "/v1/files"), ("POST", "/v1/files"), ("POST", "/v1/batches")):
            refusal(http.request(method, path, headers=headers), 403, type="invalid_request_error")


def test_without_keys_programs_and_own_pages_get_through(keyless: Server) -> None:
    port = keyless.url.rpartition(":")[2]
    own: tuple[dict[str, str], ...] = (
        {},
        {"host": f"localhost:{port}"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin"},
    )
    with keyless.http(key="") as http:
        for headers in (*own, {"origin": keyless.url, "sec-fetch-site": "same-origin"}):
            assert http.get("/v1/files", headers=headers).status_code == 200


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("keyless")
    server = Server(folder / "data", folder / "log", key=None).start()
    yield server
    server.stop()


def test_keys_are_nowhere_but_with_their_owner(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_LOG_LEVEL": "debug"})
    key = make_key(server.data_dir, "--project", "team-a", "--name", "a name")
    wrong = [key[:-1] + ("A" if key[-1] != "A" else "B"), "sk-by-short", "sk-nonsense-0123456789", key + key]
    for sent in (key, KEY, *wrong):
        with server.http(key=sent) as http:
            http.get("/v1/files")
            http.post("/v1/batches", json={})
            http.get(f"/v1/files?api_key={sent}")
    with server.sdk(api_key=key) as client:
        assert run(client, [chat("a")]).status == "completed"
    (row,) = listed(server.data_dir)
    revoke(server.data_dir, row["id"])
    server.stop()
    shown = batchyard("list", data_dir=server.data_dir).stdout + str(listed(server.data_dir))
    written = server.log(tail=1 << 30)
    assert row["id"] in written, "the log tells which key it was, by its id"
    stored = b"".join(path.read_bytes() for path in server.data_dir.glob("batchyard.db*"))
    with sqlite3.connect(server.data_dir / "batchyard.db") as database:
        dump = "\n".join(database.iterdump())
    for secret in (key, KEY, *wrong):
        body = secret.removeprefix("sk-by-")
        assert body not in written
        assert body not in dump
        assert body.encode() not in stored
    assert key.removeprefix("sk-by-") not in shown


def test_a_wrong_key_costs_no_upload(server: Server) -> None:
    wrong = "sk-by-" + "x" * 43
    with server.sdk(api_key=wrong) as client, pytest.raises(openai.AuthenticationError):
        client.files.create(file=("a.jsonl", jsonl([chat("a")]) * 50_000), purpose="batch")


def test_every_path_but_the_open_ones_asks_for_a_key(server: Server, http: httpx2.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    with server.http(key="") as stranger:
        for path, operations in paths.items():
            for method, operation in operations.items():
                reply = stranger.request(method.upper(), path.replace("{", "").replace("}", ""))
                assert (reply.status_code == 401) == (operation.get("security") != []), (method, path)
