"""The HTTP application: routers, middleware, error handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware

from app.http import batches, errors, files, health, openapi
from app.http.middleware import Authenticate, Exchange, LimitBody
from app.settings import Settings

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any]]]

#: Handlers that read their body piece by piece.
_STREAMED = (("POST", "/v1/files"),)


def build_app(*, settings: Settings, lifespan: Lifespan | None) -> FastAPI:
    """The application. `lifespan` yields `{"services": Services}`; without it the application can only be described."""
    keys = [key.get_secret_value() for key in settings.server.api_keys]
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
            Middleware(Authenticate, keys=keys),
            Middleware(LimitBody, max_bytes=settings.server.json_body_max_bytes, streamed=_STREAMED),
        ],
    )
    errors.register(app)
    for room in (files, batches, health):
        app.include_router(room.router)
    openapi.install(app)
    return app
