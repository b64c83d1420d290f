"""The client behind `submit` and `watch`, against scripted answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from rich.console import Console

from app.cli import client as module
from app.cli.client import Client, first_url, report, watch
from app.errors import InvalidRequest, Unavailable

Handler = Callable[[httpx2.Request], httpx2.Response]


def talking_to(handler: Handler, *, key: str | None = None) -> Client:
    return Client("http://test/v1", api_key=key, transport=httpx2.MockTransport(handler))


def batch(status: str, completed: int = 0, failed: int = 0, total: int = 3, **more: Any) -> dict[str, Any]:
    counts = {"completed": completed, "failed": failed, "total": total}
    return {"id": "batch_1", "status": status, "request_counts": counts, "errors": None, **more}


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_client_sends_the_key_and_the_path_below_v1() -> None:
    def handler(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["authorization"] == "Bearer k"
        assert request.url.path == "/v1/batches/batch_1"
        return httpx2.Response(200, json=batch("completed"))

    assert talking_to(handler, key="k").batch("batch_1")["status"] == "completed"


def test_client_shows_the_servers_sentence() -> None:
    envelope = {"error": {"message": "No batch found with id 'x'.", "type": "invalid_request_error"}}
    with pytest.raises(InvalidRequest, match=r"404 from /v1/batches/x: No batch found with id 'x'\."):
        talking_to(lambda _: httpx2.Response(404, json=envelope)).batch("x")


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (httpx2.Response(502, text="<html>bad gateway"), Unavailable),
        (httpx2.Response(200, text="<html>hello"), Unavailable),
        (httpx2.Response(200, json=[]), Unavailable),
        (httpx2.Response(403, json={"detail": "no"}), InvalidRequest),
    ],
    ids=["gateway", "not-json", "not-an-object", "other-shape"],
)
def test_client_survives_a_server_that_is_another(response: httpx2.Response, error: type[Exception]) -> None:
    with pytest.raises(error):
        talking_to(lambda _: response).batch("x")


def test_client_refuses_a_base_url_that_is_none() -> None:
    with pytest.raises((InvalidRequest, Unavailable)), Client("::::", api_key=None) as client:
        client.batch("x")


def test_download_streams_to_the_file_and_reports_a_refusal(tmp_path: Path) -> None:
    def handler(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/good/content"):
            return httpx2.Response(200, content=b"a\nb\n")
        return httpx2.Response(404, json={"error": {"message": "No such File object: bad"}})

    client = talking_to(handler)
    client.download("good", tmp_path / "good")
    assert (tmp_path / "good").read_bytes() == b"a\nb\n"
    with pytest.raises(InvalidRequest, match="No such File object: bad"):
        client.download("bad", tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_watch_follows_to_the_end_through_a_restart(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0)
    script = [
        batch("validating", total=0),
        batch("in_progress", 1),
        None,
        batch("finalizing", 3),
        batch("completed", 3),
    ]

    def handler(_: httpx2.Request) -> httpx2.Response:
        answer = script.pop(0)
        if answer is None:
            raise httpx2.ConnectError("connection refused")
        return httpx2.Response(200, json=answer)

    assert watch(talking_to(handler), "batch_1", console=console)["status"] == "completed"
    assert script == []
    assert "3/3" in text_of(console)


def test_watch_gives_up_on_a_server_that_stays_away(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0)

    def handler(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused")

    with pytest.raises(Unavailable, match="connection refused"):
        watch(talking_to(handler), "batch_1", console=console)


def test_report_lists_the_problems_of_a_file_that_was_refused(console: Console) -> None:
    problems = [{"line": 2, "message": "This line is not parseable as valid JSON."}, {"line": None, "message": "Odd."}]
    report(batch("failed", errors={"data": problems}), console)
    assert "batch_1 failed: 0 answered, 0 failed, 3 in all" in text_of(console)
    assert "  line 2: This line is not parseable as valid JSON.\n  Odd.\n" in text_of(console)


def test_first_url_skips_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"url": "/v1/embeddings"}).encode() + b"\n")
    assert first_url(path) == "/v1/embeddings"
    path.write_bytes(b"\n  \n" + json.dumps({"url": "/v1/embeddings"}).encode())
    assert first_url(path) == "/v1/embeddings"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"url": 3}', "\xff"], ids=["empty", "none", "list", "number", "junk"]
)
def test_first_url_refuses_a_line_without_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidRequest, match="--endpoint"):
        first_url(path)
