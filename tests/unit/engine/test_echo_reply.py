"""The echo engine's answers, read by the openai SDK's own models."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from app.engine.echo import EchoEngine


async def _answer(path: str, **fields: Any) -> dict[str, Any]:
    engine = EchoEngine()
    await engine.start()
    reply = await engine.call(path, json.dumps({"model": "echo", **fields}).encode())
    assert reply.status == 200, reply.body
    answer = json.loads(reply.body)
    assert isinstance(answer, dict)
    return answer


async def _chat(*messages: dict[str, Any], **fields: Any) -> ChatCompletion:
    answer = await _answer("/v1/chat/completions", messages=list(messages), **fields)
    return ChatCompletion.model_validate(answer, strict=True)


async def test_chat_repeats_the_last_user_message() -> None:
    chat = await _chat(
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "the  last\none é\u2028\ud83d\ude00"},
        {"role": "assistant", "content": "prefill"},
    )
    assert chat.choices[0].message.content == "the  last\none é\u2028\U0001f600"
    assert chat.choices[0].finish_reason == "stop"
    assert chat.usage is not None
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens) == (10, 5, 15)


async def test_chat_joins_text_parts() -> None:
    parts = [
        {"type": "text", "text": "a "},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "b"},
    ]
    assert (await _chat({"role": "user", "content": parts})).choices[0].message.content == "a b"


async def test_chat_n_gives_that_many_choices() -> None:
    chat = await _chat({"role": "user", "content": "one two"}, n=3)
    assert [choice.index for choice in chat.choices] == [0, 1, 2]
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 6


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_chat_limit_cuts_the_answer(field: str) -> None:
    chat = await _chat({"role": "user", "content": "one two three"}, **{field: 2})
    assert chat.choices[0].message.content == "one two"
    assert chat.choices[0].finish_reason == "length"


async def test_completion_repeats_each_prompt() -> None:
    answer = await _answer("/v1/completions", prompt=["a b", "c"], n=2)
    completion = Completion.model_validate(answer, strict=True)
    assert [choice.text for choice in completion.choices] == ["a b", "a b", "c", "c"]
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 6)


async def test_completion_echo_true_puts_the_prompt_first() -> None:
    answer = await _answer("/v1/completions", prompt="a", echo=True)
    assert answer["choices"][0]["text"] == "aa"


async def test_completion_reads_token_ids() -> None:
    answer = await _answer("/v1/completions", prompt=[5, 6])
    assert [choice["text"] for choice in answer["choices"]] == ["5 6"]


@pytest.mark.parametrize("given", ["hi you", [{"role": "user", "content": [{"type": "input_text", "text": "hi you"}]}]])
async def test_response_repeats_its_input(given: Any) -> None:
    response = Response.model_validate(await _answer("/v1/responses", input=given, instructions="be kind"))
    assert response.output_text == "hi you"
    assert response.status == "completed"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (4, 2)


async def test_response_limit_makes_it_incomplete() -> None:
    response = Response.model_validate(await _answer("/v1/responses", input="a b c", max_output_tokens=1))
    assert (response.output_text, response.status) == ("a", "incomplete")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("given", "count", "tokens"), [("a b", 1, 2), (["a", "b c"], 2, 3), ([1, 2, 3], 1, 3), ([[1], [2, 3]], 2, 3)]
)
async def test_embeddings_are_one_unit_vector_an_input(given: Any, count: int, tokens: int) -> None:
    answer = CreateEmbeddingResponse.model_validate(await _answer("/v1/embeddings", input=given), strict=True)
    assert [row.index for row in answer.data] == list(range(count))
    assert answer.usage.total_tokens == tokens
    for row in answer.data:
        assert math.isclose(sum(value * value for value in row.embedding), 1, rel_tol=1e-5)
    assert len({tuple(row.embedding) for row in answer.data}) == count


async def test_embeddings_base64_holds_the_same_floats() -> None:
    plain = await _answer("/v1/embeddings", input="a", dimensions=7)
    packed = await _answer("/v1/embeddings", input="a", dimensions=7, encoding_format="base64")
    values = struct.unpack("<7f", base64.b64decode(packed["data"][0]["embedding"]))
    assert list(values) == plain["data"][0]["embedding"]


async def test_embeddings_depend_on_the_input_only() -> None:
    single = await _answer("/v1/embeddings", input="a")
    several = await _answer("/v1/embeddings", input=["b", "a"])
    assert single["data"][0]["embedding"] == several["data"][1]["embedding"]
