from __future__ import annotations

import httpx2
import pytest
from sqlalchemy import update

from app.domain.batch import BatchStatus
from app.store.tables import batches
from tests.unit.http.scenes import Service


async def paths(service: Service) -> tuple[str, list[str]]:
    """A batch's id, and everything that answers with an ETag."""
    file = await service.upload()
    body = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    batch = (await service.client.post("/v1/batches", json=body)).json()
    hook = {"name": "mine", "url": "https://example.com/hook", "event_types": ["batch.completed"]}
    endpoint = (await service.client.post("/v1/webhook_endpoints", json=hook)).json()
    objects = {"/v1/batches": batch, "/v1/files": file, "/v1/webhook_endpoints": endpoint}
    return batch["id"], [path for folder, one in objects.items() for path in (folder, f"{folder}/{one['id']}")]


async def ask(service: Service, path: str, if_none_match: str | None = None) -> httpx2.Response:
    headers = {} if if_none_match is None else {"if-none-match": if_none_match}
    return await service.client.get(path, headers=headers)


async def test_what_is_known_comes_back_as_a_304_without_a_body(service: Service) -> None:
    for path in (await paths(service))[1]:
        first = await ask(service, path)
        etag = first.headers["etag"]
        assert first.status_code == 200
        assert first.headers["cache-control"] == "private, no-cache"
        again = await ask(service, path, etag)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
        assert again.headers["cache-control"] == "private, no-cache"
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        head = await service.client.head(path)
        assert head.headers["etag"] == etag


@pytest.mark.parametrize("spelling", ["{}", "W/{}", '"other", {}', '"a",W/{} , "b"', "*"])
async def test_spellings_of_if_none_match(service: Service, spelling: str) -> None:
    path = (await paths(service))[1][1]
    etag = (await ask(service, path)).headers["etag"]
    assert (await ask(service, path, spelling.format(etag))).status_code == 304


@pytest.mark.parametrize("value", ['"other"', "", "nonsense", '"', "W/"])
async def test_what_names_something_else_gives_the_body(service: Service, value: str) -> None:
    path = (await paths(service))[1][1]
    assert (await ask(service, path, value)).status_code == 200


async def test_a_change_gives_a_new_tag_and_the_body(service: Service) -> None:
    batch_id, (listing, one, files, _, hooks, hook) = await paths(service)
    tags = {path: (await ask(service, path)).headers["etag"] for path in (listing, one, files, hooks, hook)}
    async with service.database.write() as tx:
        values = {"status": BatchStatus.IN_PROGRESS.value, "completed": 1, "total": 2}
        await tx.conn.execute(update(batches).where(batches.c.id == batch_id).values(values))
    for path in (listing, one):
        reply = await ask(service, path, tags[path])
        assert reply.status_code == 200
        assert reply.headers["etag"] != tags[path]
    assert (await ask(service, files, tags[files])).status_code == 304
    await service.upload()
    assert (await ask(service, files, tags[files])).status_code == 200
    assert (await ask(service, hooks, tags[hooks])).status_code == 304
    await service.client.post(hook, json={"name": "renamed"})
    for path in (hooks, hook):
        assert (await ask(service, path, tags[path])).status_code == 200


async def test_a_tag_opens_nothing(service: Service) -> None:
    _, (_, one, *_) = await paths(service)
    del service.client.headers["authorization"]
    assert (await ask(service, one, "*")).status_code == 401
    service.client.headers["authorization"] = "Bearer wrong"
    assert (await ask(service, one, "*")).status_code == 401


async def test_unknown_is_a_404_whatever_is_known(service: Service) -> None:
    for path in ("/v1/batches/batch_1", "/v1/files/file-1"):
        assert (await ask(service, path, "*")).status_code == 404


async def test_content_that_is_known_is_not_sent_again(service: Service) -> None:
    path = f"/v1/files/{(await service.upload())['id']}/content"
    etag = (await ask(service, path)).headers["etag"]
    for headers in ({}, {"range": "bytes=0-3"}, {"range": "bytes=9999-"}):
        known = await service.client.get(path, headers=headers | {"if-none-match": etag})
        assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", etag)
    assert (await service.client.head(path, headers={"if-none-match": etag})).status_code == 304
    other = await service.client.get(path, headers={"if-none-match": '"other"', "range": "bytes=0-3"})
    assert (other.status_code, len(other.content)) == (206, 4)
