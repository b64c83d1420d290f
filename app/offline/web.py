"""GET and PUT of whole files over http(s), tried again while that may help."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import BinaryIO

import httpx2
import structlog

from app.errors import InvalidRequest, Unavailable
from app.offline.place import Place

log = structlog.get_logger()

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
_BLOCK_BYTES = 1 << 20
_TIMEOUT = httpx2.Timeout(60, connect=10)
_LATER = frozenset({408, 425, 429})


async def download(place: Place, file: BinaryIO) -> None:
    """Write what a GET answers to `file`, from its beginning.

    Raises InvalidRequest for an answer that stays (a 404, say), and Unavailable when none came.
    """

    async def once(client: httpx2.AsyncClient) -> httpx2.Response:
        file.seek(0)
        file.truncate()
        async with client.stream("GET", place.text, follow_redirects=True) as response:
            if response.is_success:
                async for block in response.aiter_bytes(_BLOCK_BYTES):
                    await asyncio.to_thread(file.write, block)
            return response

    await _insist(once, doing="GET", place=place)


async def upload(place: Place, file: BinaryIO) -> None:
    """PUT all of `file`. Raises as `download`."""
    size = os.fstat(file.fileno()).st_size
    headers = {"content-length": str(size), "content-type": "application/jsonl"}

    async def blocks() -> AsyncIterator[bytes]:
        file.seek(0)
        while block := await asyncio.to_thread(file.read, _BLOCK_BYTES):
            yield block

    async def once(client: httpx2.AsyncClient) -> httpx2.Response:
        return await client.put(place.text, content=blocks(), headers=headers)

    await _insist(once, doing="PUT", place=place)


async def _insist(
    once: Callable[[httpx2.AsyncClient], Awaitable[httpx2.Response]], *, doing: str, place: Place
) -> None:
    async with httpx2.AsyncClient(timeout=_TIMEOUT) as client:
        pause_seconds = FIRST_PAUSE_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                response = await once(client)
            except httpx2.TransportError as exc:
                reason = f"no answer ({type(exc).__name__})"
            except (httpx2.InvalidURL, httpx2.TooManyRedirects) as exc:
                raise InvalidRequest(f"{doing} {place.shown}: {exc}") from exc
            else:
                if response.is_success:
                    return
                reason = f"the answer is {response.status_code} {response.reason_phrase}".rstrip()
                if response.status_code < 500 and response.status_code not in _LATER:
                    raise InvalidRequest(f"{doing} {place.shown}: {reason}")
            if attempt == ATTEMPTS:
                raise Unavailable(f"{doing} {place.shown}: {reason}, {ATTEMPTS} times")
            log.warning("transfer_retried", method=doing, url=place.shown, reason=reason, attempt=attempt)
            await asyncio.sleep(pause_seconds * random.uniform(0.7, 1.3))  # noqa: S311 - jitter, no secret
            pause_seconds = min(MAX_PAUSE_SECONDS, pause_seconds * 2)
