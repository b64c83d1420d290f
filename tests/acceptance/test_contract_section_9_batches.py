"""Checklist of openai-contract 9, batches: create, read, list: items 53-63."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import openai
import pytest

from tests.acceptance.batch import BATCH_KEYS, CHAT, LATER, chat, counts, create, hanging, refused, run, upload, wait
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.acceptance.wire import refusal

LINE = b'{"custom_id": "a"}\n'
GOOD = {"input_file_id": "file-unknown", "endpoint": CHAT, "completion_window": "24h"}


@pytest.fixture
def waiting(start_server: StartServer) -> Server:
    """A server without a worker: what is created stays as it was created."""
    return start_server(settings={"BATCHYARD_SERVER_ROLE": "api"})


def test_item_53_create_returns_a_validating_batch(waiting: Server) -> None:
    with waiting.sdk() as client:
        batch = create(client, [chat("a")], metadata={"team": "blue"})
        assert batch.id.startswith("batch_")
        assert len(batch.id) == len("batch_") + 32
        assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", CHAT)
        assert (batch.completion_window, batch.metadata) == ("24h", {"team": "blue"})
        assert abs(batch.created_at - time.time()) < 30
        assert [getattr(batch, name) for name in LATER] == [None] * len(LATER)
        assert counts(batch) == (0, 0, 0)
        assert (batch.errors, batch.output_file_id, batch.error_file_id) == (None, None, None)
        assert (batch.model, batch.usage) == (None, None)
        assert client.batches.retrieve(batch.id) == batch


def test_item_53_create_passes_strict_response_validation(server: Server) -> None:
    with server.sdk(_strict_response_validation=True) as client:
        batch = create(client, [chat("a"), refused("b")])
        assert wait(client, batch.id).status == "completed"
        assert batch.id in [item.id for item in client.batches.list(limit=10).data]


def test_item_54_expires_after_one_day(client: openai.OpenAI) -> None:
    batch = create(client, [chat("a")])
    assert batch.expires_at == batch.created_at + 86_400
    assert wait(client, batch.id).expires_at == batch.expires_at


@pytest.mark.parametrize("field", ["input_file_id", "endpoint", "completion_window"])
def test_item_55_a_missing_field_is_named(http: httpx2.Client, field: str) -> None:
    body = {name: value for name, value in GOOD.items() if name != field}
    refusal(
        http.post("/v1/batches", json=body),
        400,
        type="invalid_request_error",
        param=field,
        code="missing_required_parameter",
        message=f"Missing required parameter: '{field}'.",
    )


@pytest.mark.parametrize("field", ["input_file_id", "endpoint", "completion_window"])
@pytest.mark.parametrize("value", [None, 7, ["a"], {"a": 1}, True])
def test_item_55_a_field_of_the_wrong_type_is_named(http: httpx2.Client, field: str, value: Any) -> None:
    reply = http.post("/v1/batches", json=GOOD | {field: value})
    refusal(reply, 400, type="invalid_request_error", param=field)


def test_item_55_an_unknown_field_is_named(http: httpx2.Client) -> None:
    reply = http.post("/v1/batches", json=GOOD | {"colour": "red"})
    refusal(
        reply,
        400,
        type="invalid_request_error",
        param="colour",
        code="unknown_parameter",
        message="Unknown parameter: 'colour'.",
    )


@pytest.mark.parametrize(
    "endpoint", ["/v1/invalid", "", "/chat/completions", "/v1/chat/completions/", "/v1/images/edits"]
)
def test_item_56_an_invalid_endpoint_is_400(http: httpx2.Client, endpoint: str) -> None:
    """Images and videos are OpenAI's too; no engine of ours answers them, so they are refused before a file is read."""
    reply = http.post("/v1/batches", json=GOOD | {"endpoint": endpoint})
    error = refusal(reply, 400, type="invalid_request_error", param="endpoint", code="invalid_value")
    assert error["message"].startswith(f"Invalid endpoint: {endpoint}. Supported values: ")
    assert "/v1/chat/completions" in error["message"]


@pytest.mark.parametrize("window", ["1h", "48h", "", "24H"])
def test_item_57_another_completion_window_is_400(http: httpx2.Client, window: str) -> None:
    reply = http.post("/v1/batches", json=GOOD | {"completion_window": window})
    error = refusal(reply, 400, type="invalid_request_error", param="completion_window", code="invalid_value")
    assert "completion_window" in error["message"]


@pytest.mark.parametrize(
    ("metadata", "param", "code", "message"),
    [
        (
            {f"k{number}": "v" for number in range(17)},
            "metadata",
            "object_above_max_properties",
            "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, "
            "but got an object with 17 properties instead.",
        ),
        (
            {"note": "x" * 513},
            "metadata.note",
            "string_above_max_length",
            "Invalid 'metadata.note': string too long. Expected a string with maximum length 512, "
            "but got a string with length 513 instead.",
        ),
        (
            {"tags": ["a"]},
            "metadata.tags",
            "invalid_type",
            "Invalid type for 'metadata.tags': expected a string, but got an array instead.",
        ),
        (
            "text",
            "metadata",
            "invalid_type",
            "Invalid type for 'metadata': expected an object, but got a string instead.",
        ),
        ({"k" * 65: "v"}, "metadata", "string_above_max_length", None),
        ({"n": 1}, "metadata.n", "invalid_type", None),
        ({"n": None}, "metadata.n", "invalid_type", None),
        ([], "metadata", "invalid_type", None),
    ],
)
def test_item_58_bad_metadata_is_400(
    http: httpx2.Client, metadata: Any, param: str, code: str, message: str | None
) -> None:
    reply = http.post("/v1/batches", json=GOOD | {"metadata": metadata})
    error = refusal(reply, 400, type="invalid_request_error", param=param, code=code)
    assert message in (None, error["message"])


def test_item_58_metadata_at_its_limits_is_echoed(client: openai.OpenAI) -> None:
    metadata = {f"{number:02}" + "ü" * 62: "🚀" * 512 for number in range(16)}
    batch = create(client, [chat("a")], metadata=metadata)
    assert batch.metadata == metadata
    assert client.batches.retrieve(batch.id).metadata == metadata


@pytest.mark.parametrize("metadata", [None, {}])
def test_item_58_null_and_empty_metadata_are_accepted(client: openai.OpenAI, metadata: Any) -> None:
    assert create(client, [chat("a")], metadata=metadata).metadata == metadata


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"anchor": "created_at", "seconds": 3599}, "output_expires_after.seconds"),
        ({"anchor": "created_at", "seconds": 2_592_001}, "output_expires_after.seconds"),
        ({"anchor": "created_at", "seconds": "3600"}, "output_expires_after.seconds"),
        ({"anchor": "created_at", "seconds": True}, "output_expires_after.seconds"),
        ({"anchor": "created_at", "seconds": 3600.5}, "output_expires_after.seconds"),
        ({"anchor": "created_at"}, "output_expires_after.seconds"),
        ({"anchor": "now", "seconds": 3600}, "output_expires_after.anchor"),
        ({"seconds": 3600}, "output_expires_after.anchor"),
        (3600, "output_expires_after"),
    ],
)
def test_item_59_output_expires_after_out_of_bounds_is_400(http: httpx2.Client, value: Any, param: str) -> None:
    reply = http.post("/v1/batches", json=GOOD | {"output_expires_after": value})
    refusal(reply, 400, type="invalid_request_error", param=param)


@pytest.mark.parametrize("file_id", ["file-abc123", "nonsense", "../../etc/passwd", "file-" + "x" * 300, "ünï 🚀"])
def test_item_60_an_unknown_input_file_fails_the_batch_later(client: openai.OpenAI, file_id: str) -> None:
    created = client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")
    assert (created.status, created.input_file_id) == ("validating", file_id)
    batch = wait(client, created.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    [problem] = batch.errors.data
    assert (problem.code, problem.param, problem.line) == ("invalid_request", "file_id", None)
    assert problem.message is not None
    assert problem.message.startswith(f"Cannot find file {file_id}, or ")
    assert problem.message.endswith(" does not have access to it.")


def test_item_60_a_deleted_input_file_is_an_unknown_one(client: openai.OpenAI) -> None:
    file = upload(client, LINE)
    client.files.delete(file.id)
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert wait(client, batch.id).status == "failed"


def test_item_60_a_file_of_another_purpose_is_400(client: openai.OpenAI) -> None:
    """[I]: the file is there and can never become an input, so the caller learns it at once."""
    file = client.files.create(file=("a.jsonl", LINE), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert caught.value.param == "input_file_id"
    assert "user_data" in str(caught.value)


@pytest.mark.parametrize("batch_id", ["batch_abc123", "nonsense", "ünï", "batch_" + "x" * 500, "file-1"])
def test_item_61_an_unknown_batch_is_404(client: openai.OpenAI, batch_id: str) -> None:
    """[I]: param and code are null."""
    for call in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError) as caught:
            call(batch_id)
        error = caught.value
        assert (error.type, error.param, error.code) == ("invalid_request_error", None, None)
        assert isinstance(error.body, dict)
        assert str(error.body["message"]).startswith(f"No batch found with id '{batch_id[:128]}'")


def test_item_61_an_id_with_a_slash_is_another_url(client: openai.OpenAI) -> None:
    """The SDK sends a%2Fb; paths are routed decoded."""
    with pytest.raises(openai.NotFoundError, match=r"Invalid URL \(GET /v1/batches/a/b\)"):
        client.batches.retrieve("a/b")


def test_item_62_batches_list_newest_first_in_pages(waiting: Server) -> None:
    requests: list[httpx2.Request] = []
    with httpx2.Client(event_hooks={"request": [requests.append]}) as plain, waiting.sdk(http_client=plain) as client:
        file = upload(client, LINE)
        ids = [
            client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id for _ in range(25)
        ][::-1]
        first = client.batches.list()
        assert [batch.id for batch in first.data] == ids[:20]
        assert first.has_more is True
        requests.clear()
        assert [batch.id for batch in client.batches.list(limit=5)] == ids
        assert len(requests) == 5
        assert [batch.id for batch in client.batches.list(limit=100)] == ids
        assert [batch.id for batch in client.batches.list(limit=1, after=ids[3]).data] == [ids[4]]
    with waiting.http() as http:
        page = http.get("/v1/batches", params={"limit": 25}).json()
        assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", ids[0], ids[-1], False)


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("101", "integer_above_max_value"),
        ("0", "integer_below_min_value"),
        ("abc", "invalid_type"),
    ],
)
def test_item_62_limit_out_of_bounds_is_400(http: httpx2.Client, limit: str, code: str) -> None:
    reply = http.get("/v1/batches", params={"limit": limit})
    refusal(reply, 400, type="invalid_request_error", param="limit", code=code)


def test_item_63_every_reply_has_every_key(client: openai.OpenAI, http: httpx2.Client) -> None:
    file = upload(client, LINE)
    created = http.post("/v1/batches", json=GOOD | {"input_file_id": file.id})
    hung = create(client, [hanging("a")])
    wait(client, hung.id, until={"in_progress"})
    cancelled = http.post(f"/v1/batches/{hung.id}/cancel")
    ended = [wait(client, created.json()["id"]), wait(client, hung.id), run(client, [chat("a"), refused("b")])]
    assert [batch.status for batch in ended] == ["failed", "cancelled", "completed"]
    bodies = [created.json(), cancelled.json(), *http.get("/v1/batches", params={"limit": 20}).json()["data"]]
    bodies += [http.get(f"/v1/batches/{batch.id}").json() for batch in ended]
    for body in bodies:
        assert set(body) == BATCH_KEYS
        assert set(body["request_counts"]) == {"total", "completed", "failed"}
