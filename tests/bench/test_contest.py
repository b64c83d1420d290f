"""The turns of the contest."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from app.engine import vllm_library as library
from app.engine.yielding import BATCH, INTERACTIVE
from bench.contest import Contender, in_turn


class Entries:
    """An engine that notes, of each request, who asked and with what priority it entered."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, int]] = []
        self.llm = SimpleNamespace(generate=self._run, encode=self._run)
        library.rank(self.llm)

    async def _run(self, who: str, *, priority: int) -> AsyncGenerator[None]:
        self.noted.append((who, priority))
        yield None

    def contender(self, who: str) -> Contender:
        async def ask() -> None:
            async for _ in self.llm.generate(who):
                pass

        return ask


async def test_contenders_enter_the_engine_as_batches() -> None:
    entries = Entries()
    await in_turn({"a": entries.contender("a"), "b": entries.contender("b")}, runs={"a": 1, "b": 1})
    assert entries.noted == [("a", BATCH), ("b", BATCH)]
    await entries.contender("client")()
    assert entries.noted[-1] == ("client", INTERACTIVE)


async def test_order_of_contenders_rotates() -> None:
    entries = Entries()
    turns: list[str] = []

    async def before() -> Any:
        turns.append("reset")

    contenders = {name: entries.contender(name) for name in "abc"}
    seconds = await in_turn(contenders, runs={"a": 3, "b": 2, "c": 1}, before=before)
    assert "".join(who for who, _ in entries.noted) == "abcbaa"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 2, "c": 1}
    assert len(turns) == len(entries.noted)
