"""Who may speak: stored and configured keys, a database that is away, and callers on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers

from app.domain.quota import QUOTA_NAMES
from app.errors import PermissionDenied
from app.http.access import check_local, is_open
from app.main import key_service
from app.service import keys as module
from app.settings import Settings
from app.store.db import Database
from tests.unit.http.scenes import error_of, in_process

OPEN = {"/health", "/ready", "/metrics", "/openapi.json"}


def local(client: str | None = "127.0.0.1", **headers: str) -> None:
    raw = {"host": "localhost:8000", **{name.replace("_", "-"): value for name, value in headers.items()}}
    check_local({"client": None if client is None else (client, 1)}, Headers(raw))


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", None])
def test_check_local_lets_this_machine_in(client: str | None) -> None:
    local(client)


@pytest.mark.parametrize("client", ["10.0.0.1", "8.8.8.8", "::2", "::ffff:10.0.0.1", "fe80::1", "testclient"])
def test_check_local_refuses_other_machines(client: str) -> None:
    with pytest.raises(PermissionDenied, match="own machine only"):
        local(client)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.1.2.3:80", "[::1]:8000"])
def test_check_local_answers_to_names_of_this_machine(host: str) -> None:
    local(host=host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "10.0.0.1",
        "evil@",
        "[::1",
        "a,localhost",
    ],
)
def test_check_local_refuses_a_strangers_name(host: str) -> None:
    with pytest.raises(PermissionDenied, match="names of its own machine"):
        local(host=host)


def test_check_local_refuses_a_host_that_is_missing_or_repeated() -> None:
    for raw in ([], [(b"host", b"localhost"), (b"host", b"localhost")]):
        with pytest.raises(PermissionDenied):
            check_local({"client": None}, Headers(raw=raw))


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://localhost"},
        {"origin": "null"},
        {"origin": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "http://localhost:8000", "sec_fetch_site": "cross-site"},
    ],
    ids=str,
)
def test_check_local_refuses_pages_of_other_sites(headers: dict[str, str]) -> None:
    with pytest.raises(PermissionDenied, match="web pages of other sites"):
        local(**headers)


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://LOCALHOST:8000"}, {"sec_fetch_site": "same-origin"}, {"sec_fetch_site": "none"}],
    ids=str,
)
def test_check_local_lets_own_pages_in(headers: dict[str, str]) -> None:
    local(**headers)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/dashboard", "/dashboard/a.js"])
def test_is_open_for_machines_that_watch_and_the_dashboard(path: str) -> None:
    assert is_open(path)


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/files", "/healthy", "/dashboards", "/score", "/v2/rerank", "//health"]
)
def test_is_open_for_nothing_else(path: str) -> None:
    assert not is_open(path)


async def test_a_stored_key_names_its_project(sqlite_database: Database, tmp_path: Path) -> None:
    key, _ = await key_service(Settings(), sqlite_database).create(project_id="team")
    async with in_process(sqlite_database, tmp_path / "blobs") as service:
        mine = await service.upload()
        headers = {"authorization": f"Bearer {key}"}
        assert (await service.client.get(f"/v1/files/{mine['id']}", headers=headers)).status_code == 404
        assert (await service.client.get("/v1/quota", headers=headers)).json()["project"] == "team"
        assert (await service.client.get("/v1/quota")).json()["project"] == "proj_default"


async def test_a_database_that_is_away_is_a_503_not_a_401(sqlite_database: Database, tmp_path: Path) -> None:
    key, _ = await key_service(Settings(), sqlite_database).create()
    away = Database(f"sqlite+aiosqlite:///{tmp_path}/none/none.db")
    async with in_process(away, tmp_path / "blobs") as service:
        reply = await service.client.get("/v1/files", headers={"authorization": f"Bearer {key}"})
        assert reply.status_code == 503
        assert 1 <= int(reply.headers["retry-after"]) <= 120
        error_of(reply)
        for wrong in ("x", "sk-by-short"):  # which need no database to be wrong
            assert (await service.client.get("/v1/files", headers={"authorization": wrong})).status_code == 401
    async with in_process(away, tmp_path / "blobs", server={}) as service:
        assert (await service.client.get("/v1/files")).status_code == 503
    await away.close()


async def test_a_non_ascii_key_is_compared_by_its_bytes(sqlite_database: Database, tmp_path: Path) -> None:
    async with in_process(sqlite_database, tmp_path / "blobs", server={"api_keys": ["schlüssel"]}) as service:
        headers = {b"authorization": "Bearer schlüssel".encode()}
        assert (await service.client.get("/v1/files", headers=headers)).status_code == 200


async def test_a_first_key_closes_a_running_server(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(sqlite_database, tmp_path / "blobs", server={}) as service:
        assert (await service.client.get("/v1/files")).status_code == 200
        await key_service(Settings(), sqlite_database).create()
        monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
        assert (await service.client.get("/v1/files")).status_code == 401


async def test_every_route_but_the_open_ones_asks_for_a_key(sqlite_database: Database, tmp_path: Path) -> None:
    async with in_process(sqlite_database, tmp_path / "blobs") as service:
        del service.client.headers["authorization"]
        asked = set()
        for route in service.app.routes:
            path = str(getattr(route, "path", ""))
            reply = await service.client.request(next(iter(route.methods)), path)  # type: ignore[attr-defined]
            if reply.status_code != 401:
                asked.add(path)
        assert {path for path in asked if not path.startswith("/dashboard")} == OPEN


@pytest.mark.parametrize("limit", [None, 5])
async def test_quota_names_every_limit(sqlite_database: Database, tmp_path: Path, limit: int | None) -> None:
    quotas: dict[str, Any] = {} if limit is None else dict.fromkeys(QUOTA_NAMES, limit)
    async with in_process(sqlite_database, tmp_path / "blobs", quotas=quotas) as service:
        found = (await service.client.get("/v1/quota")).json()
        assert set(found) == {"object", "project", *QUOTA_NAMES}
        for name in QUOTA_NAMES:
            assert found[name]["limit"] == limit
        used = found["requests_per_minute"]["used"]
        assert used == (None if limit is None else 1)


async def test_requests_a_minute_are_refused_above_the_limit(sqlite_database: Database, tmp_path: Path) -> None:
    async with in_process(sqlite_database, tmp_path / "blobs", quotas={"requests_per_minute": 2}) as service:
        for left in ("1", "0"):
            reply = await service.client.get("/v1/files")
            assert reply.headers["x-ratelimit-remaining-requests"] == left
        reply = await service.client.post("/v1/batches", content=b"x" * 100)
        assert reply.status_code == 429
        assert error_of(reply)["code"] == "rate_limit_exceeded"
        assert (await service.client.get("/health")).status_code == 200
        wrong = await service.client.get("/v1/files", headers={"authorization": "Bearer x"})
        assert wrong.status_code == 401
        assert "x-ratelimit-limit-requests" not in wrong.headers
