"""Checklist of openai-contract 9, robustness: item 96, a connection that breaks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import openai
import pytest

from tests.acceptance.conftest import StartServer
from tests.acceptance.wire import BOUNDARY, connect, head, multipart

LINE = b'{"custom_id": "a"}\n'


def visible(client: openai.OpenAI) -> list[str]:
    return [file.id for file in client.files.list(limit=1000)]


def test_item_96_a_connection_dropped_while_sending_leaves_nothing(start_server: StartServer) -> None:
    server = start_server()
    body = multipart(("purpose", None, b"batch"), ("file", "a.jsonl", LINE * 200_000))
    with server.sdk() as client:
        for share in (0.01, 0.5, 0.999):
            with connect(server.url) as stream:
                stream.sendall(
                    head(
                        "POST",
                        "/v1/files",
                        Authorization=f"Bearer {server.key}",
                        Content_Type=f"multipart/form-data; boundary={BOUNDARY}",
                        Content_Length=str(len(body)),
                    )
                    + body[: int(len(body) * share)]
                )
        deadline = time.monotonic() + 20
        while server.blobs():
            assert time.monotonic() < deadline, server.blobs()
            time.sleep(0.05)
        assert visible(client) == []
        file = client.files.create(file=("a.jsonl", LINE * 200_000), purpose="batch")
        assert visible(client) == [file.id]
        assert len(server.blobs()) == 1


class _Cutter:
    """Passes TCP through to the server, and drops the first `cuts` connections when the answer comes."""

    def __init__(self, url: str, cuts: int) -> None:
        self._target = urlsplit(url)
        self._cuts = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._streams: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            cut = self.connections <= self._cuts
            server = socket.create_connection((self._target.hostname or "", self._target.port or 0))
            self._streams += [client, server]
            for target, arguments in ((_pass, (client, server, False)), (_pass, (server, client, cut))):
                thread = threading.Thread(target=target, args=arguments, daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
        for stream in self._streams:
            stream.close()


def _pass(source: socket.socket, target: socket.socket, cut: bool) -> None:
    """What comes from `source` goes to `target`; with `cut`, both ends are closed instead."""
    with suppress(OSError):
        while block := source.recv(65_536):
            if cut:
                break
            target.sendall(block)
    for stream in (source, target):
        with suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_answers(url: str, *, cuts: int) -> Generator[_Cutter]:
    cutter = _Cutter(url, cuts)
    thread = threading.Thread(target=cutter.run, daemon=True)
    thread.start()
    try:
        yield cutter
    finally:
        cutter.close()
        thread.join(10)


@pytest.mark.parametrize("key", [None, "once"])
def test_item_96_the_retry_of_a_lost_answer_is_consistent(start_server: StartServer, key: str | None) -> None:
    """Without a key a create is at least once (contract 8.1); with one it is exactly once."""
    server = start_server()
    with cut_answers(server.url, cuts=1) as cutter, server.sdk() as direct:
        with server.sdk(base_url=f"{cutter.url}/v1", max_retries=2) as client:
            headers = {} if key is None else {"Idempotency-Key": key}
            file = client.files.create(file=("a.jsonl", LINE * 1000), purpose="batch", extra_headers=headers)
        assert cutter.connections == 2
        found = visible(direct)
        assert file.id in found
        assert len(found) == (2 if key is None else 1)
        assert len(server.blobs()) == len(found), "as many bytes as files: no litter"
        for file_id in found:
            assert direct.files.content(file_id).content == LINE * 1000
