"""Checklist of openai-contract 9, uploads: items 41, 51 and 52, what may be asked for."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import openai
import pytest

from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.uploads import LINE, MIME, add, create, file_of, shift
from tests.acceptance.wire import refusal

MONTH_SECONDS = 2_592_000


def test_item_41_create_is_pending_for_an_hour(client: openai.OpenAI, http: httpx2.Client) -> None:
    upload = create(client, 100)
    assert upload.id.startswith("upload_")
    assert (upload.object, upload.status, upload.file) == ("upload", "pending", None)
    assert upload.expires_at == upload.created_at + 3600
    assert abs(upload.created_at - time.time()) < 30
    assert (upload.bytes, upload.filename, upload.purpose) == (100, "a.jsonl", "batch")
    body = {"filename": "a.jsonl", "purpose": "batch", "mime_type": MIME, "bytes": 1}
    assert set(http.post("/v1/uploads", json=body).json()) == {
        "id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status", "file"
    }  # fmt: skip


def test_item_41_replies_pass_strict_response_validation(server: Server) -> None:
    with server.sdk(_strict_response_validation=True) as client:
        upload = create(client, len(LINE))
        part = client.uploads.parts.create(upload.id, data=LINE)
        assert (part.object, part.upload_id) == ("upload.part", upload.id)
        assert part.id.startswith("part_")
        assert abs(part.created_at - time.time()) < 30
        file_of(client.uploads.complete(upload.id, part_ids=[part.id]))
        assert client.uploads.cancel(create(client, 5).id).status == "cancelled"


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"bytes": 0}, "bytes", "integer_below_min_value"),
        ({"bytes": -1}, "bytes", "integer_below_min_value"),
        ({"bytes": 209_715_201}, "bytes", "integer_above_max_value"),
        ({"bytes": "5"}, "bytes", "invalid_type"),
        ({"mime_type": "image/png"}, "mime_type", "invalid_value"),
        ({"mime_type": "jsonl"}, "mime_type", "invalid_value"),
        ({"purpose": "vision"}, "mime_type", "invalid_value"),
        ({"purpose": "batch_output"}, "purpose", None),
        ({"purpose": "vector_store"}, "purpose", None),
        ({"filename": "a.txt"}, None, None),
        ({"filename": ""}, "filename", "empty_string"),
        ({"filename": None}, "filename", "invalid_type"),
        ({"colour": "red"}, "colour", "unknown_parameter"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, "expires_after.seconds", None),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "expires_after.anchor", None),
    ],
)
def test_item_41_a_bad_create_is_400(
    http: httpx2.Client, changes: dict[str, Any], param: str | None, code: str | None
) -> None:
    body = {"filename": "a.jsonl", "purpose": "batch", "mime_type": MIME, "bytes": 10} | changes
    error = refusal(http.post("/v1/uploads", json=body), 400, type="invalid_request_error", param=param)
    assert code is None or error["code"] == code


@pytest.mark.parametrize("name", ["filename", "purpose", "bytes", "mime_type"])
def test_item_41_a_missing_field_is_400(http: httpx2.Client, name: str) -> None:
    body: dict[str, Any] = {"filename": "a.jsonl", "purpose": "batch", "mime_type": MIME, "bytes": 10}
    del body[name]
    refusal(http.post("/v1/uploads", json=body), 400, param=name, code="missing_required_parameter")


@pytest.mark.parametrize(
    ("purpose", "filename", "mime_type"),
    [
        ("batch", "upload", "text/plain"),
        ("batch", "a.JSONL", "application/x-ndjson; charset=utf-8"),
        ("fine-tune", "a.jsonl", "text/jsonl"),
        ("vision", "a.png", "IMAGE/PNG"),
        ("assistants", "a.pdf", "application/pdf"),
        ("user_data", "a.bin", "application/x-anything"),
        ("evals", "a.jsonl", "application/json"),
    ],
)
def test_item_41_purposes_and_types(client: openai.OpenAI, purpose: Any, filename: str, mime_type: str) -> None:
    upload = create(client, 5, purpose=purpose, filename=filename, mime_type=mime_type)
    assert (upload.purpose, upload.filename) == (purpose, filename)


@pytest.mark.parametrize("purpose", ["batch", "user_data"])
def test_item_51_expires_after_is_applied_to_the_file(server: Server, client: openai.OpenAI, purpose: Any) -> None:
    upload = create(client, len(LINE), purpose=purpose, expires_after={"anchor": "created_at", "seconds": 7200})
    ids = add(client, upload, LINE)
    shift(server, upload.id, 600)
    file = file_of(client.uploads.complete(upload.id, part_ids=ids))
    assert abs(file.created_at - time.time()) < 30, "the moment of completion"
    assert file.expires_at == file.created_at + 7200


@pytest.mark.parametrize(("purpose", "life"), [("batch", MONTH_SECONDS), ("user_data", None)])
def test_item_51_without_it_the_purpose_decides(client: openai.OpenAI, purpose: Any, life: int | None) -> None:
    upload = create(client, len(LINE), purpose=purpose)
    file = file_of(client.uploads.complete(upload.id, part_ids=add(client, upload, LINE)))
    assert (None if file.expires_at is None else file.expires_at - file.created_at) == life


def test_item_52_more_than_8_gb_is_400(client: openai.OpenAI, http: httpx2.Client) -> None:
    assert create(client, 8 << 30, purpose="user_data").bytes == 8 << 30
    for size in ((8 << 30) + 1, 10**30):
        body = {"filename": "a.bin", "purpose": "user_data", "mime_type": "application/zip", "bytes": size}
        refusal(http.post("/v1/uploads", json=body), 400, param="bytes", code="integer_above_max_value")


def test_item_52_parts_end_where_the_declared_size_is_far_exceeded(start_server: StartServer) -> None:
    server = start_server(
        settings={"BATCHYARD_LIMITS_UPLOAD_PART_MAX_BYTES": "1024", "BATCHYARD_LIMITS_UPLOAD_MAX_PARTS": "8"}
    )
    with server.sdk() as client:
        upload = create(client, 1000, purpose="vision", mime_type="image/png")
        add(client, upload, *[b"x" * 1000] * 3)
        with pytest.raises(openai.BadRequestError, match="3000 bytes already"):
            add(client, upload, b"x" * 25)
        many = create(client, 1000, purpose="vision", mime_type="image/png")
        add(client, many, *[b"x"] * 8)
        with pytest.raises(openai.BadRequestError, match="at most 8 parts"):
            add(client, many, b"x")
