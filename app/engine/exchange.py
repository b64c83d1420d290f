"""Requests to an ASGI app in this process: one made here, without a socket, or one that a client of ours has made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]


class Exchange:
    """`run` once; then `status` (None: the app ended without an answer), `headers` and `body` hold the answer.

    `disconnect` tells the app that its client has gone, which is how an app is asked to stop working on the request.
    Until then, an app that listens for it waits.
    """

    def __init__(
        self, path: str, body: bytes = b"", *, method: str = "POST", content_type: str = "application/json"
    ) -> None:
        self.path = path
        self.method = method
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self._request = body
        self._content_type = content_type.encode()
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
                (b"content-type", self._content_type),
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


#: Headers of a client that are none of the engine's business: keys, what spoke of the connection, and what steers it.
_KEPT_BACK = frozenset(
    {b"authorization", b"x-api-key", b"cookie", b"connection", b"transfer-encoding", b"content-length"}
    | {b"x-request-id", b"x-session-id", b"x-data-parallel-rank", b"expect", b"te", b"upgrade"}
)


class Visit:
    """A client's request, whose body has been read, handed to an app; the answer goes to the client as it is made.

    `receive` is the client's, and is asked only whether it is still there. `started` says that the answer has begun.
    """

    def __init__(self, scope: Message, body: bytes, *, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.started = False
        self._scope = scope
        self._body = body
        self._their_receive = receive
        self._their_send = send
        self._sent = False
        self._gone = asyncio.Event()

    async def run(self, app: Asgi) -> None:
        """Let `app` answer. Raises what it raises."""
        await app(self.scope(), self._receive, self._send)

    def disconnect(self) -> None:
        """Tell the app that the client has gone."""
        self._gone.set()

    def scope(self) -> Message:
        """The app's own scope: nothing of ours in it but what the client has sent."""
        kept = [(name, value) for name, value in self._scope["headers"] if bytes(name).lower() not in _KEPT_BACK]
        return {
            "type": "http",
            # From 2.4 on an app may wait for a failing send, to learn that its client has gone; ours never fails.
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._scope.get("http_version", "1.1"),
            "method": self._scope["method"],
            "scheme": self._scope.get("scheme", "http"),
            "path": self.path,
            "raw_path": self._scope.get("raw_path", self.path.encode()),
            "query_string": self._scope.get("query_string", b""),
            "root_path": "",
            "headers": [*kept, (b"content-length", b"%d" % len(self._body))],
            "client": self._scope.get("client"),
            "server": self._scope.get("server"),
        }

    async def _receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        waits = [asyncio.ensure_future(self._gone.wait()), asyncio.ensure_future(self._client_gone())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return {"type": "http.disconnect"}

    async def _client_gone(self) -> bool:
        while (await self._their_receive())["type"] != "http.disconnect":
            pass
        return True

    async def _send(self, message: Message) -> None:
        self.started = True
        await self._their_send(message)
