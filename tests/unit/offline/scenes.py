"""Files of requests, and a run of them through the echo engine in this process."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from app.engine.echo import EchoEngine
from app.engine.supervised import SupervisedEngine
from app.offline.run_batch import Plan, run_batch
from app.settings import Settings, WorkerSettings

CHAT = "/v1/chat/completions"
QUICK = Settings(worker=WorkerSettings(poll_seconds=0.02, part_seconds=0.02, chunk_max_lines=20))


def line(custom_id: str, text: str = "hello", *, url: str = CHAT, model: str = "echo", **body: Any) -> bytes:
    """One good chat line, without its line end."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], **body}
    request = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(request, ensure_ascii=False).encode()


def write(path: Path, lines: Iterable[bytes]) -> Path:
    path.write_bytes(b"".join(text + b"\n" for text in lines))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_bytes().split(b"\n") if text]


def text_of(row: dict[str, Any]) -> str:
    return str(row["response"]["body"]["choices"][0]["message"]["content"])


class CountingEcho(EchoEngine):
    """The echo engine, and a list of the bodies it was asked, over all engines that share `asked`."""

    def __init__(self, asked: list[bytes], **given: Any) -> None:
        super().__init__(**given)
        self._asked = asked

    async def call(self, path: str, body: bytes) -> Any:
        self._asked.append(body)
        return await super().call(path, body)


@dataclass
class Result:
    """How a run ended: its exit code, what it said, the bodies that the engine was asked, engines that were loaded."""

    code: int | None
    said: str
    asked: list[bytes]
    loads: int


async def run(
    plan: Plan,
    *,
    settings: Settings = QUICK,
    stop: asyncio.Event | None = None,
    stop_when: int | None = None,
    **engine: Any,
) -> Result:
    """Run `plan` in this process; `stop_when` so many requests have reached the engine, ask it to stop."""
    asked: list[bytes] = []
    loads = 0
    ending = stop or asyncio.Event()

    class Stopping(CountingEcho):
        async def call(self, path: str, body: bytes) -> Any:
            reply = await super().call(path, body)
            if stop_when is not None and len(asked) >= stop_when:
                ending.set()
            return reply

    def build() -> Stopping:
        nonlocal loads
        loads += 1
        return Stopping(asked, **engine)

    def engine_of(_: Settings) -> SupervisedEngine:
        return SupervisedEngine(build, first_backoff_seconds=0.01)

    screen = io.StringIO()
    console = Console(file=screen, width=200)
    code = await run_batch(plan, settings, engine_of=engine_of, console=console, stop=ending)
    return Result(code, screen.getvalue(), asked, loads)
