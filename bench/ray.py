"""Ray Data LLM on the plain file and the embedded model: measured only where `ray[data]` is installed beside vLLM.

A job of its loads its own engine. So it is compared with `batchyard run-batch`, which does too: from nothing to the
last line, in turn.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from app.engine import embedded
from bench.report import Row
from bench.requests import Request, jsonl, plain

NAME = "ray"


def measure(*, runs: int, scale: float) -> list[Row]:
    """`scale` multiplies the number of lines. Two engines are loaded a run."""
    name = "plain, load included"
    if importlib.util.find_spec("ray") is None:
        note = "ray is not installed: pip install 'ray[data]' into this environment"
        return [Row(f"{name}: Ray Data LLM", "s", (), note=note)]
    requests = plain(scale)
    theirs, ours = [], []
    for _ in range(runs):
        ours.append(_run_batch(requests))
        theirs.append(_job(requests))
    ratios = tuple(its / mine for its, mine in zip(theirs, ours, strict=True))
    what = f"{len(requests)} chat lines, {sum(request.max_tokens for request in requests)} tokens out"
    return [
        Row(f"{name}: Ray Data LLM", "s", tuple(theirs), note=what),
        Row(f"{name}: batchyard run-batch", "s", tuple(ours), note=what),
        Row(f"{name}: ours / Ray Data LLM", "speed ratio", ratios, note="run by run"),
    ]


def _run_batch(requests: list[Request]) -> float:
    """Seconds of the offline command. Raises RuntimeError when it fails."""
    with tempfile.TemporaryDirectory(prefix="batchyard-bench-") as name:
        source, target = Path(name) / "in.jsonl", Path(name) / "out.jsonl"
        source.write_bytes(jsonl(requests, model=embedded.MODEL_NAME))
        command = [sys.executable, "-m", "app", "run-batch", "-i", str(source), "-o", str(target)]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(f"run-batch ended with {done.returncode}: {done.stderr[-2000:]}")
    return seconds


def _job(requests: list[Request]) -> float:
    """Seconds from the data set to its last row. Raises RuntimeError when tokens are missing."""
    # Before the first import: nothing of a measurement goes to anybody.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    began = time.monotonic()
    import ray  # type: ignore[import-not-found,unused-ignore]
    from ray.data.llm import (  # type: ignore[import-not-found,unused-ignore]
        build_processor,
        vLLMEngineProcessorConfig,
    )

    ray.init(address="local", include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    try:
        config = vLLMEngineProcessorConfig(
            model_source=str(embedded.prepare()),
            engine_kwargs={"max_model_len": 2048, "kv_cache_memory_bytes": 1 << 30, "enforce_eager": True},
            concurrency=1,
            batch_size=64,
            placement_group_config={"bundles": [{"CPU": 1}]},
            log_engine_metrics=False,  # else vLLM asks for Ray Serve too
        )
        processor = build_processor(config, preprocess=_asked, postprocess=_answered)
        rows = processor(ray.data.from_items([_item(request) for request in requests])).take_all()
    finally:
        ray.shutdown()
    seconds = time.monotonic() - began
    wanted = sum(request.max_tokens for request in requests)
    if sum(row["tokens"] for row in rows) != wanted:
        raise RuntimeError(f"Ray Data LLM made other than {wanted} tokens")
    return seconds


def _item(request: Request) -> dict[str, Any]:
    return {"prompt": request.prompt, "max_tokens": request.max_tokens}


def _asked(row: dict[str, Any]) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_tokens": int(row["max_tokens"]), "ignore_eos": True, "detokenize": True}
    return {"messages": [{"role": "user", "content": row["prompt"]}], "sampling_params": sampling}


def _answered(row: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": int(row["num_generated_tokens"])}
