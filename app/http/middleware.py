"""What every request passes, outermost first: Exchange, (errors.LastResort, access.Authenticate, throttle.Throttle),
LimitBody. Pure ASGI: nothing here buffers a body, and context variables set here are seen by the handlers and their log
lines.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import telemetry
from app.domain.id import new_request_id
from app.errors import BodyTooLarge

log = structlog.get_logger()

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_QUIET_ROUTES = frozenset({"/health", "/ready", "/metrics"})
_DRAIN_SECONDS = 30.0


class Exchange:
    """Names each request, times it, counts it, and writes its one log line.

    A refusal may be answered while the client still sends. uvicorn throws away the rest of a body whose declared
    length is at most `drain_max_bytes`, and the connection lives on. Of any other body at most that much is read, then
    the connection ends: so a client that writes everything before it reads still finds its answer.
    """

    def __init__(self, app: ASGIApp, *, drain_max_bytes: int) -> None:
        self._app = app
        self._drain_max_bytes = drain_max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, drain_max_bytes=self._drain_max_bytes)
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
            try:
                await self._app(scope, exchange.receive, exchange.send)
            finally:
                exchange.record()


class _Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send, *, drain_max_bytes: int) -> None:
        self.request_id = new_request_id()
        self._scope = scope
        self._receive = receive
        self._send = send
        self._drain_max_bytes = drain_max_bytes
        self._begun_at = time.perf_counter()
        self._status = 0
        self._bytes_in = 0
        self._bytes_out = 0
        self._whole = False
        headers = Headers(scope=scope)
        length = headers.get("content-length")
        self._declared_bytes = int(length) if length is not None and length.isdecimal() else None
        self._body_ended = not self._declared_bytes and "transfer-encoding" not in headers
        self._draining = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes_in += len(message.get("body", b""))
            self._body_ended = not message.get("more_body", False)
        else:
            self._body_ended = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            headers["openai-version"] = "2020-10-01"
            headers["openai-processing-ms"] = str(round((time.perf_counter() - self._begun_at) * 1000))
            left_to_uvicorn = 0 < (self._declared_bytes or 0) <= self._drain_max_bytes
            if not self._body_ended and not left_to_uvicorn:
                self._draining = True
                headers["connection"] = "close"
            await self._send(message)
            return
        self._bytes_out += len(message.get("body", b""))
        if self._draining and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._drain()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)
        self._whole = not message.get("more_body", False)

    async def _drain(self) -> None:
        until_bytes = self._bytes_in + self._drain_max_bytes
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self._body_ended and self._bytes_in < until_bytes:
                    await self.receive()
        except TimeoutError:
            log.info("drain_given_up", bytes_in=self._bytes_in)

    def record(self) -> None:
        seconds = time.perf_counter() - self._begun_at
        # The template, never the path: ids in labels would make a series each.
        route = getattr(self._scope.get("route"), "path", "other")
        method = self._scope["method"] if self._scope["method"] in _METHODS else "OTHER"
        status = str(self._status or "none")
        telemetry.HTTP_REQUESTS.labels(method, route, status).inc()
        telemetry.HTTP_SECONDS.labels(route).observe(seconds)
        telemetry.HTTP_BODY_BYTES.labels("in").inc(self._bytes_in)
        telemetry.HTTP_BODY_BYTES.labels("out").inc(self._bytes_out)
        caller = self._scope.get("state", {}).get("caller")
        write = log.debug if route in _QUIET_ROUTES else log.info
        write(
            "http_request",
            method=method,
            path=self._scope["path"][:200],
            project_id=None if caller is None else caller.project_id,
            key_id=None if caller is None else caller.key_id,
            status=self._status,
            whole=self._whole,
            milliseconds=round(seconds * 1000, 1),
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
        )


class LimitBody:
    """Refuses a body above `max_bytes`, by its declared length or while it is read.

    `streamed` names (method, path) pairs whose handlers read the body piece by piece and have limits of their own; a
    path is a regular expression for all of it.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, streamed: Collection[tuple[str, str]]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._streamed = [(method, re.compile(path)) for method, path in streamed]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_streamed(scope):
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise self._refusal()
        taken_bytes = 0

        async def counted() -> Message:
            nonlocal taken_bytes
            message = await receive()
            taken_bytes += len(message.get("body", b""))
            if taken_bytes > self._max_bytes:
                raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _is_streamed(self, scope: Scope) -> bool:
        return any(
            method == scope["method"] and path.fullmatch(scope["path"]) is not None for method, path in self._streamed
        )

    def _refusal(self) -> BodyTooLarge:
        return BodyTooLarge(f"Request Entity Too Large: a JSON body has at most {self._max_bytes} bytes.")
