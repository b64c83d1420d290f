"""A request body as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import Request

from app.errors import InvalidRequest

#: A client that sends nothing for this long is taken for gone.
_SILENCE_MAX_SECONDS = 120.0


async def arriving(request: Request) -> AsyncIterator[bytes]:
    """The pieces of the body. Raises InvalidRequest when they stop coming."""
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(_SILENCE_MAX_SECONDS):
                data = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError as exc:
            raise InvalidRequest("The request body stopped arriving.") from exc
        yield data


def declared_bytes(request: Request) -> int | None:
    """The length that the client announced, None when it did not."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isdecimal() else None
