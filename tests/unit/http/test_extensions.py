from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from app.store import files
from app.store.db import Database
from app.store.tables import batches as batch_rows
from app.store.tables import files as file_rows
from tests.unit.http.scenes import LINE, Service, error_of, in_process

BODY = {"endpoint": "/v1/embeddings", "completion_window": "24h"}
ROW = b'{"id":"batch_req_1","custom_id":"1","response":null,"error":{"code":"x","message":"y"}}\n'


async def ended(service: Service, *, status: str = "completed") -> str:
    """A batch whose only line failed."""
    input_id = (await service.upload(LINE + LINE.replace(b'"1"', b'"2"')))["id"]
    error_id = (await service.upload(ROW))["id"]
    batch = (await service.client.post("/v1/batches", json=BODY | {"input_file_id": input_id})).json()
    async with service.database.write() as tx:
        await tx.conn.execute(update(batch_rows).values(status=status, completed_at=5, error_file_id=error_id))
    return str(batch["id"])


async def test_results_of_an_ended_batch(service: Service) -> None:
    batch_id = await ended(service)
    reply = await service.client.get(f"/v1/batches/{batch_id}/results?kind=error&offset=5")
    assert reply.content == ROW[5:]
    assert reply.headers["content-type"] == "application/jsonl"
    assert {name: reply.headers[name] for name in reply.headers if name.startswith("batchyard-")} == {
        "batchyard-next-offset": str(len(ROW)),
        "batchyard-complete": "true",
        "batchyard-status": "completed",
    }
    empty = await service.client.get(f"/v1/batches/{batch_id}/results")
    assert (empty.status_code, empty.content, empty.headers["content-length"]) == (200, b"", "0")


async def test_results_whose_bytes_are_lost_are_a_500_with_an_envelope(service: Service) -> None:
    batch_id = await ended(service)
    for path in service.stored():
        path.unlink()
    reply = await service.client.get(f"/v1/batches/{batch_id}/results?kind=error")
    assert reply.status_code == 500
    assert error_of(reply)["type"] == "server_error"


async def test_retry_copies_the_failed_line(service: Service) -> None:
    batch_id = await ended(service)
    reply = await service.client.post(f"/v1/batches/{batch_id}/retry", headers={"content-type": "application/json"})
    assert reply.status_code == 200, reply.text
    made = reply.json()
    assert (made["status"], made["metadata"]) == ("validating", {"retry_of": batch_id})
    content = await service.client.get(f"/v1/files/{made['input_file_id']}/content")
    assert content.content == LINE


async def test_retry_leaves_nothing_when_the_batch_cannot_be_made(sqlite_database: Database, tmp_path: Path) -> None:
    async with in_process(sqlite_database, tmp_path / "blobs", quotas={"open_batches": 1}) as service:
        batch_id = await ended(service)
        await service.client.post("/v1/batches", json=BODY | {"input_file_id": "file-unknown"})
        before = service.stored()
        reply = await service.client.post(f"/v1/batches/{batch_id}/retry")
        assert reply.status_code == 429
        assert service.stored() == before


@pytest.mark.parametrize("purged", [False, True])
async def test_retry_without_its_input_file(service: Service, purged: bool) -> None:
    batch_id = await ended(service)
    input_id = (await service.client.get(f"/v1/batches/{batch_id}")).json()["input_file_id"]
    await service.client.delete(f"/v1/files/{input_id}")
    if purged:
        async with service.database.write() as tx:
            await tx.conn.execute(update(file_rows).where(file_rows.c.id == input_id).values(purged_at=5))
            assert await files.get(tx, input_id, project_id="proj_default") is None
    reply = await service.client.post(f"/v1/batches/{batch_id}/retry")
    assert (reply.status_code, error_of(reply)["code"]) == (409, "file_gone")


async def test_retry_refuses_other_metadata_than_a_batch_takes(service: Service) -> None:
    batch_id = await ended(service)
    full = {f"k{number}": "v" for number in range(16)}
    made = (await service.client.post(f"/v1/batches/{batch_id}/retry", json={"metadata": full})).json()
    assert made["metadata"] == full
    reply = await service.client.post(f"/v1/batches/{batch_id}/retry", json={"metadata": full | {"one": "more"}})
    assert (reply.status_code, error_of(reply)["param"]) == (400, "metadata")
