"""Requests that clients wait for: `/v1/models`, `/v1/chat/completions` and the rest of a model server's endpoints.

They are handed to the engine, and its answers to the client, as they are: neither is checked against a schema here.
What goes wrong before the engine has the request is answered by our envelope (openai-contract 3).
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.domain.endpoint import BATCH_ENDPOINTS, SPEECH
from app.errors import BodyTooLarge
from app.http.responses import errors
from app.service.interactive import EXTRA_PATHS, MODELS, InteractiveService

_REPLY: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The model server's own reply; with `stream`, server-sent events.",
        "content": {"application/json": {"schema": {}}, "text/event-stream": {"schema": {"type": "string"}}},
    }
}
_MODEL_FIELDS = {"id": "string", "object": "string", "created": "integer", "owned_by": "string"}
_MODEL: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The model's entry in that list.",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": list(_MODEL_FIELDS),
                    "properties": {name: {"type": kind} for name, kind in _MODEL_FIELDS.items()},
                }
            }
        },
    }
}
_FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": {"type": "object"}}}}}
_JSON = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}

#: Paths whose bodies are limited here, and not by the limit of other JSON bodies.
PATHS = (*BATCH_ENDPOINTS, *EXTRA_PATHS)


class _Answer(Response):
    """Lets the engine answer the client itself."""

    def __init__(self, service: InteractiveService, *, body_max_bytes: int) -> None:
        self.background = None
        self._service = service
        self._body_max_bytes = body_max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._service.check(scope["path"])
        body = await _read(scope, receive, max_bytes=self._body_max_bytes)
        if body is not None:
            await self._service.answer(scope, body, receive=receive, send=send)


async def _read(scope: Scope, receive: Receive, *, max_bytes: int) -> bytes | None:
    """The whole body; None when the client went away in the middle of it. Raises BodyTooLarge."""
    refusal = BodyTooLarge(f"Request Entity Too Large: the body of such a request has at most {max_bytes} bytes.")
    declared = Headers(scope=scope).get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise refusal
    blocks: list[bytes] = []
    taken_bytes = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        blocks.append(message.get("body", b""))
        taken_bytes += len(blocks[-1])
        if taken_bytes > max_bytes:
            raise refusal
        if not message.get("more_body", False):
            return b"".join(blocks)


def build_router(*, body_max_bytes: int) -> APIRouter:
    """One route a path; a body above `body_max_bytes` is refused."""
    router = APIRouter(tags=["Interactive"])

    async def pass_through(request: Request) -> Response:
        """Handed to the model server as it is, and answered by it; neither is checked against this document."""
        return _Answer(request.state.services.interactive, body_max_bytes=body_max_bytes)

    def add(path: str, *, method: str, summary: str, extra: dict[str, Any]) -> None:
        router.add_api_route(
            path,
            pass_through,
            methods=[method],
            operation_id=_operation_id(path, method),
            summary=summary,
            response_class=StreamingResponse,
            responses=_REPLY | errors(400, 401, 404, 413, 500, 503),
            openapi_extra=extra,
        )

    add(MODELS, method="GET", summary="Names a request's `model` may carry", extra={})

    @router.get(
        MODELS + "/{model:path}",
        operation_id="get_v1_models_model",
        summary="One of them, whose name may hold slashes",
        response_class=JSONResponse,
        responses=_MODEL | errors(400, 401, 404, 500, 503),
    )
    async def model(request: Request, model: str) -> Response:
        return JSONResponse(await request.state.services.interactive.model(model))

    for path, endpoint in BATCH_ENDPOINTS.items():
        add(path, method="POST", summary=endpoint.name, extra=_FORM if path in SPEECH else _JSON)
    for path, summary in EXTRA_PATHS.items():
        add(path, method="POST", summary=summary, extra=_JSON)
    return router


def _operation_id(path: str, method: str) -> str:
    return "_".join([method.lower(), *path.strip("/").split("/")])
