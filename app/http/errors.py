"""The one place that turns an error into a response: OpenAI's envelope, whatever went wrong (openai-contract 3)."""

from __future__ import annotations

import json
from http import HTTPStatus

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import BatchyardError, Internal, InvalidRequest, MethodNotAllowed, NotFound, Unauthenticated
from app.http.validation import NOT_JSON, refusal

log = structlog.get_logger()

_PATH_MAX_CHARS = 200
_OUR_FAULT = "The server had an error while processing your request."


def envelope(exc: BatchyardError) -> Response:
    """The response of an error. What an Internal error says is for the log only."""
    error = {
        "message": _OUR_FAULT if isinstance(exc, Internal) else exc.message,
        "type": exc.type,
        "param": exc.param,
        "code": exc.code,
    }
    headers = exc.headers()
    if isinstance(exc, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    return _rendered(error, status=exc.status, headers=headers)


def _rendered(error: dict[str, str | None], *, status: int, headers: dict[str, str]) -> Response:
    # ASCII: a message may quote a lone surrogate, which UTF-8 cannot carry.
    body = json.dumps({"error": error}, separators=(",", ":")).encode()
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def register(app: FastAPI) -> None:
    """Let `app` answer every expected error by the envelope. The unexpected ones are LastResort's."""
    app.add_exception_handler(BatchyardError, _on_batchyard_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


async def _on_batchyard_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, BatchyardError)
    return answer(exc)


def answer(exc: BatchyardError) -> Response:
    """`envelope`, and a line in the log when the fault is ours."""
    if isinstance(exc, Internal):
        log.error("request_failed", exc_info=exc)
    elif exc.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request_unavailable", reason=exc.message, cause=repr(exc.__cause__)[:500])
    return envelope(exc)


async def _on_validation_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    return envelope(refusal(exc.errors()))


async def _on_http_exception(request: Request, exc: Exception) -> Response:
    """Errors of the framework: no such route, wrong method, unreadable body, unsatisfiable range."""
    assert isinstance(exc, HTTPException)
    path = request.url.path[:_PATH_MAX_CHARS]
    if exc.status_code == HTTPStatus.NOT_FOUND:
        return envelope(NotFound(f"Invalid URL ({request.method} {path})"))
    if exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        refused = envelope(MethodNotAllowed(f"Not allowed to {request.method} on {path}.", code="method_not_supported"))
        refused.headers["allow"] = ", ".join(sorted(_methods(request)))
        return refused
    if isinstance(exc.__cause__, BatchyardError):  # the framework wraps what our body reader raised
        return answer(exc.__cause__)
    if exc.status_code == HTTPStatus.BAD_REQUEST:
        return envelope(InvalidRequest(NOT_JSON))
    kind = "server_error" if exc.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {"message": str(exc.detail), "type": kind, "param": None, "code": None}
    return _rendered(error, status=exc.status_code, headers=dict(exc.headers or {}))


def _methods(request: Request) -> set[str]:
    """Every method of this path; each route knows only its own."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return methods


class LastResort:
    """Answers what nothing below it caught, once, and without a word about the cause to the client."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            log.info("client_gone")
        except BatchyardError as exc:
            if started:
                log.exception("response_cut_short")
            else:
                await answer(exc)(scope, receive, send)
        except Exception as exc:  # a fault of ours must not reach the client, nor end the server
            log.exception("response_cut_short" if started else "request_failed")
            if not started:
                await envelope(Internal(type(exc).__name__))(scope, receive, send)
