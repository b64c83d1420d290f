"""Checklist of openai-contract 9, uploads: items 42-50, parts and completion."""

from __future__ import annotations

import hashlib
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import httpx2
import openai
import pytest

from tests.acceptance.batch import CHAT, by_id, chat, counts, jsonl, rows, wait
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.uploads import LINE, MIME, add, create, file_of, shift
from tests.acceptance.wire import BOUNDARY, MULTIPART, connect, head, multipart, read_reply, refusal

PART_MAX_BYTES = 67_108_864


def test_item_42_the_file_is_the_parts_in_the_given_order(client: openai.OpenAI, server: Server) -> None:
    first, second, third = LINE * 3, b'{"custom_id": "b"}\n' * 5, os.urandom(300_000)
    upload = create(client, len(first + second + third), purpose="fine-tune")
    late, unused, early, last = add(client, upload, second, b"never used", first, third)
    before = server.blobs()
    file = file_of(client.uploads.complete(upload.id, part_ids=[early, late, last]))
    assert client.files.content(file.id).content == first + second + third
    assert (file.bytes, file.filename, file.purpose) == (len(first + second + third), "a.jsonl", "fine-tune")
    assert client.files.retrieve(file.id) == file
    assert file.id in [one.id for one in client.files.list(limit=100)]
    assert unused
    assert len(before - server.blobs()) == 1, "the part that is not used goes, and nothing is copied"
    assert server.blobs() <= before


def test_item_42_ranges_run_across_parts(client: openai.OpenAI, http: httpx2.Client) -> None:
    upload = create(client, 30, purpose="evals")
    ids = add(client, upload, b"0123456789", b"abcdefghij", b"ABCDEFGHIJ")
    file = file_of(client.uploads.complete(upload.id, part_ids=ids[::-1]))
    reply = http.get(f"/v1/files/{file.id}/content", headers={"range": "bytes=8-21"})
    assert (reply.status_code, reply.content) == (206, b"IJabcdefghij01")


def test_item_43_md5_is_checked_over_the_whole(client: openai.OpenAI) -> None:
    pieces = [LINE, os.urandom(3_000_000).replace(b"\n", b" "), b"\n"]
    whole = b"".join(pieces)
    upload = create(client, len(whole))
    ids = add(client, upload, *pieces)
    for wrong in ("0" * 32, hashlib.md5(whole[1:]).hexdigest(), "", "no hex", hashlib.sha256(whole).hexdigest()):
        with pytest.raises(openai.BadRequestError) as caught:
            client.uploads.complete(upload.id, part_ids=ids, md5=wrong)
        assert caught.value.param == "md5"
    right = hashlib.md5(whole).hexdigest()
    done = client.uploads.complete(upload.id, part_ids=ids, md5=right.upper())
    assert client.uploads.complete(upload.id, part_ids=ids, md5=right) == done, "the same, spelled another way"
    assert client.files.content(file_of(done).id).content == whole


def test_item_44_another_size_than_declared_is_400_and_changes_nothing(client: openai.OpenAI) -> None:
    upload = create(client, 2 * len(LINE))
    [first] = add(client, upload, LINE)
    for ids in ([], [first]):
        with pytest.raises(openai.BadRequestError) as caught:
            client.uploads.complete(upload.id, part_ids=ids)
        assert (caught.value.param, caught.value.code) == (None, None)
    [second] = add(client, upload, LINE)
    assert file_of(client.uploads.complete(upload.id, part_ids=[first, second])).bytes == 2 * len(LINE)


@pytest.mark.timeout(120)
def test_item_45_a_part_has_at_most_64_mib(client: openai.OpenAI, http: httpx2.Client, server: Server) -> None:
    upload = create(client, PART_MAX_BYTES, purpose="vision", mime_type="image/png")
    small = create(client, 1)
    add(client, small, b"x")  # buffers and threads that stay are not the large part's
    part = os.urandom(1 << 20) * 64
    assert len(part) == PART_MAX_BYTES
    before = server.memory_bytes()
    [whole] = add(client, upload, part)
    assert server.memory_bytes() - before < 40 << 20
    blobs = server.blobs()
    with pytest.raises(openai.BadRequestError) as caught:
        add(client, upload, part + b"x")
    assert (caught.value.param, caught.value.code) == ("data", None)
    assert "File is too large." in str(caught.value)
    announced = http.post(
        f"/v1/uploads/{upload.id}/parts",
        content=multipart(("data", "upload", b"x")),
        headers=MULTIPART | {"transfer-encoding": "chunked"},
    )
    assert announced.status_code == 200
    assert len(server.blobs() - blobs) == 1
    assert file_of(client.uploads.complete(upload.id, part_ids=[whole])).bytes == PART_MAX_BYTES


def test_item_46_a_cancelled_upload_takes_nothing(client: openai.OpenAI, server: Server) -> None:
    upload = create(client, len(LINE))
    before = server.blobs()
    [part] = add(client, upload, LINE)
    assert client.uploads.cancel(upload.id).status == "cancelled"
    assert server.blobs() <= before
    assert client.uploads.cancel(upload.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        add(client, upload, LINE)
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        client.uploads.complete(upload.id, part_ids=[part])
    assert server.blobs() <= before


def test_item_46_a_completed_upload_takes_nothing(client: openai.OpenAI) -> None:
    upload = create(client, len(LINE))
    [part] = add(client, upload, LINE)
    done = client.uploads.complete(upload.id, part_ids=[part])
    assert client.uploads.complete(upload.id, part_ids=[part]) == done, "the SDK repeats what got no answer"
    for refused in (
        lambda: client.uploads.cancel(upload.id),
        lambda: add(client, upload, LINE),
        lambda: client.uploads.complete(upload.id, part_ids=[part, part]),
        lambda: client.uploads.complete(upload.id, part_ids=[part], md5=hashlib.md5(LINE).hexdigest()),
    ):
        with pytest.raises(openai.BadRequestError, match="completed"):
            refused()
    assert client.files.content(file_of(done).id).content == LINE
    client.files.delete(file_of(done).id)
    assert client.uploads.complete(upload.id, part_ids=[part]).file is None


def test_item_47_after_an_hour_parts_are_refused(server: Server, client: openai.OpenAI) -> None:
    upload = create(client, len(LINE))
    [part] = add(client, upload, LINE)
    shift(server, upload.id, 3570)
    add(client, upload, LINE)
    shift(server, upload.id, 31)
    for refused in (
        lambda: add(client, upload, LINE),
        lambda: client.uploads.complete(upload.id, part_ids=[part]),
        lambda: client.uploads.cancel(upload.id),
    ):
        with pytest.raises(openai.BadRequestError, match="expired"):
            refused()


def test_item_47_the_parts_of_an_expired_upload_are_swept(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_RETENTION_SWEEP_SECONDS": "0.1"})
    with server.sdk() as client:
        kept, lapsed = create(client, len(LINE)), create(client, len(LINE))
        ids = add(client, kept, LINE)
        before = server.blobs()
        add(client, lapsed, LINE, LINE)
        shift(server, lapsed.id, 2 * 3600)
        deadline = time.monotonic() + 20
        while server.blobs() != before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with server.database() as database:
            found = dict(database.execute("SELECT id, status FROM uploads").fetchall())
        assert found == {kept.id: "pending", lapsed.id: "expired"}
        assert client.files.content(file_of(client.uploads.complete(kept.id, part_ids=ids)).id).content == LINE


@pytest.mark.parametrize("upload_id", ["upload_abc123", "nonsense", "ünï", "%00", "file-1"])
def test_item_48_an_unknown_upload_is_404(client: openai.OpenAI, upload_id: str) -> None:
    for asked in (
        lambda: client.uploads.parts.create(upload_id, data=LINE),
        lambda: client.uploads.complete(upload_id, part_ids=[]),
        lambda: client.uploads.cancel(upload_id),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            asked()
        assert (caught.value.type, caught.value.param, caught.value.code) == ("invalid_request_error", "id", None)


def test_item_48_an_unknown_part_is_400(client: openai.OpenAI) -> None:
    upload, other = create(client, 2 * len(LINE)), create(client, len(LINE))
    [part], [foreign] = add(client, upload, LINE), add(client, other, LINE)
    for ids in ([part, "part_abc"], [part, foreign], [part, part], [part, ""], [part, "x" * 512]):
        with pytest.raises(openai.BadRequestError) as caught:
            client.uploads.complete(upload.id, part_ids=ids)
        assert caught.value.param == "part_ids"
    [second] = add(client, upload, LINE)
    assert file_of(client.uploads.complete(upload.id, part_ids=[second, part])).bytes == 2 * len(LINE)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("data", None, b"a field")],
        [("file", "upload", LINE)],
        [("data", "upload", LINE), ("data", "upload", LINE)],
        [("data", "upload", b"")],
        [("purpose", None, b"batch"), ("data", "upload", LINE)],
    ],
    ids=["nothing", "field", "other-name", "twice", "empty", "more"],
)
def test_item_48_a_part_is_one_file_named_data(
    server: Server, client: openai.OpenAI, http: httpx2.Client, parts: list[tuple[str, str | None, bytes]]
) -> None:
    upload = create(client, len(LINE))
    before = server.blobs()
    reply = http.post(f"/v1/uploads/{upload.id}/parts", content=multipart(*parts), headers=MULTIPART)
    refusal(reply, 400, type="invalid_request_error")
    assert server.blobs() <= before


@pytest.mark.timeout(120)
@pytest.mark.parametrize("source", ["path", "bytes"])
def test_item_49_upload_file_chunked_makes_a_batch_input(
    client: openai.OpenAI, tmp_path: Path, source: Literal["path", "bytes"]
) -> None:
    wanted = {f"r{number}": f"naïve ☃ {number} " * 20 for number in range(600)}
    data = jsonl(chat(custom_id, text) for custom_id, text in wanted.items())
    given: dict[str, Any] = {"file": data, "filename": "in.jsonl", "bytes": len(data)}
    if source == "path":
        (tmp_path / "in.jsonl").write_bytes(data)
        given = {"file": tmp_path / "in.jsonl"}
    upload = client.uploads.upload_file_chunked(
        **given, mime_type=MIME, purpose="batch", part_size=10_007, md5=hashlib.md5(data).hexdigest()
    )
    file = file_of(upload)
    assert client.files.content(file.id).content == data
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    batch = wait(client, batch.id, seconds=90)
    assert (batch.status, counts(batch)) == ("completed", (600, 600, 0))
    found = by_id(rows(client, batch.output_file_id))
    assert set(found) == set(wanted)


def test_item_49_a_batch_file_is_looked_at_when_completed(client: openai.OpenAI) -> None:
    upload = create(client, 40)
    hello, rest, good = add(client, upload, b"hello" + b" " * 14 + b"\n", b" " * 20, LINE + b"\n")
    for ids in ([hello, rest], [rest, hello]):
        with pytest.raises(openai.BadRequestError, match="Invalid file format for Batch API"):
            client.uploads.complete(upload.id, part_ids=ids)
    assert file_of(client.uploads.complete(upload.id, part_ids=[good, rest])).bytes == 40


def test_item_49_the_first_line_may_run_across_parts(client: openai.OpenAI) -> None:
    pieces = [bytes([byte]) for byte in LINE]
    upload = create(client, len(LINE))
    ids = add(client, upload, *pieces)
    assert file_of(client.uploads.complete(upload.id, part_ids=ids)).bytes == len(LINE)


@pytest.mark.timeout(120)
def test_item_50_eight_threads_add_parts_at_once(client: openai.OpenAI) -> None:
    pieces = [os.urandom(random.Random(number).randrange(1, 700_000)) for number in range(64)]
    whole = b"".join(pieces)
    upload = create(client, len(whole), purpose="fine-tune")
    order = list(range(64))
    random.Random(7).shuffle(order)

    def send(number: int) -> tuple[int, str]:
        return number, client.uploads.parts.create(upload.id, data=pieces[number]).id

    with ThreadPoolExecutor(8) as pool:
        ids = dict(pool.map(send, order))
    assert len(set(ids.values())) == 64
    part_ids = [ids[number] for number in range(64)]
    md5 = hashlib.md5(whole).hexdigest()
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: client.uploads.complete(upload.id, part_ids=part_ids, md5=md5), range(8)))
    assert len({file_of(one).id for one in done}) == 1, "the same call eight times makes one file"
    assert client.files.content(file_of(done[0]).id).content == whole


def test_item_50_a_part_cut_short_leaves_nothing(server: Server, client: openai.OpenAI) -> None:
    upload = create(client, len(LINE))
    before = server.blobs()
    body = multipart(("data", "upload", LINE))
    with connect(server.url) as stream:
        stream.sendall(
            head(
                "POST",
                f"/v1/uploads/{upload.id}/parts",
                Authorization=f"Bearer {server.key}",
                Content_Type=f"multipart/form-data; boundary={BOUNDARY}",
                Content_Length=str(len(body) - 4),
            )
            + body[:-4]
        )
        status, _ = read_reply(stream)
    assert status == 400
    assert server.blobs() <= before
