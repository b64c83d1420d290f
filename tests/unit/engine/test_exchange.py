"""ASGI without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.engine.exchange import Exchange, Message, Receive, Send, Visit


async def _mirror(request: Request) -> Response:
    said = {"body": (await request.body()).decode(), "type": request.headers["content-type"], "path": request.url.path}
    return JSONResponse(said, status_code=201, headers={"X-Odd": "yes"})


async def _parts(_: Request) -> Response:
    return StreamingResponse(iter([b"one ", b"two"]))


async def _wait(request: Request) -> Response:
    await request.body()
    message = await request.receive()
    return JSONResponse(message["type"])


async def _fail(_: Request) -> Response:
    raise ZeroDivisionError


app = Starlette(
    routes=[
        Route("/mirror", _mirror, methods=["POST"]),
        Route("/parts", _parts, methods=["GET"]),
        Route("/wait", _wait, methods=["POST"]),
        Route("/fail", _fail, methods=["POST"]),
    ]
)


async def test_run_hands_over_body_and_answer() -> None:
    exchange = Exchange("/mirror", b'{"a": 1}')
    await exchange.run(app)
    assert exchange.status == 201
    assert exchange.headers[b"x-odd"] == b"yes"
    assert exchange.body == b'{"body":"{\\"a\\": 1}","type":"application/json","path":"/mirror"}'


async def test_run_joins_the_parts_of_a_streamed_answer() -> None:
    exchange = Exchange("/parts", method="GET")
    await exchange.run(app)
    assert exchange.body == b"one two"


async def test_disconnect_reaches_the_app_that_waits_for_it() -> None:
    exchange = Exchange("/wait", b"{}")
    run = asyncio.create_task(exchange.run(app))
    await asyncio.sleep(0.02)
    assert not run.done()
    exchange.disconnect()
    await run
    assert exchange.body == b'"http.disconnect"'


async def test_run_raises_what_the_app_raises_and_keeps_its_500() -> None:
    exchange = Exchange("/fail")
    with pytest.raises(ZeroDivisionError):
        await exchange.run(app)
    assert exchange.status == 500


async def test_run_without_an_answer_has_no_status() -> None:
    async def silent(_scope: Any, _receive: Any, _send: Any) -> None:
        pass

    exchange = Exchange("/x")
    await exchange.run(silent)
    assert exchange.status is None
    assert exchange.body == b""


def scope(*headers: tuple[bytes, bytes], **fields: Any) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/x",
        "raw_path": b"/v1/x",
        "query_string": b"a=1",
        "root_path": "/ours",
        "headers": list(headers),
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 6),
        "state": {"services": object()},
        "app": object(),
    } | fields


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def nowhere(message: Message) -> None:
    pass


async def test_visit_hands_on_the_body_and_little_else() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        seen.update(scope, message=await receive())

    headers = [
        (b"authorization", b"Bearer sk-secret"),
        (b"X-Api-Key", b"sk-secret"),
        (b"cookie", b"a"),
        (b"x-request-id", b"somebody-elses"),
        (b"content-length", b"99"),
        (b"content-type", b"application/json"),
        (b"accept", b"*/*"),
    ]
    visit = Visit(scope(*headers), b"{}", receive=never, send=nowhere)
    await visit.run(app)
    assert seen["message"] == {"type": "http.request", "body": b"{}", "more_body": False}
    assert seen["headers"] == [
        (b"content-type", b"application/json"),
        (b"accept", b"*/*"),
        (b"content-length", b"2"),
    ]
    assert "state" not in seen
    assert "app" not in seen
    assert (seen["root_path"], seen["query_string"]) == ("", b"a=1")


async def test_visit_tells_the_app_when_the_client_has_gone() -> None:
    messages = asyncio.Queue[Message]()
    told = asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        told.set()

    running = asyncio.create_task(Visit(scope(), b"", receive=messages.get, send=nowhere).run(app))
    await asyncio.sleep(0.02)
    assert not told.is_set()
    messages.put_nowait({"type": "http.disconnect"})
    await running
    assert told.is_set()


async def test_visit_tells_the_app_when_asked_to() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    visit = Visit(scope(), b"", receive=never, send=nowhere)
    running = asyncio.create_task(visit.run(app))
    await asyncio.sleep(0.02)
    visit.disconnect()
    await running
    assert not visit.started


async def test_visit_has_started_once_the_app_answers() -> None:
    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    visit = Visit(scope(), b"", receive=never, send=keep)
    await visit.run(app)
    assert visit.started
    assert [message["type"] for message in sent] == ["http.response.start"]
