"""The application on a real store, called in-process or through a socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from app.blobs.local import LocalBlobs
from app.http.app import build_app
from app.main import key_service
from app.service.batches import BatchService
from app.service.courier import Courier
from app.service.files import FileService
from app.service.health import HealthService
from app.service.interactive import InteractiveEngine, InteractiveService
from app.service.quotas import QuotaService
from app.service.results import ResultService
from app.service.retries import RetryService
from app.service.services import Services
from app.service.uploads import UploadService
from app.service.webhooks import WebhookService
from app.settings import Settings
from app.store.db import Database

KEY = "sk-the-right-key-0123456789"
LINE = b'{"custom_id":"1","method":"POST","url":"/v1/embeddings","body":{}}\n'


@dataclass
class Service:
    """One application, its store, and a client with the right key."""

    app: FastAPI
    asgi: ASGIApp
    database: Database
    root: Path
    client: httpx2.AsyncClient

    def stored(self) -> list[Path]:
        """Every file below the blob folder, finished or not."""
        return [path for path in self.root.rglob("*") if path.is_file()]

    async def upload(self, data: bytes = LINE, *, name: str = "a.jsonl", **fields: str) -> dict[str, Any]:
        reply = await self.client.post("/v1/files", files={"file": (name, data)}, data={"purpose": "batch"} | fields)
        assert reply.status_code == 200, reply.text
        body: dict[str, Any] = reply.json()
        return body


def build(
    settings: Settings, database: Database, root: Path, engine: InteractiveEngine | None = None
) -> tuple[FastAPI, Services]:
    blobs = LocalBlobs(root)
    services = Services(
        files=FileService(database=database, blobs=blobs, limits=settings.limits, retention=settings.retention),
        uploads=UploadService(database=database, blobs=blobs, limits=settings.limits, retention=settings.retention),
        batches=BatchService(database=database, limits=settings.limits, retention=settings.retention),
        results=ResultService(database=database, blobs=blobs),
        retries=RetryService(
            database=database,
            blobs=blobs,
            limits=settings.limits,
            retention=settings.retention,
        ),
        health=HealthService(database=database, blobs=blobs, engine=None),
        keys=key_service(settings, database),
        quotas=QuotaService(database=database),
        interactive=InteractiveService(engine=engine),
        webhooks=WebhookService(
            database=database,
            courier=Courier(settings.webhooks),
            settings=settings.webhooks,
            retention=settings.retention,
        ),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, Any]]:
        yield {"services": services}

    return build_app(settings=settings, lifespan=lifespan), services


@asynccontextmanager
async def in_process(
    database: Database, root: Path, *, engine: InteractiveEngine | None = None, **rooms: Any
) -> AsyncGenerator[Service]:
    """Without a socket. The transport runs no lifespan, so what it would yield is put into each scope."""
    settings = Settings(**({"server": {"api_keys": [KEY]}} | rooms))
    app, services = build(settings, database, root, engine)

    async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"services": services}}, receive, send)

    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=asgi),
        base_url="http://127.0.0.1",
        headers={"authorization": f"Bearer {KEY}"},
    ) as client:
        yield Service(app, asgi, database, root, client)


@asynccontextmanager
async def on_a_socket(
    database: Database, root: Path, *, engine: InteractiveEngine | None = None, **rooms: Any
) -> AsyncGenerator[Service]:
    """Behind uvicorn, on a free port of the loopback."""
    settings = Settings(**({"server": {"api_keys": [KEY]}} | rooms))
    app, _ = build(settings, database, root, engine)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not server.started:
            assert not serving.done()
            await asyncio.sleep(0.01)
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", headers={"authorization": f"Bearer {KEY}"}
        ) as client:
            yield Service(app, app, database, root, client)
    finally:
        server.should_exit = True
        await serving


async def until(holds: Callable[[], bool], *, within_seconds: float = 10) -> None:
    """Wait for what happens in another task or thread."""
    for _ in range(round(within_seconds * 100)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen in time")


def error_of(reply: httpx2.Response) -> dict[str, Any]:
    """The error of a reply, once its envelope and headers have been looked at."""
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"].startswith("req_")
    body = reply.json()
    assert list(body) == ["error"]
    assert sorted(body["error"]) == ["code", "message", "param", "type"]
    error: dict[str, Any] = body["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    return error
