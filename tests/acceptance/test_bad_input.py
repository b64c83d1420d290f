"""Malformed requests: every refusal is the envelope, nothing is a 500, and nothing stays behind."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from tests.acceptance.batch import BATCH_KEYS, CHAT, chat, counts, create, hanging, jsonl, rows, run, upload, wait
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.wire import connect, error_of, head, read_reply, refusal

LINE = b'{"custom_id": "a"}\n'
GOOD = {"input_file_id": "file-unknown", "endpoint": CHAT, "completion_window": "24h"}
PATHS = ("/v1/files/{}", "/v1/files/{}/content", "/v1/batches/{}")
#: As they stand in the request line, so percent-encoded where a client would have to.
ODD_IDS = (
    "..%2F..%2F..%2Fetc%2Fpasswd",
    "%2e%2e",
    "..%5C..%5Cwindows",
    "file-%00",
    "%00",
    "file-1%0d%0aX-Injected:%201",
    "%F0%9F%9A%80",
    "%FF%FE",
    "%ED%A0%80",
    "file-1'%20OR%20'1'='1",
    "file-*",
    "%25s%25n",
    "x" * 4000,
)


@pytest.mark.parametrize("odd", ODD_IDS, ids=lambda odd: odd[:24])
@pytest.mark.parametrize("path", PATHS)
def test_an_odd_id_is_unknown(http: httpx2.Client, path: str, odd: str) -> None:
    methods = ("GET", "DELETE") if path == "/v1/files/{}" else ("GET",)
    for method in methods:
        refusal(http.request(method, path.format(odd)), 404, type="invalid_request_error")
    if path == "/v1/batches/{}":
        refusal(http.post(path.format(odd) + "/cancel"), 404, type="invalid_request_error")


@pytest.mark.parametrize(
    "path", ["/v1/files/../../etc/passwd", "/v1//files", "/v1/files/%2e%2e/%2e%2e/x", "//etc/passwd"]
)
def test_a_path_with_dots_reaches_nothing(server: Server, path: str) -> None:
    with connect(server.url) as stream:
        stream.sendall(head("GET", path, Authorization=f"Bearer {server.key}", Connection="close"))
        status, body = read_reply(stream)
    assert status == 404
    error_of(body, type="invalid_request_error")


DEEP = b'{"input_file_id":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BODIES = {
    "empty": b"",
    "blank": b"   ",
    "broken": b'{"input_file_id": "file-1", ',
    "trailing": b"{} {}",
    "deep": DEEP,
    "deep-objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "list": b"[]",
    "null": b"null",
    "string": b'"text"',
    "number": b"7",
    "huge-number": b'{"input_file_id": 1e999}',
    "long-number": b'{"input_file_id": ' + b"9" * 10_000 + b"}",
    "nan": b'{"input_file_id": NaN}',
    "latin-1": '{"input_file_id": "ü"}'.encode("latin-1"),
    "nul": b"\x00" * 100,
    "bom-only": b"\xef\xbb\xbf",
    "form": b"input_file_id=file-1&endpoint=x",
    "cut-escape": b'{"input_file_id": "\\u12',
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", None])
def test_a_malformed_body_is_400(http: httpx2.Client, name: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    reply = http.post("/v1/batches", content=BODIES[name], headers=headers)
    refusal(reply, 400, type="invalid_request_error")


def test_a_json_body_above_the_limit_is_413(http: httpx2.Client) -> None:
    body = json.dumps(GOOD | {"metadata": {"a": "x" * (2 << 20)}}).encode()
    refusal(http.post("/v1/batches", content=body), 413, type="invalid_request_error")

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    refusal(http.post("/v1/batches", content=chunks()), 413, type="invalid_request_error")


SURROGATE, NUL = "\ud800", "\x00"


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"a": SURROGATE}},
        {"metadata": {SURROGATE: "a"}},
        {"metadata": {"a": NUL}},
        {"metadata": {NUL: "a"}},
        {"input_file_id": f"file-{SURROGATE}"},
        {"input_file_id": f"file-{NUL}"},
        {"input_file_id": ""},
        {"endpoint": SURROGATE},
        {"endpoint": NUL},
        {"completion_window": SURROGATE},
        {SURROGATE: 1},
        {NUL: 1},
        {"": 1},
    ],
    ids=repr,
)
def test_text_that_is_no_text_is_refused_or_fails_the_batch(
    http: httpx2.Client, client: openai.OpenAI, change: dict[str, Any]
) -> None:
    """Lone surrogates are not UTF-8 and Postgres stores no NUL. An id may be any text, and is then an unknown one."""
    body = json.dumps(GOOD | change).encode()
    reply = http.post("/v1/batches", content=body, headers={"content-type": "application/json"})
    if "input_file_id" in change and reply.status_code == 200:
        assert wait(client, reply.json()["id"]).status == "failed"
    else:
        refusal(reply, 400, type="invalid_request_error")
    assert http.get("/v1/batches").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"input_file_id":"file-a","input_file_id":"file-b","endpoint":"/v1/chat/completions","completion_window":"24h"}',
        b'\xef\xbb\xbf{"input_file_id":"file-a","endpoint":"/v1/chat/completions","completion_window":"24h"}',
        json.dumps(GOOD).encode("utf-16"),
    ],
    ids=["repeated-key", "bom", "utf-16"],
)
def test_a_doubtful_body_is_an_answer_not_a_fault(http: httpx2.Client, body: bytes) -> None:
    reply = http.post("/v1/batches", content=body)
    if reply.status_code == 200:
        assert set(reply.json()) == BATCH_KEYS
    else:
        refusal(reply, 400, type="invalid_request_error")


def test_huge_headers_do_not_hurt(server: Server) -> None:
    for header in (
        {"X_Long": "x" * 60_000},
        {f"X_{n}": "y" for n in range(500)},
        {"Authorization": "Bearer " + "z" * 60_000},
    ):
        with connect(server.url) as stream:
            fields = {"Authorization": f"Bearer {server.key}", "Connection": "close"} | header
            stream.sendall(head("GET", "/v1/files?limit=1", **fields))
            status, _ = read_reply(stream)
        assert status in {200, 400, 401, 431}
    with server.http() as http:
        assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "query", ["limit=1&limit=2", "limit=%00", "after=%FF", "order=", "purpose=%ED%A0%80", "unknown=1", "limit=1e3"]
)
@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
def test_an_odd_query_is_an_answer_not_a_fault(http: httpx2.Client, path: str, query: str) -> None:
    reply = http.get(f"{path}?{query}")
    if reply.status_code == 200:
        assert reply.json()["object"] == "list"
    else:
        refusal(reply, 400, type="invalid_request_error")


def test_limits_of_the_settings_are_named(start_server: StartServer) -> None:
    small = start_server(
        settings={
            "BATCHYARD_LIMITS_BATCH_FILE_MAX_BYTES": "100000",
            "BATCHYARD_LIMITS_FILE_MAX_BYTES": "1000",
            "BATCHYARD_LIMITS_LINE_MAX_BYTES": "2000",
            "BATCHYARD_LIMITS_JSON_MAX_DEPTH": "10",
            "BATCHYARD_LIMITS_CUSTOM_ID_MAX_CHARS": "20",
            "BATCHYARD_LIMITS_BATCH_MAX_LINES": "9",
            "BATCHYARD_LIMITS_PROBLEMS_MAX": "3",
        }
    )
    with small.sdk() as client:
        for purpose, size in (("batch", 100_001), ("user_data", 1001)):
            with pytest.raises(openai.BadRequestError, match=r"File is too large\."):
                client.files.create(file=("a.jsonl", (LINE * 6000)[:size]), purpose=purpose)  # type: ignore[arg-type]
        deep = chat("deep") | {"extra": json.loads("[" * 12 + "]" * 12)}
        batch = run(client, [chat("x" * 21), chat("long", "y" * 2000), deep])
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(item.code, item.line) for item in batch.errors.data] == [
            ("string_above_max_length", 1),
            ("line_too_long", 2),
            ("json_too_deep", 3),
        ]
        for item, limit in zip(batch.errors.data, ("20", "2000", "10"), strict=True):
            assert limit in (item.message or "")
        assert run(client, [chat(str(number)) for number in range(9)]).status == "completed"
        assert run(client, [chat(str(number)) for number in range(10)]).status == "failed"
        many = run(client, [b"{"[:1] if number else b"{}" for number in range(8)])
        assert many.errors is not None
        assert len(many.errors.data or []) == 3


@pytest.mark.parametrize("bad", [b"{", b"{}", b'{"custom_id": 7}'])
def test_fifty_thousand_bad_lines_fail_quickly_with_at_most_a_hundred_entries(
    client: openai.OpenAI, bad: bytes
) -> None:
    data = LINE + (bad + b"\n") * 49_999
    file = upload(client, data)
    start = time.monotonic()
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    ended = wait(client, batch.id, until={"failed"})
    assert time.monotonic() - start < 6
    assert ended.errors is not None
    assert ended.errors.data is not None
    assert len(ended.errors.data) == 100
    lines = [item.line for item in ended.errors.data if item.line is not None]
    assert lines == sorted(lines)
    assert counts(ended) == (0, 0, 0)


def test_a_line_of_twenty_megabytes_runs_and_a_longer_one_is_refused(client: openai.OpenAI) -> None:
    good = run(client, [chat("big", "x" * (20 << 20)), chat("small")])
    assert counts(good) == (2, 2, 0)
    client.files.delete(good.output_file_id or "")
    batch = run(client, [chat("small"), chat("big", "x" * (33 << 20))])
    assert batch.errors is not None
    assert [(item.code, item.line) for item in batch.errors.data or []] == [("line_too_long", 2)]


def test_parallel_creates_and_cancels_end_well(server: Server) -> None:
    with server.sdk() as client:
        file = upload(client, jsonl([chat("a", echo={"delay_ms": 30}), hanging("b")]))

        def race(number: int) -> str:
            batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            time.sleep(random.Random(number).random() * 0.3)
            with ThreadPoolExecutor(3) as cancels:
                statuses = list(cancels.map(lambda _: client.batches.cancel(batch.id).status, range(3)))
            assert set(statuses) <= {"cancelling", "cancelled"}
            return batch.id

        with ThreadPoolExecutor(12) as pool:
            ids = list(pool.map(race, range(36)))
        assert len(set(ids)) == 36
        for batch_id in ids:
            wait(client, batch_id, until={"cancelled"})


def test_cancel_races_with_the_end(server: Server, client: openai.OpenAI) -> None:
    """Either the cancel came first or the batch was done: each batch ends, and says the same as the answer did."""
    with server.http() as http:
        for number in range(20):
            batch = create(client, [chat("a")])
            time.sleep(0.02 * number)
            reply = http.post(f"/v1/batches/{batch.id}/cancel")
            if reply.status_code == 200:
                assert reply.json()["status"] == "cancelling"
                assert wait(client, batch.id).status == "cancelled"
            else:
                error = refusal(reply, 409, type="invalid_request_error")
                assert error["message"].startswith("Cannot cancel a batch with status '")
                assert wait(client, batch.id).status == "completed"


@pytest.mark.parametrize(
    "line",
    [
        b'{"custom_id": "\\ud800", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "echo"}}',
        b'{"custom_id": "a", "method": "\\ud800", "url": "\\udfff", "body": {"model": "\\ud800", "messages": []}}',
        b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"\\ud800": 1}}',
        b'{"custom_id": "\\u0000", "method": "\\u0000", "url": "\\u0000", "body": {"model": "\\u0000"}}',
        b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": NaN}}',
        b'{"custom_id": "a", "custom_id": "b", "body": ' + b'{"a":' * 800 + b"1" + b"}" * 800 + b"}",
        b'{"custom_id": "a", "body": ' + b"[" * 100_000,
        b'{"custom_id": ' + b"9" * 100_000 + b"}",
        b"\x00" * 1000,
        b"\xed\xa0\x80",
        b'"text"',
        b"-",
    ],
    ids=range(12),
)
def test_an_odd_line_fails_the_batch_and_names_its_line(client: openai.OpenAI, line: bytes) -> None:
    batch = run(client, [chat("good"), line])
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data
    assert {item.line for item in batch.errors.data} == {2}


def test_odd_but_legal_ids_come_back_as_they_were(client: openai.OpenAI) -> None:
    ids = ["\x00", "", " ", "\n", "\u2028", "🚀" * 512, "a/b|c\\d\"e'f", "../../etc/passwd", "null", "é"]
    batch = run(client, [chat(custom_id) for custom_id in ids])
    assert [row["custom_id"] for row in rows(client, batch.output_file_id)] == ids
