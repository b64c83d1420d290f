"""Checklist of openai-contract 9, files: items 10-32. Listing stands in the module beside."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types import FileObject

from tests.acceptance.batch import run, upload
from tests.acceptance.server import Server
from tests.acceptance.wire import BOUNDARY, MULTIPART, multipart, post_file, refusal

LINE = b'{"custom_id": "a"}\n'
MONTH_SECONDS = 2_592_000
BATCH_MAX_BYTES = 209_715_200
FOREIGN = b"\x00\x01\xff\xfe\r\n\r\nnot utf-8: \xe4\n\x00"


def test_item_10_create_from_tuple_keeps_name_and_size(client: openai.OpenAI) -> None:
    file = client.files.create(file=("a.jsonl", LINE), purpose="batch")
    assert (file.filename, file.bytes, file.purpose) == ("a.jsonl", len(LINE), "batch")


def test_item_10_create_passes_strict_response_validation(server: Server) -> None:
    with server.sdk(_strict_response_validation=True) as client:
        file = client.files.create(file=("a.jsonl", LINE), purpose="batch")
        assert client.files.retrieve(file.id) == file
        assert client.files.delete(file.id).deleted


@pytest.mark.parametrize("name", ["grüße-日本.jsonl", "naïve 🚀.jsonl", "a b;c=d.jsonl"])
def test_item_11_create_from_path_round_trips_the_name(client: openai.OpenAI, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(LINE)
    file = client.files.create(file=path, purpose="batch")
    assert file.filename == name
    assert client.files.retrieve(file.id).filename == name


def test_item_12_raw_bytes_are_accepted_when_the_first_line_is_json(client: openai.OpenAI) -> None:
    file = client.files.create(file=LINE, purpose="batch")
    assert (file.filename, file.bytes) == ("upload", len(LINE))


def test_item_12_raw_bytes_are_refused_when_the_first_line_is_not_json(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="Invalid file format"):
        client.files.create(file=b"hello\n", purpose="batch")


def test_item_13_status_object_and_id(client: openai.OpenAI, http: httpx2.Client) -> None:
    file = upload(client, LINE)
    assert (file.status, file.object) == ("processed", "file")
    assert file.id.startswith("file-")
    assert len(file.id) == len("file-") + 22
    assert set(http.get(f"/v1/files/{file.id}").json()) == {
        "id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status", "status_details"
    }  # fmt: skip


def test_item_14_a_batch_file_expires_after_thirty_days(client: openai.OpenAI) -> None:
    file = upload(client, LINE)
    assert file.expires_at == file.created_at + MONTH_SECONDS
    assert abs(file.created_at - time.time()) < 30


@pytest.mark.parametrize("purpose", ["user_data", "assistants", "fine-tune", "vision", "evals"])
def test_item_15_other_purposes_do_not_expire(client: openai.OpenAI, purpose: Any) -> None:
    assert client.files.create(file=("notes.txt", b"hello"), purpose=purpose).expires_at is None


@pytest.mark.parametrize("purpose", ["batch", "user_data"])
@pytest.mark.parametrize("seconds", [3600, MONTH_SECONDS])
def test_item_16_expires_after_counts_from_creation(client: openai.OpenAI, purpose: Any, seconds: int) -> None:
    file = client.files.create(
        file=("a.jsonl", LINE), purpose=purpose, expires_after={"anchor": "created_at", "seconds": seconds}
    )
    assert file.expires_at == file.created_at + seconds


@pytest.mark.parametrize(
    ("anchor", "seconds", "param"),
    [
        (b"created_at", b"3599", "seconds"),
        (b"created_at", b"2592001", "seconds"),
        (b"created_at", b"-1", "seconds"),
        (b"created_at", b"1e4", "seconds"),
        (b"created_at", "٣٦٠٠".encode(), "seconds"),
        (b"created_at", b"9" * 5000, "seconds"),
        (b"foo", b"3600", "anchor"),
    ],
)
def test_item_17_expires_after_out_of_bounds_is_400(
    http: httpx2.Client, anchor: bytes, seconds: bytes, param: str
) -> None:
    reply = post_file(
        http,
        ("purpose", None, b"batch"),
        ("expires_after[anchor]", None, anchor),
        ("expires_after[seconds]", None, seconds),
        ("file", "a.jsonl", LINE),
    )
    error = refusal(reply, 400, type="invalid_request_error")
    assert error["param"] in {f"expires_after[{param}]", f"expires_after.{param}"}


def test_item_18_missing_file_or_purpose_is_400(http: httpx2.Client) -> None:
    refusal(post_file(http, ("purpose", None, b"batch")), 400, type="invalid_request_error", param="file")
    refusal(post_file(http, ("file", "a.jsonl", LINE)), 400, type="invalid_request_error", param="purpose")


def test_item_19_unknown_purpose_is_400(http: httpx2.Client) -> None:
    reply = post_file(http, ("purpose", None, b"vector_store"), ("file", "a.jsonl", LINE))
    error = refusal(reply, 400, type="invalid_request_error", param="purpose", code=None)
    assert error["message"] == (
        "'vector_store' is not one of ['fine-tune', 'assistants', 'batch', 'user_data', 'vision', 'evals'] - 'purpose'"
    )


def test_item_20_a_name_without_jsonl_is_400(http: httpx2.Client) -> None:
    reply = post_file(http, ("purpose", None, b"batch"), ("file", "notes.txt", LINE))
    refusal(
        reply,
        400,
        type="invalid_request_error",
        param=None,
        code=None,
        message="Invalid file format for Batch API. Must be .jsonl",
    )


def test_item_21_an_empty_file_is_400(http: httpx2.Client) -> None:
    error = refusal(post_file(http, ("purpose", None, b"batch"), ("file", "a.jsonl", b"")), 400)
    assert error["type"] == "invalid_request_error"
    assert "Invalid file format" in error["message"]
    assert "jsonl" in error["message"]


@pytest.mark.parametrize("content", [b"\n", b" \r\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_item_21_a_file_of_blank_lines_fails_as_empty(client: openai.OpenAI, content: bytes) -> None:
    """[I] of contract 4.2: accepted at upload, `empty_file` at validation."""
    batch = run(client, content)
    assert batch.status == "failed"
    assert batch.errors is not None
    [problem] = batch.errors.data or []
    assert (problem.code, problem.param, problem.line) == ("empty_file", None, None)


@pytest.mark.parametrize("first", [b"hello", b"{", b"\xff\xfe{}", b"<html>"])
def test_item_22_first_line_not_json_is_400(http: httpx2.Client, first: bytes) -> None:
    reply = post_file(http, ("purpose", None, b"batch"), ("file", "a.jsonl", first + b"\n" + LINE))
    error = refusal(reply, 400, type="invalid_request_error")
    assert "Invalid file format" in error["message"]
    assert "jsonl" in error["message"]


def test_item_22_a_later_bad_line_is_accepted(http: httpx2.Client) -> None:
    reply = post_file(http, ("purpose", None, b"batch"), ("file", "a.jsonl", LINE + b"hello\n"))
    assert reply.status_code == 200


def test_item_23_file_before_purpose_is_accepted(http: httpx2.Client) -> None:
    reply = post_file(http, ("file", "a.jsonl", LINE), ("purpose", None, b"batch"))
    assert reply.status_code == 200
    assert reply.json()["bytes"] == len(LINE)


def test_item_23_a_refused_purpose_after_the_file_leaves_nothing(server: Server, http: httpx2.Client) -> None:
    before = server.blobs()
    refusal(
        post_file(http, ("file", "a.txt", b"x" * 300_000), ("purpose", None, b"vector_store")), 400, param="purpose"
    )
    refusal(post_file(http, ("file", "a.txt", b"x" * 300_000), ("purpose", None, b"batch")), 400)
    assert server.blobs() <= before


def _padded(size: int) -> Iterator[bytes]:
    """A batch file of exactly `size` bytes: one line, then blanks. Blocks of 1 MiB."""
    yield LINE
    block = b" " * 1023 + b"\n"
    left = size - len(LINE)
    while left:
        piece = (block * 1024)[: min(left, 1 << 20)]
        yield piece
        left -= len(piece)


def _stream_file(http: httpx2.Client, size: int) -> httpx2.Response:
    prefix, suffix = multipart(("purpose", None, b"batch"), ("file", "big.jsonl", b"@@")).split(b"@@")

    def body() -> Iterator[bytes]:
        yield prefix
        yield from _padded(size)
        yield suffix

    length = len(prefix) + size + len(suffix)
    return http.post("/v1/files", content=body(), headers=MULTIPART | {"content-length": str(length)})


@pytest.fixture(scope="module")
def big_file(server: Server) -> Generator[tuple[FileObject, int]]:
    """The largest batch file allowed, and by how many bytes the server's memory grew while it came in."""
    with server.http() as http, server.sdk() as client:
        _stream_file(http, 10 << 20)  # buffers and threads that stay are not this file's
        before = server.memory_bytes()
        reply = _stream_file(http, BATCH_MAX_BYTES)
        assert reply.status_code == 200, reply.text
        file = client.files.retrieve(reply.json()["id"])
        yield file, server.memory_bytes() - before
        client.files.delete(file.id)


@pytest.mark.timeout(120)
def test_item_24_the_largest_batch_file_is_accepted_in_constant_memory(big_file: tuple[FileObject, int]) -> None:
    file, growth_bytes = big_file
    assert file.bytes == BATCH_MAX_BYTES
    assert growth_bytes < 40 << 20


@pytest.mark.timeout(120)
def test_item_24_one_byte_more_is_too_large(server: Server, http: httpx2.Client) -> None:
    before = server.blobs()
    reply = _stream_file(http, BATCH_MAX_BYTES + 1)
    refusal(reply, 400, type="invalid_request_error", param=None, code=None, message="File is too large.")
    assert server.blobs() <= before


def test_item_25_retrieve_equals_create(client: openai.OpenAI) -> None:
    file = upload(client, LINE)
    assert client.files.retrieve(file.id) == file


@pytest.mark.parametrize("file_id", ["file-abc123", "nonsense", "file-" + "x" * 500, "ünï", "%00", "batch_1"])
def test_item_26_retrieve_unknown_is_404_naming_the_id(client: openai.OpenAI, file_id: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.retrieve(file_id)
    error = caught.value
    assert (error.type, error.param, error.code) == ("invalid_request_error", "id", None)
    assert isinstance(error.body, dict)
    assert error.body["message"] == f"No such File object: {file_id[:128]}"


def test_item_27_a_deleted_file_is_gone(client: openai.OpenAI) -> None:
    file = upload(client, LINE)
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (file.id, "file", True)
    for again in (client.files.retrieve, client.files.delete, client.files.content):
        with pytest.raises(openai.NotFoundError) as caught:
            again(file.id)
        assert caught.value.param == "id"
    assert file.id not in [item.id for item in client.files.list(limit=100)]


@pytest.mark.parametrize(
    ("purpose", "content"),
    [
        ("batch", b'{"a": "\\u0000 \xc2\x85 \xe2\x80\xa8 \xf0\x9f\x9a\x80"}\r\n{"b": 1}\r\n\r\nlast without newline'),
        ("batch", b'\xef\xbb\xbf{"a": 1}\n\x00\n'),
        ("fine-tune", FOREIGN),
        ("vision", FOREIGN * 100_000),
        ("evals", b""),
    ],
)
def test_item_28_content_returns_identical_bytes(client: openai.OpenAI, purpose: Any, content: bytes) -> None:
    """[D] is the download; which purposes may hold bytes that are not text is ours: all but batch."""
    file = client.files.create(file=("a.jsonl", content), purpose=purpose)
    assert file.bytes == len(content)
    assert client.files.content(file.id).content == content


def test_item_29_text_without_charset_decodes_as_utf_8(client: openai.OpenAI) -> None:
    text = '{"a": "grüße 日本 🚀 \u2028"}\n'
    reply = client.files.content(upload(client, text.encode()).id)
    assert "charset" not in reply.response.headers["content-type"]
    assert reply.text == text


@pytest.mark.timeout(120)
def test_item_30_streamed_content_is_the_same_and_not_buffered(
    server: Server, client: openai.OpenAI, big_file: tuple[FileObject, int]
) -> None:
    file, _ = big_file
    expected = hashlib.sha256()
    for block in _padded(BATCH_MAX_BYTES):
        expected.update(block)
    found = hashlib.sha256()
    before = peak = server.memory_bytes()
    with client.files.with_streaming_response.content(file.id) as reply:
        assert reply.headers["content-length"] == str(BATCH_MAX_BYTES)
        for number, block in enumerate(reply.iter_bytes(1 << 20)):
            found.update(block)
            if number % 20 == 0:
                peak = max(peak, server.memory_bytes())
    assert found.digest() == expected.digest()
    assert peak - before < 40 << 20


@pytest.mark.parametrize("purpose", ["user_data", "assistants"])
def test_item_31_content_of_a_forbidden_purpose_is_400(client: openai.OpenAI, purpose: Any) -> None:
    file = client.files.create(file=("a.txt", b"hello"), purpose=purpose)
    with pytest.raises(openai.BadRequestError) as caught:
        client.files.content(file.id)
    error = caught.value
    assert (error.type, error.param, error.code) == ("invalid_request_error", None, None)
    assert isinstance(error.body, dict)
    assert error.body["message"] == f"Not allowed to download files of purpose: {purpose}"


def test_item_32_wait_for_processing_returns_at_once(client: openai.OpenAI) -> None:
    file = upload(client, LINE)
    start = time.monotonic()
    assert client.files.wait_for_processing(file.id).status == "processed"
    assert time.monotonic() - start < 2


def test_item_18_other_fields_are_refused(http: httpx2.Client) -> None:
    """The published schema forbids additional properties (contract 1.1)."""
    reply = post_file(http, ("purpose", None, b"batch"), ("colour", None, b"red"), ("file", "a.jsonl", LINE))
    refusal(reply, 400, type="invalid_request_error", param="colour", code="unknown_parameter")


def test_item_18_two_files_are_refused(server: Server, http: httpx2.Client) -> None:
    before = server.blobs()
    reply = post_file(http, ("purpose", None, b"batch"), ("file", "a.jsonl", LINE), ("file", "b.jsonl", LINE))
    refusal(reply, 400, type="invalid_request_error", param="file")
    assert server.blobs() <= before


def test_item_18_a_multipart_body_cut_short_is_400(server: Server, http: httpx2.Client) -> None:
    before = server.blobs()
    body = multipart(("purpose", None, b"batch"), ("file", "a.jsonl", LINE * 10))
    for cut in (len(body) - 4, len(body) - 60, body.index(LINE) + 5, 10, 0):
        refusal(http.post("/v1/files", content=body[:cut], headers=MULTIPART), 400, type="invalid_request_error")
    assert server.blobs() <= before
    assert BOUNDARY.encode() in body
