"""Interactive requests through the application, answered by the echo engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import openai
import pytest
import structlog

from app.engine.echo import EchoEngine
from app.engine.supervised import SupervisedEngine
from app.store.db import Database
from tests.unit.http.scenes import KEY, Service, error_of, in_process, on_a_socket, until

CHAT = "/v1/chat/completions"
TURN = {"role": "user", "content": "to be or not to be"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "echo", "messages": [TURN], **fields}


@pytest.fixture
def echo() -> EchoEngine:
    """The engine inside `engine`, so that a test can look at it."""
    return EchoEngine()


@pytest.fixture
async def engine(echo: EchoEngine) -> AsyncGenerator[SupervisedEngine]:
    engine = SupervisedEngine(lambda: echo)
    await engine.start()
    assert await engine.wait_ready()
    yield engine
    await engine.stop()


@pytest.fixture
async def served(engine: SupervisedEngine, sqlite_database: Database, tmp_path: Path) -> AsyncGenerator[Service]:
    rooms = {"server": {"api_keys": [KEY], "interactive_body_max_bytes": 4096}}
    async with on_a_socket(sqlite_database, tmp_path / "blobs", engine=engine, **rooms) as service:
        yield service


@pytest.fixture
def client(served: Service) -> httpx2.AsyncClient:
    return served.client


async def test_models_lists_the_engines(client: httpx2.AsyncClient) -> None:
    reply = await client.get("/v1/models")
    assert [card["id"] for card in reply.json()["data"]] == ["echo"]
    assert reply.headers["x-request-id"].startswith("req_")


class NamedEcho(EchoEngine):
    """Lists models of these names, as a server with adapters does."""

    async def models(self) -> Sequence[str]:
        return ["echo", "team/adapter v2", "a"]


async def test_model_is_its_entry_in_the_list(sqlite_database: Database, tmp_path: Path) -> None:
    engine = SupervisedEngine(NamedEcho)
    await engine.start()
    assert await engine.wait_ready()
    try:
        async with on_a_socket(sqlite_database, tmp_path / "blobs", engine=engine) as service:
            listed = (await service.client.get("/v1/models")).json()["data"]
            for card in listed:
                assert (await service.client.get(f"/v1/models/{quote(card['id'])}")).json() == card
            assert (await service.client.get("/v1/models/team%2Fadapter%20v2")).json() == listed[1]
            async with openai.AsyncOpenAI(base_url=f"{service.client.base_url}/v1", api_key=KEY) as sdk:
                assert (await sdk.models.retrieve("team/adapter v2")).id == "team/adapter v2"
                with pytest.raises(openai.NotFoundError) as caught:
                    await sdk.models.retrieve("team")
            assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
            assert "'team'" in caught.value.message
    finally:
        await engine.stop()


async def test_model_without_an_engine_is_404(sqlite_database: Database, tmp_path: Path) -> None:
    async with in_process(sqlite_database, tmp_path / "blobs") as service:
        reply = await service.client.get("/v1/models/echo")
        assert (reply.status_code, error_of(reply)["code"]) == (404, "not_served")


async def test_messages_take_the_key_that_anthropics_sdk_sends(served: Service) -> None:
    anthropic = pytest.importorskip("anthropic")
    options = {"base_url": str(served.client.base_url), "max_retries": 0}
    asked = {"model": "echo", "messages": [TURN], "max_tokens": 3}
    async with anthropic.AsyncAnthropic(api_key=KEY, **options) as client:
        message = await client.messages.create(**asked)
    assert message.content[0].text == "to be or"
    async with anthropic.AsyncAnthropic(api_key="wrong", **options) as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**asked)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/messages", [("x-api-key", KEY)], 200),
        ("/v1/messages/count_tokens", [("x-api-key", KEY)], 404),
        ("/v1/messages/count_tokens", [("x-api-key", "wrong")], 401),
        ("/v1/messages", [("x-api-key", "wrong")], 401),
        ("/v1/messages", [("x-api-key", "")], 401),
        ("/v1/messages", [("x-api-key", KEY), ("x-api-key", KEY)], 401),
        ("/v1/messages", [("x-api-key", KEY), ("authorization", "Bearer wrong")], 401),
        ("/v1/messages", [("x-api-key", "wrong"), ("authorization", f"Bearer {KEY}")], 200),
        (CHAT, [("x-api-key", KEY)], 401),
        ("/v1/messages/", [("x-api-key", KEY)], 401),
    ],
)
async def test_x_api_key_counts_for_messages_alone_and_not_beside_authorization(
    served: Service, path: str, headers: list[tuple[str, str]], status: int
) -> None:
    del served.client.headers["authorization"]
    reply = await served.client.post(path, json=chat(max_tokens=3), headers=headers)
    assert reply.status_code == status


async def test_x_api_key_is_in_no_log_line(served: Service, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "sk-by-" + "s3cret" * 7 + "x"
    del served.client.headers["authorization"]
    with structlog.testing.capture_logs() as logs:
        reply = await served.client.post("/v1/messages", json=chat(max_tokens=3), headers={"x-api-key": secret})
    assert reply.status_code == 401
    assert secret not in reply.text
    assert [entry["status"] for entry in logs if entry["event"] == "http_request"] == [401]
    assert secret not in repr(logs)
    assert secret not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat()),
        ("/v1/completions", {"model": "echo", "prompt": "a b c"}),
        ("/v1/responses", {"model": "echo", "input": "a b c"}),
        ("/v1/embeddings", {"model": "echo", "input": ["a", "b"]}),
        ("/v1/messages", chat(max_tokens=3)),
        ("/v1/score", {"model": "echo", "queries": "a b", "documents": ["a b", "b c"]}),
        ("/score", {"model": "echo", "text_1": ["a"], "text_2": ["b"]}),
        ("/v1/rerank", {"model": "echo", "query": "a b", "documents": ["x", "a b"]}),
        ("/v2/rerank", {"model": "echo", "query": "a b", "documents": ["x", "a b"], "top_n": 1}),
        ("/v1/chat/completions/batch", {"model": "echo", "messages": [[TURN], [TURN, TURN]]}),
        ("/tokenize", {"model": "echo", "prompt": "ab"}),
        ("/detokenize", {"model": "echo", "tokens": [97, 98]}),
    ],
)
async def test_answer_is_the_one_a_batch_line_gets(
    client: httpx2.AsyncClient, echo: EchoEngine, path: str, body: dict[str, Any]
) -> None:
    raw = json.dumps(body).encode()
    reply = await client.post(path, content=raw, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.content) == (200, (await echo.call(path, raw)).body)


async def test_stream_is_the_answer_in_pieces(client: httpx2.AsyncClient) -> None:
    whole = (await client.post(CHAT, json=chat())).json()
    body = chat(stream=True, stream_options={"include_usage": True})
    async with client.stream("POST", CHAT, json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in reply.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
    assert said == whole["choices"][0]["message"]["content"]
    assert len(chunks) > 5
    assert chunks[-1]["usage"] == whole["usage"]
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-2:] == [None, "stop"]


async def test_engines_own_error_passes_untouched(client: httpx2.AsyncClient, echo: EchoEngine) -> None:
    for body in (b"{", b"[]", b'{"model":"gpt-4","messages":[{"role":"user","content":"a"}]}', b'{"stream":true}'):
        reply = await client.post(CHAT, content=body)
        expected = await echo.call(CHAT, body.replace(b'"stream":true', b""))
        assert (reply.status_code, reply.content) == (expected.status, expected.body)


async def test_every_path_asks_for_a_key(served: Service) -> None:
    for path in (CHAT, "/tokenize", "/score", "/v2/rerank"):
        reply = await served.client.post(path, json=chat(), headers={"authorization": "Bearer wrong"})
        assert reply.status_code == 401, path
        error_of(reply)
    assert (await served.client.get("/v1/models", headers={"authorization": ""})).status_code == 401


async def test_body_above_its_own_limit_is_refused(client: httpx2.AsyncClient) -> None:
    reply = await client.post(CHAT, json=chat(x="y" * 5000))
    assert reply.status_code == 413
    assert "4096" in error_of(reply)["message"]

    async def undeclared() -> AsyncGenerator[bytes]:
        for _ in range(5):
            yield b"y" * 1000

    assert (await client.post(CHAT, content=undeclared())).status_code == 413


async def test_endpoint_that_is_not_served_says_which_are(client: httpx2.AsyncClient) -> None:
    error = error_of(await client.post("/v1/moderations", json={"model": "echo", "input": "a"}))
    assert error["code"] == "unsupported_endpoint"
    assert f"/v1/moderations. It answers: /v1/responses, {CHAT}, " in error["message"]


async def test_wrong_method_is_our_405(client: httpx2.AsyncClient) -> None:
    reply = await client.get(CHAT)
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [TURN]}, "messages[0]"),
        ({"messages": []}, "messages"),
        ({"stream": True}, "stream"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
)
async def test_conversations_refuse_what_they_cannot(
    client: httpx2.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    reply = await client.post(f"{CHAT}/batch", json={"model": "echo", "messages": [[TURN], [TURN]]} | fields)
    assert reply.status_code == 400
    assert error_of(reply)["param"] == param


async def test_conversations_get_one_choice_each(client: httpx2.AsyncClient) -> None:
    talks = [[{"role": "user", "content": f"talk {number}"}] for number in range(5)]
    reply = (await client.post(f"{CHAT}/batch", json={"model": "echo", "messages": talks})).json()
    assert [(one["index"], one["message"]["content"]) for one in reply["choices"]] == [
        (number, f"talk {number}") for number in range(5)
    ]
    assert reply["usage"] == {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}


async def test_client_that_leaves_aborts_its_request(client: httpx2.AsyncClient, echo: EchoEngine) -> None:
    asking = asyncio.create_task(client.post(CHAT, json=chat(echo={"hang": True})))
    await until(lambda: len(echo._waiting) == 1)
    asking.cancel()
    await asyncio.wait({asking})
    await until(lambda: not echo._waiting)


async def test_engine_that_dies_is_503_with_a_time(client: httpx2.AsyncClient) -> None:
    reply = await client.post(CHAT, json=chat(echo={"crash": True}))
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "2"
    assert error_of(reply)["code"] == "engine_not_ready"


async def test_engine_that_refuses_admission_is_503(client: httpx2.AsyncClient) -> None:
    reply = await client.post(CHAT, json=chat(echo={"busy": 1}))
    assert (reply.status_code, int(reply.headers["retry-after"]) > 0) == (503, True)


async def test_engine_that_loads_is_503_with_a_time(sqlite_database: Database, tmp_path: Path) -> None:
    engine = SupervisedEngine(lambda: EchoEngine(load_seconds=60))
    await engine.start()
    try:
        async with in_process(sqlite_database, tmp_path / "blobs", engine=engine) as service:
            for reply in (await service.client.get("/v1/models"), await service.client.post(CHAT, json=chat())):
                assert reply.status_code == 503
                assert reply.headers["retry-after"] == "2"
                assert "loading" in error_of(reply)["message"]
    finally:
        await engine.stop()


async def test_server_without_an_engine_is_404(sqlite_database: Database, tmp_path: Path) -> None:
    async with in_process(sqlite_database, tmp_path / "blobs") as service:
        reply = await service.client.post(CHAT, json=chat())
        assert reply.status_code == 404
        assert error_of(reply)["code"] == "not_served"
