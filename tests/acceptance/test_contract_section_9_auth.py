"""Checklist of openai-contract 9, auth and envelope: items 1-7 and 9. Item 8 needs several projects."""

from __future__ import annotations

import httpx2
import openai
import pytest

from tests.acceptance.batch import chat, create, run
from tests.acceptance.server import KEY, Server
from tests.acceptance.wire import MULTIPART, multipart, refusal

ROUTES = (
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files/file-abc123"),
    ("DELETE", "/v1/files/file-abc123"),
    ("GET", "/v1/files/file-abc123/content"),
    ("GET", "/v1/batches"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches/batch_abc123"),
    ("POST", "/v1/batches/batch_abc123/cancel"),
)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_item_01_no_authorization_header_is_401_without_code(server: Server, method: str, path: str) -> None:
    with server.http(key="") as http:
        error = refusal(http.request(method, path), 401, type="invalid_request_error", param=None, code=None)
    assert error["message"].startswith(
        "You didn't provide an API key. You need to provide your API key in an Authorization header "
        "using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)"
    )


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_item_02_wrong_key_is_401_invalid_api_key(server: Server, method: str, path: str) -> None:
    wrong = "sk-wrong-0123456789abcdef"
    with server.http(key=wrong) as http:
        error = refusal(
            http.request(method, path), 401, type="invalid_request_error", param=None, code="invalid_api_key"
        )
    assert error["message"].startswith("Incorrect API key provided: ")
    assert wrong not in error["message"]


def test_item_02_wrong_key_raises_authentication_error_in_the_sdk(server: Server) -> None:
    with server.sdk(api_key="sk-wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.files.list()
    assert caught.value.code == "invalid_api_key"
    assert caught.value.request_id


@pytest.mark.parametrize("header", ["Basic dXNlcjpwYXNz", "Bearer", KEY, f"Token {KEY}"])
def test_item_02_other_authorization_schemes_are_401(server: Server, header: str) -> None:
    with server.http(key="") as http:
        refusal(http.get("/v1/files", headers={"authorization": header}), 401, type="invalid_request_error")


def test_item_03_every_refusal_is_the_envelope_with_four_keys(http: httpx2.Client) -> None:
    refusal(http.get("/v1/files/file-unknown"), 404)
    refusal(http.get("/v1/batches/batch_unknown"), 404)
    refusal(http.get("/v1/files", params={"limit": "abc"}), 400)
    refusal(http.post("/v1/batches", json={}), 400)
    refusal(http.post("/v1/batches", content=b"{"), 400)
    refusal(http.post("/v1/files", content=b"nonsense", headers=MULTIPART), 400)
    refusal(http.delete("/v1/files/file-unknown"), 404)
    refusal(http.post("/v1/batches/batch_unknown/cancel"), 404)


def test_item_04_every_reply_has_its_own_request_id(server: Server, client: openai.OpenAI, http: httpx2.Client) -> None:
    file = client.files.create(file=("a.jsonl", b'{"a":1}\n'), purpose="batch")
    replies = [
        http.get("/v1/files"),
        http.get(f"/v1/files/{file.id}"),
        http.get(f"/v1/files/{file.id}/content"),
        http.get("/v1/files/file-unknown"),
        http.get("/v1/unknown"),
        http.put("/v1/files"),
        http.post("/v1/batches", content=b"{"),
        http.delete(f"/v1/files/{file.id}"),
        http.get("/health"),
        http.get("/ready"),
    ]
    with server.http(key="") as anonymous:
        replies.append(anonymous.get("/v1/files"))
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert all(ids)
    assert len(set(ids)) == len(ids)


def test_item_04_sdk_objects_and_errors_carry_the_request_id(client: openai.OpenAI) -> None:
    raw = client.files.with_raw_response.create(file=("a.jsonl", b'{"a":1}\n'), purpose="batch")
    assert raw.parse()._request_id == raw.headers["x-request-id"]
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.retrieve("file-unknown")
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


def test_item_05_processing_ms_is_a_number_on_success(client: openai.OpenAI, http: httpx2.Client) -> None:
    file = client.files.create(file=("a.jsonl", b'{"a":1}\n'), purpose="batch")
    for path in ("/v1/files", f"/v1/files/{file.id}", f"/v1/files/{file.id}/content", "/v1/batches"):
        reply = http.get(path)
        assert reply.status_code == 200
        assert float(reply.headers["openai-processing-ms"]) >= 0


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/foo"), ("GET", "/v1/foo"), ("GET", "/foo/bar"), ("GET", "/v1")]
)
def test_item_06_unknown_path_is_404_invalid_url(http: httpx2.Client, method: str, path: str) -> None:
    error = refusal(http.request(method, path), 404, type="invalid_request_error", param=None, code=None)
    assert error["message"] == f"Invalid URL ({method} {path})"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/files"),
        ("DELETE", "/v1/batches"),
        ("PATCH", "/v1/files/file-abc"),
        ("DELETE", "/v1/batches/batch_abc"),
    ],
)
def test_item_06_wrong_method_is_405(http: httpx2.Client, method: str, path: str) -> None:
    reply = http.request(method, path)
    error = refusal(reply, 405, type="invalid_request_error", param=None, code="method_not_supported")
    assert error["message"].startswith(f"Not allowed to {method} on {path}")
    assert "GET" in reply.headers["allow"]


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe", b'{"a":1,}', b"nonsense", b'{"input_file_id": NaN'])
def test_item_07_malformed_json_is_400(http: httpx2.Client, body: bytes) -> None:
    reply = http.post("/v1/batches", content=body, headers={"content-type": "application/json"})
    error = refusal(reply, 400, type="invalid_request_error", param=None, code=None)
    assert error["message"].startswith("We could not parse the JSON body of your request.")


def test_item_09_organization_project_and_stainless_headers_are_accepted(server: Server, http: httpx2.Client) -> None:
    with server.sdk(organization="org-1", project="proj_1") as client:
        batch = run(client, [chat("a")])
        assert batch.status == "completed"
        assert client.batches.retrieve(create(client, [chat("a")]).id).endpoint == "/v1/chat/completions"
    headers = {f"x-stainless-{name}": "x" for name in ("lang", "package-version", "os", "arch", "runtime", "async")}
    headers |= {"openai-organization": "org-1", "openai-project": "proj_1", "x-stainless-retry-count": "2"}
    assert http.get("/v1/files", headers=headers).status_code == 200
    body = multipart(("purpose", None, b"batch"), ("file", "a.jsonl", b'{"a":1}\n'))
    assert http.post("/v1/files", content=body, headers=headers | MULTIPART).status_code == 200
