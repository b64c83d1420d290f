"""An HTTP proxy that does harm on request: between the service and its S3 store it refuses, dawdles, and cuts."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest


class Fault(Enum):
    """What becomes of a request."""

    REFUSE = "status 503, as a store that is overloaded"
    FULL = "status 507, as a store without room"
    CUT = "the connection is reset before the request was passed on"
    LOSE_ANSWER = "the request is passed on and takes effect; then the connection is reset"
    HALF = "half of the answer's body, then the connection is reset"
    DAWDLE = "the answer comes after `dawdle_seconds`"
    HANG = "no answer at all, as long as the proxy lives"


class FaultyProxy:
    """`choose` says for method and path which fault a request meets, None for none. `met` counts them by fault."""

    def __init__(self, target: str) -> None:
        self.choose: Callable[[str, str], Fault | None] = lambda _method, _path: None
        self.dawdle_seconds = 0.3
        self.met: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self.passed = 0
        self.over = threading.Event()
        self._lock = threading.Lock()
        place = urlsplit(target)
        self.target = (place.hostname or "", place.port or 80)
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def always(self, fault: Fault | None) -> None:
        """Every request meets `fault` from now on."""
        self.choose = lambda _method, _path: fault

    def count(self, fault: Fault | None) -> None:
        with self._lock:
            if fault is None:
                self.passed += 1
            else:
                self.met[fault] += 1

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fault = self.proxy.choose(self.command, self.path)
        self.proxy.count(fault)
        if fault is Fault.CUT:
            self._reset()
        elif fault is Fault.HANG:
            self.proxy.over.wait(60)
            self._reset()
        elif fault is Fault.REFUSE:
            self._answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
        elif fault is Fault.FULL:
            self._answer(507, {}, b"<Error><Code>XMinioStorageFull</Code></Error>")
        else:
            if fault is Fault.DAWDLE:
                time.sleep(self.proxy.dawdle_seconds)
            self._pass_on(body, fault)

    def _pass_on(self, body: bytes, fault: Fault | None) -> None:
        onward = http.client.HTTPConnection(*self.proxy.target, timeout=30)
        try:
            names = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            onward.request(self.command, self.path, body=body, headers=names)
            reply = onward.getresponse()
            content = reply.read()
        finally:
            onward.close()
        if fault is Fault.LOSE_ANSWER:
            self._reset()
            return
        if self.command == "HEAD":
            content = bytes(int(reply.getheader("content-length") or 0))  # only its length is sent on
        gone = {"transfer-encoding", "content-length", "connection"}
        headers = {name: value for name, value in reply.getheaders() if name.lower() not in gone}
        self._answer(reply.status, headers, content, cut=fault is Fault.HALF)

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
        try:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if cut else content)
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # the client has left
        if cut:
            self._reset()

    def _reset(self) -> None:
        """Close with RST, so that the other side learns at once."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve


@pytest.fixture
def faulty_s3(s3_endpoint: str) -> Generator[FaultyProxy]:
    """A proxy in front of the S3 server."""
    proxy = FaultyProxy(s3_endpoint)
    yield proxy
    proxy.close()
