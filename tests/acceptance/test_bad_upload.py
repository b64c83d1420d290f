"""Malformed, broken-off and hostile uploads: the envelope every time, and nothing stays on disk or in the database."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import openai
import pytest

from tests.acceptance.batch import CHAT, upload
from tests.acceptance.server import Server
from tests.acceptance.wire import MULTIPART, connect, error_of, head, multipart, post_file, read_reply, refusal

LINE = b'{"custom_id": "a"}\n'
GOOD = {"input_file_id": "file-unknown", "endpoint": CHAT, "completion_window": "24h"}


@pytest.mark.parametrize(
    "name",
    ["a\x00.jsonl", "\x7f.jsonl", "a\tb.jsonl", "x" * 5000 + ".jsonl", "../../evil.jsonl", "\\..\\evil.jsonl", ""],
)
def test_an_odd_filename_is_kept_or_refused_and_never_a_path(
    server: Server, http: httpx2.Client, tmp_path: Path, name: str
) -> None:
    reply = post_file(http, ("purpose", None, b"batch"), ("file", name, LINE))
    if reply.status_code == 200:
        assert http.get(f"/v1/files/{reply.json()['id']}").json()["filename"] == reply.json()["filename"]
    else:
        refusal(reply, 400, type="invalid_request_error")
    assert not list(server.data_dir.parent.rglob("*evil*"))


@pytest.mark.parametrize(
    "name", [b'filename="\xff\xfe.jsonl"', b"filename*=UTF-8''%ff.jsonl", b'filename="a', b"filename=a.jsonl"]
)
def test_an_odd_disposition_is_an_answer_not_a_fault(http: httpx2.Client, name: bytes) -> None:
    body = multipart(("purpose", None, b"batch"), ("file", "MARK", LINE)).replace(b'filename="MARK"', name)
    reply = http.post("/v1/files", content=body, headers=MULTIPART)
    if reply.status_code != 200:
        refusal(reply, 400, type="invalid_request_error")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'{"purpose": "batch"}'),
        ("text/plain", LINE),
        (None, LINE),
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=", b"--\r\n"),
        ("multipart/form-data; boundary=" + "x" * 300, b"--x\r\n"),
        ("multipart/form-data; boundary=ab", b"--ab\r\nContent-Disposition: form-data\r\n\r\nx\r\n--ab--\r\n"),
        ("multipart/form-data; boundary=ab", b"--ab\r\n\r\nx\r\n--ab--\r\n"),
        ("multipart/form-data; boundary=ab", b"--ab\r\n" + b"X: y\r\n" * 5000 + b"\r\nx\r\n--ab--\r\n"),
        ("multipart/form-data; boundary=ab", b"--ab\r\nX: " + b"y" * 200_000 + b"\r\n\r\nx\r\n--ab--\r\n"),
        ("multipart/form-data; boundary=ab", b"no boundary here"),
        ("multipart/form-data; boundary=ab", b"--ab--\r\n"),
        ("multipart/form-data; boundary=ab", b"\xff" * 1000),
        ("application/x-www-form-urlencoded", b"purpose=batch&file=abc"),
    ],
)
def test_an_upload_that_is_no_form_is_400(
    server: Server, http: httpx2.Client, content_type: str | None, body: bytes
) -> None:
    before = server.blobs()
    headers = {} if content_type is None else {"content-type": content_type}
    refusal(http.post("/v1/files", content=body, headers=headers), 400, type="invalid_request_error")
    assert server.blobs() <= before


def test_a_form_field_without_end_is_refused_in_bounded_memory(server: Server, http: httpx2.Client) -> None:
    before = server.memory_bytes()
    reply = post_file(http, ("purpose", None, b"b" * (30 << 20)), ("file", "a.jsonl", LINE))
    refusal(reply, 400, type="invalid_request_error")
    assert server.memory_bytes() - before < 20 << 20
    many = [(f"field{number}", None, b"x") for number in range(3000)]
    refusal(post_file(http, *many, ("file", "a.jsonl", LINE)), 400, type="invalid_request_error")


def test_chunked_bodies_are_read_like_others(http: httpx2.Client) -> None:
    form = multipart(("purpose", None, b"batch"), ("file", "a.jsonl", LINE))
    reply = http.post("/v1/files", content=iter(form[i : i + 1] for i in range(len(form))), headers=MULTIPART)
    assert reply.status_code == 200
    assert reply.json()["bytes"] == len(LINE)
    body = json.dumps(GOOD).encode()
    reply = http.post("/v1/batches", content=iter([body[:10], body[10:]]), headers={"content-type": "application/json"})
    assert reply.status_code == 200


def _rows(server: Server) -> tuple[int, ...]:
    with server.database() as database:
        return tuple(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("files", "segments"))


def test_a_half_sent_upload_leaves_nothing(server: Server) -> None:
    before, blobs = _rows(server), server.blobs()
    body = multipart(("purpose", None, b"batch"), ("file", "a.jsonl", LINE * 400_000))
    fields = {"Authorization": f"Bearer {server.key}", "Content_Type": MULTIPART["content-type"]}
    for chunked in (False, True):
        framing = {"Transfer_Encoding": "chunked"} if chunked else {"Content_Length": str(len(body))}
        half = body[: len(body) // 2]
        with connect(server.url) as stream:
            stream.sendall(head("POST", "/v1/files", **fields, **framing))
            stream.sendall(b"%x\r\n%b\r\n" % (len(half), half) if chunked else half)
            deadline = time.monotonic() + 5
            while server.blobs() <= blobs:  # it is being written: now the client goes away
                assert time.monotonic() < deadline
                time.sleep(0.01)
    deadline = time.monotonic() + 5
    while not server.blobs() <= blobs:
        assert time.monotonic() < deadline, server.blobs() - blobs
        time.sleep(0.02)
    assert _rows(server) == before


@pytest.mark.parametrize("key", ["sk-wrong", None])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_with_a_wrong_key_is_refused_before_its_body(server: Server, key: str | None, chunked: bool) -> None:
    """Only the headers and a kilobyte were sent, and the answer is there."""
    fields = {"Content_Type": MULTIPART["content-type"]} | ({"Authorization": f"Bearer {key}"} if key else {})
    fields |= {"Transfer_Encoding": "chunked"} if chunked else {"Content_Length": "100000000"}
    blobs = server.blobs()
    with connect(server.url) as stream:
        stream.sendall(head("POST", "/v1/files", **fields) + (b"400\r\n" if chunked else b"") + b"x" * 1024)
        status, body = read_reply(stream, seconds=5)
    assert status == 401
    error_of(body, code="invalid_api_key" if key else None)
    assert server.blobs() <= blobs


def test_an_upload_that_says_it_is_too_large_is_refused_before_its_body(server: Server) -> None:
    fields = {"Authorization": f"Bearer {server.key}", "Content_Type": MULTIPART["content-type"]}
    with connect(server.url) as stream:
        stream.sendall(head("POST", "/v1/files", Content_Length=str(10 << 30), **fields) + b"x" * 1024)
        status, body = read_reply(stream, seconds=5)
    assert status in {400, 413}
    error_of(body, type="invalid_request_error")


def test_parallel_uploads_and_deletes_are_safe(server: Server) -> None:
    with server.sdk() as client:

        def once(number: int) -> int:
            content = LINE * (number + 1)
            file = upload(client, content)
            assert client.files.content(file.id).content == content
            with ThreadPoolExecutor(2) as deletes:
                outcomes = list(deletes.map(lambda _: _deleted(client, file.id), range(2)))
            return outcomes.count(True)

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(once, range(40))) == [1] * 40


def _deleted(client: openai.OpenAI, file_id: str) -> bool:
    try:
        return client.files.delete(file_id).deleted
    except openai.NotFoundError:
        return False


@pytest.mark.timeout(120)
@pytest.mark.parametrize("megabytes", [1, 50, 210])
def test_the_sdk_hears_why_a_large_upload_is_refused(server: Server, megabytes: int) -> None:
    """A client that writes its whole body before it reads must find the refusal, not a broken connection."""
    data = b"x" * (megabytes << 20)
    with server.sdk(api_key="sk-wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.files.create(file=("a.jsonl", data), purpose="batch")
    with server.sdk() as client:
        with pytest.raises(openai.BadRequestError, match="vector_store"):
            client.files.create(file=("a.jsonl", data), purpose="vector_store")  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match=r"Must be \.jsonl"):
            client.files.create(file=("a.txt", data), purpose="batch")
        with pytest.raises(openai.BadRequestError, match=r"Must be \.jsonl|too large"):
            client.files.create(file=("a.jsonl", data), purpose="batch")
        assert upload(client, LINE).status == "processed"
