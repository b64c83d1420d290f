"""A real engine: ours (hosted, durable) against vLLM's own run_batch and against the engine's limit.

All three run on the same loaded AsyncLLM in this process, in turn, round by round, with an empty prefix cache each
time; so neither load time nor a noisy minute favours one. The limit is `AsyncLLM.generate` on pre-tokenised prompts,
all submitted at once. Every request states `ignore_eos`, so that all of them make the same number of tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.batch import BatchStatus
from app.domain.file import Purpose
from app.domain.project import DEFAULT_PROJECT
from app.engine import embedded
from app.main import Parts, build
from app.settings import EngineSettings, LogSettings, Settings
from bench.report import Row, judged

NAME = "engine"
CHAT = "/v1/chat/completions"
POLL_SECONDS = 0.05
_WORDS = (
    "old",
    "lighthouse",
    "keeper",
    "counted",
    "ships",
    "while",
    "rain",
    "crossed",
    "slow",
    "grey",
    "water",
    "wall",
)
_TIGHT = ("--block-size", "32", "--num-gpu-blocks-override", "60", "--max-num-seqs", "4", "--max-model-len", "1024")


@dataclass(frozen=True, slots=True)
class _Request:
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class _Case:
    """A file and the flags of the engine that runs it. `targets`: figure → (target in words, test of the median)."""

    name: str
    flags: tuple[str, ...]
    requests: Callable[[float], list[_Request]]
    targets: dict[str, tuple[str, Callable[[float], bool]]]


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words))


def _plain(scale: float) -> list[_Request]:
    rng = random.Random(1)
    return [_Request(_text(rng, rng.randint(5, 120)), rng.randint(8, 48)) for _ in range(max(4, int(256 * scale)))]


def _shared(scale: float) -> list[_Request]:
    rng = random.Random(2)
    prefixes = [_text(rng, 560) for _ in range(4)]
    each = max(2, int(16 * scale))
    return [_Request(f"{prefix} Question {number}: why?", 8) for number in range(each) for prefix in prefixes]


def _stragglers(scale: float) -> list[_Request]:
    rng = random.Random(3)
    lengths = [min(400, int(4 * rng.paretovariate(0.9))) for _ in range(max(8, int(128 * scale)))]
    return [_Request(_text(rng, rng.randint(5, 30)), length) for length in lengths]


CASES = (
    _Case(
        "plain",
        (),
        _plain,
        {
            "run_batch": (">= 1.00", lambda ratio: ratio >= 1.0),
            "limit": (">= 0.98", lambda ratio: ratio >= 0.98),
        },
    ),
    _Case("shared prefixes, tight cache", _TIGHT, _shared, {"run_batch": (">= 5", lambda ratio: ratio >= 5)}),
    _Case(
        "stragglers",
        ("--max-num-seqs", "16"),
        _stragglers,
        {"run_batch": (">= 1.05 (time <= 0.95)", lambda ratio: ratio >= 1 / 0.95)},
    ),
)


def measure(*, runs: int, scale: float) -> list[Row]:
    """`scale` multiplies the number of requests; every case loads its engine once."""
    embedded.prepare()
    rows: list[Row] = []
    for case in CASES:
        rows += asyncio.run(_measure(case, runs=runs, scale=scale))
    return rows


async def _measure(case: _Case, *, runs: int, scale: float) -> list[Row]:
    requests = case.requests(scale)
    tokens = sum(request.max_tokens for request in requests)
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as name:
        folder = Path(name)
        engine = EngineSettings(kind="vllm", arguments=list(case.flags))
        settings = Settings(data_dir=folder / "data", engine=engine, log=LogSettings(level="error"))
        async with build(settings) as parts:
            assert parts.engine is not None
            if not await parts.engine.wait_ready(parts.stop):
                raise RuntimeError("the engine did not load")
            contest = _Contest(parts, folder, requests)
            seconds = await contest.rounds(runs)
    return _rows(case, seconds, tokens=tokens, lines=len(requests))


def _rows(case: _Case, seconds: dict[str, list[float]], *, tokens: int, lines: int) -> list[Row]:
    what = f"{lines} chat lines, {tokens} tokens out"
    rows = [
        Row(f"{case.name}: {name}", "tokens/s", tuple(tokens / value for value in values), note=what)
        for name, values in seconds.items()
    ]
    for other in ("run_batch", "limit"):
        ratios = tuple(theirs / ours for theirs, ours in zip(seconds[other], seconds["ours"], strict=True))
        row = Row(f"{case.name}: ours / {other}", "speed ratio", ratios, note="time to the last line, round by round")
        rows.append(judged(row, *case.targets[other]) if other in case.targets else row)
    return rows


class _Contest:
    """The three contenders over one file on one engine."""

    def __init__(self, parts: Parts, folder: Path, requests: Sequence[_Request]) -> None:
        assert parts.engine is not None
        self._parts = parts
        self._folder = folder
        self._requests = requests
        self._llm: Any = getattr(parts.engine.current, "_llm")  # noqa: B009 - the bench measures what lies underneath
        self._content = b"".join(self._line(number, request) for number, request in enumerate(requests))
        self._prompts: list[list[int]] = []

    @staticmethod
    def _line(number: int, request: _Request) -> bytes:
        body = {
            "model": embedded.MODEL_NAME,
            "messages": [{"role": "user", "content": request.prompt}],
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        line = {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}
        return json.dumps(line).encode() + b"\n"

    async def rounds(self, runs: int) -> dict[str, list[float]]:
        """Seconds of each contender in each round; the order rotates, and a first round warms up uncounted."""
        tokenizer = self._llm.get_tokenizer()
        for request in self._requests:
            messages = [{"role": "user", "content": request.prompt}]
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            self._prompts.append(tokenizer.encode(text, add_special_tokens=False))
        contenders: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("ours", self._ours),
            ("run_batch", self._run_batch),
            ("limit", self._limit),
        ]
        seconds: dict[str, list[float]] = {name: [] for name, _ in contenders}
        for number in range(runs + 1):
            for name, contender in contenders[number % 3 :] + contenders[: number % 3]:
                await self._llm.reset_prefix_cache()
                began = time.monotonic()
                await contender()
                if number:
                    seconds[name].append(time.monotonic() - began)
        return seconds

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
        model = str(embedded.locate())
        arguments = parser.parse_args(
            ["-i", str(source), "-o", str(target), "--model", model, "--served-model-name", embedded.MODEL_NAME]
        )
        await run_batch.run_batch(self._llm, arguments)
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
