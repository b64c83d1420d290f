"""What is put around vLLM, as far as it can be seen without vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine import vllm_library
from app.engine.vllm_library import as_batch, rank
from app.engine.yielding import BATCH, INTERACTIVE


def engine(heard: list[tuple[str, Any]]) -> SimpleNamespace:
    async def run(name: str, fields: dict[str, Any]) -> AsyncGenerator[int]:
        heard.append((name, fields["priority"]))
        yield 1

    return SimpleNamespace(
        generate=lambda prompt, **fields: run("generate", fields), encode=lambda prompt, **fields: run("encode", fields)
    )


async def drained(llm: Any, name: str, **fields: Any) -> None:
    assert [item async for item in getattr(llm, name)("prompt", **fields)] == [1]


@pytest.mark.parametrize("name", ["generate", "encode"])
@pytest.mark.parametrize("asked", [{}, {"priority": -9}, {"priority": 7}])
async def test_rank_goes_by_the_context_and_not_by_the_request(name: str, asked: dict[str, int]) -> None:
    heard: list[tuple[str, Any]] = []
    llm = engine(heard)
    rank(llm)
    await drained(llm, name, **asked)
    await asyncio.create_task(drained(llm, name, **asked), context=as_batch())

    async def in_a_task_of_its_own() -> None:
        await asyncio.create_task(drained(llm, name, **asked))

    await asyncio.create_task(in_a_task_of_its_own(), context=as_batch())
    await drained(llm, name, **asked)
    assert heard == [(name, INTERACTIVE), (name, BATCH), (name, BATCH), (name, INTERACTIVE)]


def test_unknown_name_is_no_scheduler() -> None:
    with pytest.raises(AttributeError):
        _ = vllm_library.SomethingElse
