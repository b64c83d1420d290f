"""The echo engine's endpoints beyond OpenAI's batch list."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.engine.echo import EchoEngine
from app.engine.media import MediaRules

TURN = {"role": "user", "content": "one two three"}


@pytest.fixture
async def engine() -> EchoEngine:
    engine = EchoEngine(media=MediaRules(max_bytes=100))
    await engine.start()
    return engine


async def ask(engine: EchoEngine, path: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    assert await engine.supports(path)
    reply = await engine.call(path, json.dumps({"model": "echo"} | fields).encode())
    body: dict[str, Any] = json.loads(reply.body)
    return reply.status, body


async def test_message_is_cut_at_max_tokens(engine: EchoEngine) -> None:
    status, body = await ask(engine, "/v1/messages", messages=[TURN], max_tokens=2, system="be kind")
    assert status == 200
    assert (body["content"], body["stop_reason"]) == ([{"type": "text", "text": "one two"}], "max_tokens")
    assert body["usage"] == {"input_tokens": 5, "output_tokens": 2}


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
async def test_score_of_pairs_and_of_one_to_many(engine: EchoEngine, path: str) -> None:
    _, body = await ask(engine, path, queries="a b", documents=["a b", "b c", "x"])
    assert [one["score"] for one in body["data"]] == [1, pytest.approx(1 / 3), 0]
    _, body = await ask(engine, path, text_1=["a", "b"], text_2=["a", "a"])
    assert [one["score"] for one in body["data"]] == [1, 0]
    assert body["usage"]["prompt_tokens"] == 4
    assert (await ask(engine, path, text_1=["a", "b"], text_2=["a"]))[0] == 400
    assert (await ask(engine, path, queries="a"))[0] == 400


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_rerank_puts_the_best_first(engine: EchoEngine, path: str) -> None:
    _, body = await ask(engine, path, query="a b", documents=["x", "a b", "b c"], top_n=2)
    assert [(one["index"], one["document"]["text"]) for one in body["results"]] == [(1, "a b"), (2, "b c")]


async def test_conversations_get_one_choice_each(engine: EchoEngine) -> None:
    talks = [[TURN], [{"role": "user", "content": "four"}]]
    status, body = await ask(engine, "/v1/chat/completions/batch", messages=talks, max_tokens=2)
    assert status == 200
    assert [(one["index"], one["message"]["content"], one["finish_reason"]) for one in body["choices"]] == [
        (0, "one two", "length"),
        (1, "four", "stop"),
    ]
    assert body["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    assert (await ask(engine, "/v1/chat/completions/batch", messages=[TURN]))[0] == 400


async def test_tokens_there_and_back(engine: EchoEngine) -> None:
    _, body = await ask(engine, "/tokenize", prompt="hé")
    assert body["tokens"] == [104, 195, 169]
    assert (await ask(engine, "/detokenize", tokens=body["tokens"]))[1] == {"prompt": "hé"}
    assert (await ask(engine, "/tokenize", messages=[TURN]))[1]["count"] == len("one two three")
    assert (await ask(engine, "/tokenize"))[0] == 400


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
async def test_audio_line_is_downloaded_first(engine: EchoEngine, path: str) -> None:
    status, body = await ask(engine, path, file_url="data:audio/wav;base64,AAAA")
    assert status == 200
    assert body["text"].startswith("3 bytes ")
    assert body["usage"] == {"type": "duration", "seconds": 1}
    assert (await ask(engine, path, file_url="data:audio/wav;base64,AAAA"))[1] == body
    for url, code in (("http://127.0.0.1/a.wav", "invalid_media_url"), ("data:," + "x" * 101, "media_too_large")):
        status, body = await ask(engine, path, file_url=url)
        assert (status, body["error"]["code"]) == (400, code)
    assert (await ask(engine, path, file_url="data:,x", model="other"))[0] == 404
