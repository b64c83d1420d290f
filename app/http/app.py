"""The HTTP application: routers, middleware, error handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware

from app.http import batches, errors, extensions, files, health, interactive, openapi, quota, uploads, webhooks
from app.http.access import Authenticate
from app.http.middleware import Exchange, LimitBody
from app.http.throttle import Throttle
from app.settings import Settings

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any]]]

#: Handlers that read their body piece by piece.
_STREAMED = (
    ("POST", "/v1/files"),
    ("POST", "/v1/uploads/[^/]+/parts"),
    *(("POST", path) for path in interactive.PATHS),
)


def build_app(*, settings: Settings, lifespan: Lifespan | None) -> FastAPI:
    """The application. `lifespan` yields `{"services": Services}`; without it the application can only be described."""
    limits = settings.limits
    app = FastAPI(
        title="Batchyard",
        summary="OpenAI-compatible Files and Batches on one's own GPUs",
        version=version("batchyard"),
        lifespan=lifespan,
        # The pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(Exchange, drain_max_bytes=max(limits.file_max_bytes, limits.batch_file_max_bytes)),
            Middleware(errors.LastResort),
            Middleware(Authenticate),
            Middleware(Throttle),
            Middleware(LimitBody, max_bytes=settings.server.json_body_max_bytes, streamed=_STREAMED),
        ],
    )
    errors.register(app)
    for room in (files, uploads, batches, extensions, webhooks, quota, health):
        app.include_router(room.router)
    app.include_router(interactive.build_router(body_max_bytes=settings.server.interactive_body_max_bytes))
    openapi.install(app)
    return app


def build_probes(*, lifespan: Lifespan) -> FastAPI:
    """`/health`, `/ready` and `/metrics` alone, for a process that serves no clients. `lifespan` as for `build_app`."""
    app = FastAPI(
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        middleware=[Middleware(Exchange, drain_max_bytes=0), Middleware(errors.LastResort)],
    )
    errors.register(app)
    app.include_router(health.router)
    return app
