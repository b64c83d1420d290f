"""Every endpoint a batch may name, through the whole product; audio comes from a server of the test's own."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, cast

import openai
import pytest

from tests.acceptance.batch import Endpoint, by_id, counts, create, hanging, rows, run, wait, wait_for_progress
from tests.acceptance.conftest import StartServer
from tests.acceptance.server import Server
from tests.web import Quiet, served

TURN = {"role": "user", "content": "to be or not"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [TURN]},
    "/v1/completions": {"prompt": "a b"},
    "/v1/responses": {"input": "a b"},
    "/v1/embeddings": {"input": ["a", "b c"]},
    "/v1/chat/completions/batch": {"messages": [[TURN], [TURN]]},
    "/v1/messages": {"messages": [TURN], "max_tokens": 8},
    "/v1/score": {"queries": "a b", "documents": ["a b", "c"]},
    "/score": {"text_1": "a b", "text_2": "a b"},
    "/v1/rerank": {"query": "a b", "documents": ["a b", "c"]},
    "/rerank": {"query": "a b", "documents": ["a b", "c"]},
    "/v2/rerank": {"query": "a b", "documents": ["a b", "c"]},
    "/v1/audio/transcriptions": {"file_url": "data:audio/wav;base64,AAAA"},
    "/v1/audio/translations": {"file_url": "data:audio/wav;base64,AAAA"},
}
#: (input tokens, output tokens) of a line.
USAGE = {
    "/v1/chat/completions": (4, 4),
    "/v1/completions": (2, 2),
    "/v1/responses": (2, 2),
    "/v1/embeddings": (3, 0),
    "/v1/chat/completions/batch": (8, 8),
    "/v1/messages": (4, 4),
    "/v1/score": (7, 0),
    "/score": (4, 0),
    "/v1/rerank": (7, 0),
    "/rerank": (7, 0),
    "/v2/rerank": (7, 0),
    "/v1/audio/transcriptions": (0, 0),
    "/v1/audio/translations": (0, 0),
}


def lines(endpoint: str, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"custom_id": str(at), "method": "POST", "url": endpoint, "body": {"model": "echo"} | body}
        for at, body in enumerate(bodies)
    ]


@pytest.mark.parametrize("endpoint", BODIES)
def test_line_is_answered_as_online(server: Server, client: openai.OpenAI, endpoint: str) -> None:
    batch = run(client, lines(endpoint, BODIES[endpoint], BODIES[endpoint]), endpoint=cast(Endpoint, endpoint))
    assert counts(batch) == (2, 2, 0)
    first, second = (row["response"]["body"] for row in rows(client, batch.output_file_id))
    assert first == second
    assert batch.usage is not None
    assert (batch.usage.input_tokens // 2, batch.usage.output_tokens // 2) == USAGE[endpoint]
    if "/audio/" not in endpoint:
        with server.http() as http:
            body = json.dumps({"model": "echo"} | BODIES[endpoint])  # the same bytes: the engine's ids hang on them
            reply = http.post(endpoint, content=body, headers={"content-type": "application/json"})
        assert (reply.status_code, reply.json()) == (200, first)


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        ("/v1/rerank", {"query": "a"}, "body.documents"),
        ("/v1/score", {"text_1": "a"}, "body.text_2"),
        ("/v1/messages", {"messages": [TURN]}, "body.max_tokens"),
        ("/v1/audio/transcriptions", {"file_url": "file:///etc/passwd"}, "body.file_url"),
        ("/v1/chat/completions/batch", {"messages": [TURN]}, "body.messages[0]"),
        ("/v1/chat/completions/batch", {"messages": [[TURN]], "tools": [{}]}, "body.tools"),
    ],
)
def test_bad_line_fails_the_batch(client: openai.OpenAI, endpoint: str, body: dict[str, Any], param: str) -> None:
    batch = run(client, lines(endpoint, body), endpoint=cast(Endpoint, endpoint))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(error.param, error.line) for error in batch.errors.data or []] == [(param, 1)]


class _Sounds(Quiet):
    """`/a.wav` is there, `/moved` leads there, `/trap` to the clouds' metadata service, `/big` never ends."""

    def do_GET(self) -> None:
        if self.path in ("/moved", "/trap"):
            self.send_response(302)
            self.send_header("location", "/a.wav" if self.path == "/moved" else "http://169.254.169.254/")
            self.end_headers()
        elif self.path == "/big":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 4096)
            except OSError:
                self.close_connection = True
        else:
            found = self.path == "/a.wav"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(b"sound" if found else b"")


@pytest.fixture
def sounds() -> Generator[str]:
    with served(_Sounds) as port:
        yield f"http://127.0.0.1:{port}"


def test_audio_is_downloaded_by_the_rules(start_server: StartServer, sounds: str) -> None:
    server = start_server(settings={"BATCHYARD_MEDIA_PRIVATE_HOSTS": "127.0.0.1", "BATCHYARD_MEDIA_MAX_BYTES": "10000"})
    endpoint = "/v1/audio/transcriptions"
    bodies = [{"file_url": f"{sounds}/{path}"} for path in ("a.wav", "moved", "trap", "big", "none")]
    bodies += [{"file_url": "http://localhost/a.wav"}]
    with server.sdk() as client:
        batch = run(client, lines(endpoint, *bodies), endpoint=cast(Endpoint, endpoint))
        assert counts(batch) == (6, 2, 4)
        said = {row["response"]["body"]["text"] for row in rows(client, batch.output_file_id)}
        assert len(said) == 1
        assert said.pop().startswith("5 bytes ")
        errors = {
            key: (row["response"]["status_code"], row["response"]["body"]["error"]["code"])
            for key, row in by_id(rows(client, batch.error_file_id)).items()
        }
    assert errors == {
        "2": (400, "invalid_media_url"),
        "3": (400, "media_too_large"),
        "4": (400, "invalid_media_url"),
        "5": (400, "invalid_media_url"),
    }


def test_loopback_is_not_called_unless_told(client: openai.OpenAI, sounds: str) -> None:
    endpoint = "/v1/audio/translations"
    batch = run(client, lines(endpoint, {"file_url": f"{sounds}/a.wav"}), endpoint=cast(Endpoint, endpoint))
    assert counts(batch) == (1, 0, 1)


def test_sdk_talks_while_a_batch_runs(server: Server, client: openai.OpenAI) -> None:
    batch = create(client, [hanging("stuck"), {**lines("/v1/chat/completions", {"messages": [TURN]})[0]}])
    wait_for_progress(client, batch.id, lines=1)
    assert [model.id for model in client.models.list()] == ["echo"]
    messages: Any = [TURN]
    whole = client.chat.completions.create(model="echo", messages=messages)
    stream = client.chat.completions.create(model="echo", messages=messages, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content == "to be or not"
    assert client.embeddings.create(model="echo", input=["a", "b"]).data[1].index == 1
    client.batches.cancel(batch.id)
    wait(client, batch.id, until={"cancelled"})


def test_api_without_an_engine_says_so(start_server: StartServer) -> None:
    server = start_server(flags=("--role", "api"))
    with server.sdk() as client, pytest.raises(openai.NotFoundError, match="has no model of its own"):
        client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "a"}])


def test_interactive_can_be_switched_off(start_server: StartServer) -> None:
    server = start_server(settings={"BATCHYARD_SERVER_INTERACTIVE": "false"})
    with server.sdk() as client:
        with pytest.raises(openai.NotFoundError, match="switched off"):
            client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "a"}])
        assert counts(run(client, lines("/v1/completions", {"prompt": "a"}), endpoint="/v1/completions")) == (1, 1, 0)
