"""`python -m bench.gpu [--tiny] [--json FILE] [--markdown FILE]`: the real-engine figures on one GPU, in one go.

Two models of Llama's shape, of about 1 and 8 billion parameters: their configuration is written here, their tokenizer
is the embedded model's, and their weights are random (`--load-format dummy`), so that nothing is downloaded. Each gets
the three files of `bench engine`, larger, and interactive latency beside a batch. A section is begun only while there
is time for it within `--minutes`; what was measured is on disk after each. `--tiny` is the rehearsal on a CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from app.engine import embedded
from bench import interactive
from bench.contest import Model
from bench.engine import CASES, Case, contest
from bench.report import Row, document, load, machine, show, tabulated

#: Without its weights and their names, and the configuration that belongs to them.
_NOT_TAKEN = ("*.safetensors", "*.bin", "*.gguf", "*.index.json", "config.json", "generation_config.json")
COMMAND = "python -m bench.gpu"
ROUNDS = 3
#: How many of `Shape.scale` a file takes: the others have few sequences at once, and so are slower.
SHARES = {"plain": 1.0, "shared prefixes, tight cache": 0.25, "stragglers": 0.4}
#: Loading, compiling, and the rounds; a section that has less left is not begun.
SECTION_SECONDS = 75.0
_CPU_FLAGS = ("--enforce-eager", "--kv-cache-memory-bytes", str(1 << 28), "--max-model-len", "1024")


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama. `scale` multiplies the requests of its files."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    scale: float
    flags: tuple[str, ...] = ("--max-model-len", "2048")

    def config(self, *, vocabulary: int) -> dict[str, Any]:
        """config.json, with the embeddings tied."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate,
            "vocab_size": vocabulary,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }

    def parameters(self, *, vocabulary: int) -> int:
        """How many weights that makes, norms left out."""
        attention = 2 * self.hidden**2 + 2 * self.hidden * (self.hidden * self.kv_heads // self.heads)
        return self.hidden * vocabulary + self.layers * (attention + 3 * self.hidden * self.intermediate)


SHAPES = (
    Shape("dummy-1b", hidden=2048, layers=16, heads=32, kv_heads=8, intermediate=8192, scale=8),
    Shape("dummy-8b", hidden=4096, layers=34, heads=32, kv_heads=8, intermediate=14336, scale=4),
)
# 64 numbers a head: fewer are none of the CPU's kernels.
TINY = (
    Shape("tiny-a", hidden=128, layers=2, heads=2, kv_heads=1, intermediate=256, scale=0.05, flags=_CPU_FLAGS),
    Shape("tiny-b", hidden=256, layers=2, heads=4, kv_heads=2, intermediate=512, scale=0.05, flags=_CPU_FLAGS),
)

#: Model, what is measured, and how.
Section = tuple[str, str, Callable[[], list[Row]]]


def main() -> int:
    """Exit code 1 when a section failed, or there was no time for it."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="The real-engine figures on one GPU.")
    parser.add_argument("--tiny", action="store_true", help="tiny models and files, for a CPU")
    parser.add_argument("--minutes", type=float, default=12.0, help="begin nothing that would end later (12)")
    parser.add_argument("--json", type=Path, help="write the figures here, after each section")
    parser.add_argument("--markdown", type=Path, help="write the section of docs/benchmarks.md here")
    given = parser.parse_args()
    ends_at = time.monotonic() + 60 * given.minutes
    where = {**machine(), "device": _device()}
    rows: list[Row] = []
    missed = 0
    with tempfile.TemporaryDirectory(prefix="batchyard-gpu-") as folder:
        for model, what, section in _sections(Path(folder), tiny=given.tiny):
            before = load()
            found, failed = run(what, section, seconds_left=ends_at - time.monotonic())
            missed += failed
            found = [replace(row, name=f"{model}, {row.name}", load=before) for row in found]
            # Of tiny models no target speaks.
            rows += [replace(row, target="", met=None) for row in found] if given.tiny else found
            if given.json:
                found_so_far = document(rows, where=where, command=COMMAND)
                given.json.write_text(json.dumps(found_so_far, indent=2) + "\n", encoding="utf-8")
            if given.markdown:
                given.markdown.write_text(markdown(rows, where=where), encoding="utf-8")
    show(rows, where=where, console=Console(width=None if sys.stdout.isatty() else 160))
    return 1 if missed else 0


def run(what: str, section: Callable[[], list[Row]], *, seconds_left: float) -> tuple[list[Row], bool]:
    """The rows of one section and whether it failed; one row that says why, then or when there is no time."""
    if seconds_left < SECTION_SECONDS:
        return [Row(what, "", (), note="no time was left")], True
    print(f"{what} …", file=sys.stderr, flush=True)
    try:
        return section(), False
    except Exception as exc:  # an engine's own: what the other sections found must reach the page
        said = " ".join(str(exc).replace("|", "/").split())
        return [Row(what, "", (), note=f"failed: {type(exc).__name__}: {said[-300:]}")], True


def _sections(folder: Path, *, tiny: bool) -> list[Section]:
    source = embedded.prepare()
    rounds = 1 if tiny else ROUNDS
    contests: list[Section] = []
    latencies: list[Section] = []
    for shape in TINY if tiny else SHAPES:
        made = write_model(shape, folder / shape.name, tokenizer=source)
        flags = ("--served-model-name", shape.name, "--load-format", "dummy", *shape.flags)
        contests += [(shape.name, case.name, _contest(case, shape, made, flags, rounds)) for case in CASES]
        latencies.append((shape.name, "interactive", _latency(shape, made, flags, 0.05 if tiny else 1.0)))
    return contests + latencies


def _contest(case: Case, shape: Shape, made: Path, flags: Sequence[str], rounds: int) -> Callable[[], list[Row]]:
    model = Model(shape.name, made, made, (*flags, *case.flags))
    return lambda: asyncio.run(contest(case, model, rounds=rounds, scale=shape.scale * SHARES[case.name]))


def _latency(shape: Shape, made: Path, flags: Sequence[str], scale: float) -> Callable[[], list[Row]]:
    given = ("--model", str(made), *flags)
    return lambda: interactive.latencies(shape.name, flags=given, scale=scale, policies=False)


def write_model(shape: Shape, folder: Path, *, tokenizer: Path) -> Path:
    """A model folder without weights: the tokenizer of another, and a configuration."""
    shutil.copytree(tokenizer, folder, ignore=shutil.ignore_patterns(*_NOT_TAKEN))
    known = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))
    ends = {key: known[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in known}
    config = shape.config(vocabulary=known["vocab_size"]) | ends
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def markdown(rows: Sequence[Row], *, where: dict[str, Any]) -> str:
    """The section "On a GPU" of docs/benchmarks.md."""
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    lines = ["## On a GPU", "", f"`{COMMAND}` on {today}: {where['device']}. Weights are random.", ""]
    return "\n".join([*lines, *tabulated(rows), ""])


def _device() -> str:
    # Not asked of torch: CUDA must not be started in the engine's parent.
    asker = shutil.which("nvidia-smi")
    if asker is None:
        return "no GPU, a rehearsal on the CPU"
    asked = [asker, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().replace("\n", "; ")


if __name__ == "__main__":
    sys.exit(main())
