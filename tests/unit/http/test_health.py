from __future__ import annotations

from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from app.store.db import Database
from tests.unit.http.scenes import Service, in_process


async def test_health_and_ready_ask_for_no_key(service: Service) -> None:
    client = service.client
    del client.headers["authorization"]
    health = await client.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    ready = await client.get("/ready")
    assert ready.status_code == 200
    assert ready.json() == {"ready": True, "checks": {"engine": "none", "database": "ok", "blobs": "ok"}}
    assert (await client.head("/health")).status_code == 200


async def test_ready_is_503_and_health_200_without_a_database(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/no/such/folder/a.db")
    async with in_process(database, tmp_path / "blobs") as service:
        ready = await service.client.get("/ready")
        assert ready.status_code == 503
        assert ready.json()["checks"]["database"] == "The database does not answer."
        assert ready.json()["checks"]["blobs"] == "ok"
        assert (await service.client.get("/health")).status_code == 200
    await database.close()


async def test_metrics_count_by_route_template(client: httpx2.AsyncClient) -> None:
    async def count() -> float:
        reply = await client.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain")
        return sum(
            sample.value
            for family in text_string_to_metric_families(reply.text)
            for sample in family.samples
            if sample.name == "batch_http_requests_total"
            and sample.labels == {"method": "GET", "route": "/v1/files/{file_id}", "status": "404"}
        )

    before = await count()
    for number in range(3):
        await client.get(f"/v1/files/file-{number}")
    assert await count() == before + 3
