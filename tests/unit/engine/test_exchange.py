"""ASGI without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.engine.exchange import Exchange


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
