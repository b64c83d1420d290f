"""Bytes in and out: upload, validation and download of a 200 MB file of 50,000 lines, and the server's memory."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import httpx2

from bench.drain import request_file
from bench.report import Row, judged
from bench.server import PeakMemory, Server, serving

NAME = "wire"
LINES = 50_000
LINE_BYTES = 4194  # 50,000 of them are just below OpenAI's 209,715,200 bytes
POLL_SECONDS = 0.005
_BLOCK = 1 << 20


def measure(*, runs: int, scale: float) -> list[Row]:
    """`scale` multiplies the number of lines. Each run has a fresh server."""
    content = request_file(max(1, int(LINES * scale)), line_bytes=LINE_BYTES)
    megabytes = len(content) / 1e6
    upload, validated, download = [], [], []
    memory: dict[str, list[float]] = {"upload": [], "validation": [], "download": []}
    peaks: dict[str, PeakMemory] = {}
    for _ in range(runs):
        # No line is answered in time to disturb: what is measured here ends with the validation.
        with (
            serving("--set", "engine.echo_delay_seconds=60") as server,
            httpx2.Client(base_url=server.base_url) as client,
        ):
            idle = server.memory_bytes()
            with PeakMemory(server) as peaks["upload"]:
                file_id, seconds = _upload(client, content)
            upload.append(megabytes / seconds)
            with PeakMemory(server) as peaks["validation"]:
                validated.append(_validate(client, file_id))
            with PeakMemory(server) as peaks["download"]:
                download.append(megabytes / _download(server, file_id, len(content)))
            for name, peak in peaks.items():
                memory[name].append((peak.bytes - idle) / 1e6)
    what = f"{megabytes:.0f} MB, loopback"
    return [
        judged(Row("upload", "MB/s", tuple(upload), note=what), ">= 400", lambda rate: rate >= 400),
        judged(Row("download", "MB/s", tuple(download), note=what), ">= 400", lambda rate: rate >= 400),
        judged(
            Row("validation", "s", tuple(validated), note=f"create to in_progress, {LINES * scale:,.0f} lines"),
            "<= 1.0",
            lambda seconds: seconds <= 1.0,
        ),
        *(
            judged(Row(f"{name}, memory above idle", "MB", tuple(found), note=what), "<= 50", lambda size: size <= 50)
            for name, found in memory.items()
        ),
    ]


def _upload(client: httpx2.Client, content: bytes) -> tuple[str, float]:
    """Id and seconds. The body is built before the clock starts."""
    boundary = "bench-boundary"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
        'Content-Disposition: form-data; name="file"; filename="bench.jsonl"\r\n\r\n'
    ).encode()
    body = head + content + f"\r\n--{boundary}--\r\n".encode()
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    url = urlsplit(str(client.base_url))
    request = (
        f"POST /v1/files HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: {headers['content-type']}\r\nConnection: close\r\n\r\n"
    ).encode()
    # A bare socket: a client library in Python would be the slower end.
    with socket.create_connection((url.hostname or "", url.port or 80), timeout=60) as connection:
        began = time.monotonic()
        connection.sendall(request)
        connection.sendall(body)
        answer = _read_all(connection)
        seconds = time.monotonic() - began
    if b" 200 " not in answer.split(b"\r\n", 1)[0]:
        raise RuntimeError(f"the upload was refused: {answer[:500]!r}")
    newest = client.get("files", params={"limit": 1}).raise_for_status().json()["data"][0]
    return str(newest["id"]), seconds


def _read_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(_BLOCK):
        pieces.append(piece)
    return b"".join(pieces)


def _validate(client: httpx2.Client, file_id: str) -> float:
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    began = time.monotonic()
    batch = client.post("batches", json=body).raise_for_status().json()
    while batch["status"] == "validating":
        time.sleep(POLL_SECONDS)
        batch = client.get(f"batches/{batch['id']}").raise_for_status().json()
    seconds = time.monotonic() - began
    if batch["status"] != "in_progress":
        raise RuntimeError(f"the batch became {batch['status']}: {batch['errors']}")
    client.post(f"batches/{batch['id']}/cancel").raise_for_status()
    return seconds


def _download(server: Server, file_id: str, size: int) -> float:
    url = urlsplit(server.base_url)
    request = f"GET /v1/files/{file_id}/content HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n".encode()
    buffer = memoryview(bytearray(_BLOCK))
    with socket.create_connection((url.hostname or "", url.port or 80), timeout=60) as connection:
        began = time.monotonic()
        connection.sendall(request)
        taken = 0
        while read := connection.recv_into(buffer):
            taken += read
        seconds = time.monotonic() - began
    if taken < size:
        raise RuntimeError(f"the download ended after {taken} of {size} bytes")
    return seconds
