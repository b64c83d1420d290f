"""A chat model's endpoints: a batch line is answered as the same body sent online."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.acceptance.batch import run
from tests.acceptance.parity import both
from tests.acceptance.server import Server
from tests.acceptance.vllm_chat.conftest import ADAPTER, LOAD_SECONDS, MODEL, SECOND_NAME
from tests.acceptance.wire import error_of

FRANCE = {"role": "user", "content": "What is the capital of France?"}
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.timeout(LOAD_SECONDS + 240),
]


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [FRANCE], "temperature": 0, "max_tokens": 16} | fields


def test_chat_lines_are_answered_as_online(server: Server) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    # With a reasoning parser vLLM waits for the end of the thoughts before it follows a grammar.
    thoughtless = {"include_reasoning": False}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    cases = {
        "plain": asked(),
        "logprobs": asked(logprobs=True, top_logprobs=2),
        "choices": asked(n=3, temperature=0.9, seed=7),
        "tool": asked(tools=[WEATHER], tool_choice=named, max_tokens=60, **thoughtless),
        "tools left alone": asked(tools=[WEATHER], tool_choice="auto"),
        "schema": asked(response_format=schema, max_tokens=60, **thoughtless),
        "pattern": asked(structured_outputs={"regex": "(Paris|London)"}, **thoughtless),
        "thoughts": asked(include_reasoning=True),
        "tokens": asked(return_token_ids=True, stop=["."], min_tokens=2),
        "refused": asked(top_p=7),
        "too long": asked(max_tokens=100_000),
        "picture": asked(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]),
    }
    answers = both(server, "/v1/chat/completions", cases)
    for name, (line, online) in answers.items():
        assert line == online, name
    statuses = {name: line[0] for name, (line, _) in answers.items()}
    assert statuses == dict.fromkeys(cases, 200) | {"refused": 400, "too long": 400, "picture": 400}
    said = {name: line[1].get("choices") for name, (line, _) in answers.items()}
    assert "Paris" in said["plain"][0]["message"]["content"]
    assert len(said["choices"]) == 3
    assert len(said["logprobs"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert said["tool"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert set(json.loads(said["schema"][0]["message"]["content"])) == {"name", "age"}
    assert said["pattern"][0]["message"]["content"] in {"Paris", "London"}


def test_completion_lines_are_answered_as_online(server: Server) -> None:
    base = {"model": MODEL, "temperature": 0, "max_tokens": 6}
    cases = {
        "text": base | {"prompt": "Paris is the capital of"},
        "texts": base | {"prompt": ["One two three", "A b c d"]},
        "tokens": base | {"prompt": [504, 3575, 282]},
        "echo": base | {"prompt": "Paris is", "echo": True, "logprobs": 1},
        "refused": base | {"prompt": "x", "n": 0},
    }
    answers = both(server, "/v1/completions", cases)
    for name, (line, online) in answers.items():
        assert line == online, name
    assert [line[0] for line, _ in answers.values()] == [200, 200, 200, 200, 400]
    assert len(answers["texts"][0][1]["choices"]) == 2


def test_response_lines_are_answered_as_online(server: Server) -> None:
    base = {"model": MODEL, "temperature": 0, "max_output_tokens": 16}
    cases = {
        "text": base | {"input": "What is the capital of France?"},
        "items": base | {"input": [FRANCE], "instructions": "Answer in one word."},
    }
    answers = both(server, "/v1/responses", cases)
    for name, (line, online) in answers.items():
        assert line == online, name
        assert line[0] == 200


def test_message_lines_are_answered_as_online(server: Server) -> None:
    cases = {
        "plain": asked(),
        "system": asked(system="Answer in one word."),
    }
    answers = both(server, "/v1/messages", cases)
    for name, (line, online) in answers.items():
        assert line == online, name
    assert answers["plain"][0][1]["type"] == "message"
    assert "Paris" in answers["plain"][0][1]["content"][0]["text"]


def test_conversations_are_answered_as_online_one_choice_each(server: Server) -> None:
    spain = {"role": "user", "content": "What is the capital of Spain?"}
    cases = {"two": asked(messages=[[FRANCE], [spain]]), "one": asked(messages=[[FRANCE]], logprobs=True)}
    answers = both(server, "/v1/chat/completions/batch", cases)
    for name, (line, online) in answers.items():
        assert line == online, name
    choices = answers["two"][0][1]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert "Paris" in choices[0]["message"]["content"]
    with server.http() as http:
        alone = [
            http.post("/v1/chat/completions", json=asked(messages=[turn])).json()["usage"] for turn in (FRANCE, spain)
        ]
    usage = answers["two"][0][1]["usage"]
    assert usage["prompt_tokens"] == sum(one["prompt_tokens"] for one in alone)


@pytest.mark.parametrize(
    "fields",
    [{"stream": True}, {"tools": [WEATHER]}, {"use_beam_search": True}, {"messages": [FRANCE]}, {"messages": []}],
    ids=["stream", "tools", "beam search", "flat", "empty"],
)
def test_conversations_refuse_what_they_cannot(server: Server, fields: dict[str, Any]) -> None:
    with server.http() as http:
        reply = http.post("/v1/chat/completions/batch", json=asked(messages=[[FRANCE]]) | fields)
    assert reply.status_code == 400
    error_of(reply.json())


def test_stream_online_says_what_the_whole_answer_says(server: Server) -> None:
    with server.sdk() as client:
        whole = client.chat.completions.create(**asked())
        chunks = list(client.chat.completions.create(**asked(stream=True)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert len(chunks) > 3


def test_users_own_priority_gets_nowhere(server: Server) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": asked(priority=-9)}
    with server.sdk() as client, server.http() as http:
        batch = run(client, [line])
        assert batch.status == "failed"
        assert batch.errors is not None
        assert [error.param for error in batch.errors.data or []] == ["body.priority"]
        assert http.post("/v1/chat/completions", json=asked(priority=-9)).status_code == 200


def test_tokens_there_and_back(server: Server) -> None:
    with server.http() as http:
        tokens = http.post("/tokenize", json={"model": MODEL, "prompt": "Paris is big", "add_special_tokens": False})
        text = http.post("/detokenize", json={"model": MODEL, "tokens": tokens.json()["tokens"]})
        assert text.json()["prompt"] == "Paris is big"


def test_adapters_lines_are_answered_as_online_and_not_as_the_models(server: Server) -> None:
    cases = {"plain": asked(), "logprobs": asked(logprobs=True), "choices": asked(n=2, temperature=0.9, seed=7)}
    answers = both(server, "/v1/chat/completions", {name: case | {"model": ADAPTER} for name, case in cases.items()})
    for name, (line, online) in answers.items():
        assert line == online, name
        assert (line[0], line[1]["model"]) == (200, ADAPTER)
    with server.http() as http:
        for name, case in cases.items():
            ours = http.post("/v1/chat/completions", json=case).json()["choices"]
            assert [choice["message"] for choice in ours] != [c["message"] for c in answers[name][0][1]["choices"]]


def test_adapters_are_models_by_name_and_unknown_ones_are_not(server: Server) -> None:
    with server.sdk() as client, server.http() as http:
        assert [card.id for card in client.models.list()] == [MODEL, SECOND_NAME, ADAPTER]
        assert client.models.retrieve(ADAPTER).id == ADAPTER
        assert http.get(f"/v1/models/{ADAPTER}").json()["parent"] == MODEL
        with pytest.raises(openai.NotFoundError, match="poets/unknown"):
            client.models.retrieve("poets/unknown")
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": asked(model="poets/unknown")}
        batch = run(client, [line])
        assert batch.status == "failed"
        assert batch.errors is not None
        assert [error.code for error in batch.errors.data or []] == ["model_not_found"]


def test_endpoint_that_the_model_lacks_names_what_it_has(server: Server) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": MODEL, "input": "x"}}
    with server.sdk() as client, server.http() as http:
        batch = run(client, [line], endpoint="/v1/embeddings")
        assert batch.status == "failed"
        assert batch.errors is not None
        [error] = batch.errors.data or []
        assert error.code == "unsupported_endpoint"
        assert error.message is not None
        assert "/v1/chat/completions" in error.message
        assert "/v1/embeddings," not in error.message
        reply = http.post("/v1/embeddings", json={"model": MODEL, "input": "x"})
        assert reply.status_code == 404
        assert "/v1/chat/completions" in reply.json()["error"]["message"]
