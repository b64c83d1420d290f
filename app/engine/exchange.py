"""One request to an ASGI app in this process, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Asgi = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


class Exchange:
    """`run` once; then `status` (None: the app ended without an answer), `headers` and `body` hold the answer.

    `disconnect` tells the app that its client has gone, which is how an app is asked to stop working on the request.
    Until then, an app that listens for it waits.
    """

    def __init__(self, path: str, body: bytes = b"", *, method: str = "POST") -> None:
        self.path = path
        self.method = method
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self._request = body
        self._sent = False
        self._chunks: list[bytes] = []
        self._gone = asyncio.Event()

    @property
    def body(self) -> bytes:
        """What the app has answered so far."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    async def run(self, app: Asgi) -> None:
        """Let `app` answer. Raises what it raises."""
        await app(self.scope(), self._receive, self._send)

    def disconnect(self) -> None:
        """Tell the app that nobody waits for the answer."""
        self._gone.set()

    def scope(self) -> Message:
        """The ASGI scope of the request."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(self._request)),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }

    async def _receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._request, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])  # an HTTPStatus would print as one
            self.headers = {bytes(name).lower(): bytes(value) for name, value in message.get("headers", ())}
        elif message["type"] == "http.response.body":
            self._chunks.append(bytes(message.get("body", b"")))
