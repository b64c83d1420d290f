"""One file on one loaded engine, three ways: ours (hosted, durable), vLLM's own run_batch, and the engine's limit.

All three run on the same AsyncLLM in this process, in turn, round by round, each time with an empty prefix cache; so
neither load time nor a noisy minute favours one. run_batch is the function that `python -m
vllm.entrypoints.openai.run_batch` calls once its engine is loaded. The limit is `AsyncLLM.generate` on pre-tokenised
prompts, all submitted at once. All three enter the engine as batches do: after a client it keeps seats free for a
minute, and ours would lack them. Every request states `ignore_eos`, so that all of them make the same number of tokens.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.batch import BatchStatus
from app.domain.file import Purpose
from app.domain.project import DEFAULT_PROJECT
from app.engine import vllm_library as library
from app.main import Parts, build
from app.settings import EngineSettings, LogSettings, Settings
from bench.requests import CHAT, Request, jsonl

Contender = Callable[[], Coroutine[Any, Any, object]]

POLL_SECONDS = 0.1
OURS, RUN_BATCH, LIMIT = CONTENDERS = ("ours", "run_batch", "limit")


@dataclass(frozen=True, slots=True)
class Model:
    """What runs: `folder` None is the embedded model; `flags` are vLLM's, of which the name is one."""

    name: str
    folder: Path | None
    source: Path
    flags: tuple[str, ...] = ()


@asynccontextmanager
async def loaded(model: Model) -> AsyncGenerator[Contest]:
    """The contest on a freshly loaded engine. Raises RuntimeError when it does not load."""
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as name:
        folder = Path(name)
        chosen = None if model.folder is None else str(model.folder)
        engine = EngineSettings(kind="vllm", model=chosen, arguments=list(model.flags))
        settings = Settings(data_dir=folder / "data", engine=engine, log=LogSettings(level="error"))
        async with build(settings) as parts:
            assert parts.engine is not None
            if not await parts.engine.wait_ready(parts.stop):
                raise RuntimeError("the engine did not load")
            yield Contest(parts, folder, model)


async def in_turn(
    contenders: Mapping[str, Contender], *, runs: Mapping[str, int], before: Contender | None = None
) -> dict[str, list[float]]:
    """Seconds of each contender in each of its `runs`, each a batch to the engine; `before` goes first, uncounted.

    The order rotates.
    """
    order = list(contenders.items())
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(max(runs.values())):
        first = number % len(order)
        for name, contender in order[first:] + order[:first]:
            if number < runs[name]:
                if before is not None:
                    await before()
                began = time.monotonic()
                await asyncio.create_task(contender(), context=library.as_batch())
                seconds[name].append(time.monotonic() - began)
    return seconds


class Contest:
    """The three contenders over one file at a time."""

    def __init__(self, parts: Parts, folder: Path, model: Model) -> None:
        assert parts.engine is not None
        self._parts = parts
        self._folder = folder
        self._model = model
        self._llm: Any = getattr(parts.engine.current, "_llm")  # noqa: B009 - the bench measures what lies underneath
        self._requests: Sequence[Request] = ()
        self._content = b""
        self._prompts: list[list[int]] = []

    async def rounds(self, requests: Sequence[Request], *, runs: Mapping[str, int]) -> dict[str, list[float]]:
        """Seconds of each contender in each of its rounds; the order rotates. One round goes first, uncounted.

        Uncounted with the whole file: kernels are made for the sizes of the steps when these are first met, and each
        contender has steps of its own.
        """
        contenders: dict[str, Contender] = {OURS: self._ours, RUN_BATCH: self._run_batch, LIMIT: self._limit}
        self._take(requests)
        await in_turn(contenders, runs={name: min(1, count) for name, count in runs.items()})
        return await in_turn(contenders, runs=runs, before=self._llm.reset_prefix_cache)

    def _take(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._content = jsonl(requests, model=self._model.name)
        tokenizer = self._llm.get_tokenizer()
        self._prompts = []
        for request in requests:
            messages = [{"role": "user", "content": request.prompt}]
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            self._prompts.append(tokenizer.encode(text, add_special_tokens=False))

    async def _ours(self) -> None:
        """From the first byte of the upload to the status `completed`."""
        services = self._parts.services
        async with services.files.upload(DEFAULT_PROJECT) as sink:
            await sink.write(self._content)
            file = await sink.finish(purpose=Purpose.BATCH, filename="bench.jsonl", expires_after_seconds=None)
        batch = await services.batches.create(
            DEFAULT_PROJECT, endpoint=CHAT, input_file_id=file.id, completion_window="24h"
        )
        while not batch.is_terminal:
            await asyncio.sleep(POLL_SECONDS)
            batch = await services.batches.get(DEFAULT_PROJECT, batch.id)
        if batch.status is not BatchStatus.COMPLETED or batch.tally.completed != len(self._requests):
            raise RuntimeError(f"the batch ended as {batch.status}: {batch.tally} {batch.errors[:3]}")
        self._check(batch.tally.usage.output_tokens)

    async def _run_batch(self) -> None:
        from vllm.entrypoints.launchers import run_batch
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        source, target = self._folder / "in.jsonl", self._folder / "out.jsonl"
        source.write_bytes(self._content)
        parser = run_batch.make_arg_parser(FlexibleArgumentParser())
        given = ["--model", str(self._model.source), "--served-model-name", self._model.name]
        await run_batch.run_batch(self._llm, parser.parse_args(["-i", str(source), "-o", str(target), *given]))
        rows = [json.loads(line) for line in target.read_bytes().splitlines()]
        self._check(sum(row["response"]["body"]["usage"]["completion_tokens"] for row in rows))

    async def _limit(self) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        async def one(number: int, prompt: list[int], max_tokens: int) -> int:
            parameters = SamplingParams(
                max_tokens=max_tokens, temperature=0, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
            )
            made = 0
            stream = self._llm.generate(
                {"prompt_token_ids": prompt}, parameters, f"limit-{time.monotonic_ns()}-{number}"
            )
            async for output in stream:
                made = len(output.outputs[0].token_ids)
            return made

        jobs = zip(self._prompts, self._requests, strict=True)
        made = await asyncio.gather(*(one(n, prompt, request.max_tokens) for n, (prompt, request) in enumerate(jobs)))
        self._check(sum(made))

    def _check(self, made: int) -> None:
        wanted = sum(request.max_tokens for request in self._requests)
        if made != wanted:
            raise RuntimeError(f"{made} tokens were made instead of {wanted}")
