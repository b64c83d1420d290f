"""Plain HTTP: what a refusal must look like, and requests that no well-behaved client sends."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx2

BOUNDARY = "b0undary7d1"


def refusal(reply: httpx2.Response, status: int, **expected: Any) -> dict[str, Any]:
    """The inner error of `reply`, after checking the status and the envelope of contract 3.1."""
    assert reply.status_code == status, f"{reply.status_code}: {reply.text[:500]}"
    assert reply.headers["content-type"].split(";")[0] == "application/json"
    assert reply.headers["x-request-id"]
    return error_of(reply.json(), **expected)


def error_of(body: Any, **expected: Any) -> dict[str, Any]:
    """The inner error of a decoded envelope; keywords are exact values of its keys."""
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    for key, value in expected.items():
        assert error[key] == value, f"{key}: {error}"
    return dict(error)


def multipart(*parts: tuple[str, str | None, bytes]) -> bytes:
    """A multipart body of (name, filename, content) parts in the order given."""
    body = b""
    for name, filename, content in parts:
        disposition = f'Content-Disposition: form-data; name="{name}"'
        if filename is not None:
            disposition += f'; filename="{filename}"'
        body += f"--{BOUNDARY}\r\n{disposition}\r\n\r\n".encode() + content + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


MULTIPART = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def post_file(http: httpx2.Client, *parts: tuple[str, str | None, bytes]) -> httpx2.Response:
    return http.post("/v1/files", content=multipart(*parts), headers=MULTIPART)


def connect(url: str) -> socket.socket:
    target = urlsplit(url)
    assert target.hostname is not None
    assert target.port is not None
    return socket.create_connection((target.hostname, target.port), timeout=15)


def head(method: str, path: str, **headers: str) -> bytes:
    """Request line and headers; underscores in names become dashes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def read_reply(stream: socket.socket, *, seconds: float = 10) -> tuple[int, Any]:
    """(status, decoded JSON body) of one reply. A connection closed without an answer is status 0."""
    stream.settimeout(seconds)
    deadline = time.monotonic() + seconds
    received = b""
    while time.monotonic() < deadline:
        top, found, body = received.partition(b"\r\n\r\n")
        if found:
            fields = dict(line.lower().split(b": ", 1) for line in top.split(b"\r\n")[1:])
            length = int(fields.get(b"content-length", b"0"))
            if len(body) >= length:
                text = body[:length]
                return int(top.split(b" ")[1]), json.loads(text) if b"json" in fields.get(
                    b"content-type", b""
                ) else text
        try:
            block = stream.recv(65_536)
        except ConnectionError:
            block = b""
        if not block:
            return 0, received
        received += block
    raise AssertionError(f"no whole reply within {seconds} s: {received[:500]!r}")
