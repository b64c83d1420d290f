"""Answers a client by an engine that only knows `call`: one JSON body in, one out, no streams."""

from __future__ import annotations

import asyncio

import msgspec

from app.engine.base import Engine, Reply
from app.engine.exchange import Message, Receive, Send
from app.errors import InvalidRequest


class _Body(msgspec.Struct):
    stream: bool | None = None


_body = msgspec.json.Decoder(_Body)


async def handle(engine: Engine, scope: Message, body: bytes, *, receive: Receive, send: Send) -> None:
    """As Interactive.handle. Raises InvalidRequest for a stream, and what `engine.call` raises."""
    if scope["method"] == "GET":
        await reply_with(await models_of(engine), send)
        return
    if asks_for_stream(body):
        raise InvalidRequest("This engine does not stream.", code="unsupported_value", param="stream")
    reply = await call(engine, scope["path"], body, receive=receive)
    if reply is not None:
        await reply_with(reply, send)


async def call(engine: Engine, path: str, body: bytes, *, receive: Receive) -> Reply | None:
    """The reply; None when the client has gone, and the request is aborted."""
    gone = asyncio.ensure_future(client_gone(receive))
    task = asyncio.ensure_future(engine.call(path, body))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    return None if task.cancelled() else task.result()


async def client_gone(receive: Receive) -> None:
    """Return when the client has gone; its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def models_of(engine: Engine) -> Reply:
    """`GET /v1/models`."""
    cards = [{"id": name, "object": "model", "created": 0, "owned_by": "batchyard"} for name in await engine.models()]
    return Reply(200, msgspec.json.encode({"object": "list", "data": cards}))


async def reply_with(reply: Reply, send: Send) -> None:
    """Send a whole JSON answer."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def asks_for_stream(body: bytes) -> bool:
    """Whether `stream` is true in this JSON object; False for whatever is none."""
    try:
        return bool(_body.decode(body).stream)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
