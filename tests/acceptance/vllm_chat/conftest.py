"""One server with the embedded chat model for this folder: each start of an engine takes half a minute.

One sequence at a time, since a text at temperature 0 may depend on what runs beside it. Two names and a LoRA adapter.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Generator
from dataclasses import dataclass

import openai
import pytest

from app.engine import embedded
from tests.acceptance.adapter import make_adapter
from tests.acceptance.server import Server
from tests.requirement import without

MODEL = "SmolLM2-135M-Instruct"
SECOND_NAME = "second-name"
ADAPTER = "poets/by-chance"
LOAD_SECONDS = 240
FLAGS = (
    *("--engine", "vllm", "--served-model-name", MODEL, SECOND_NAME, "--max-num-seqs", "1"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "granite"),
    *("--enable-lora", "--max-lora-rank", "8", "--lora-modules"),
)


@dataclass
class Loaded:
    """The server, and how it answered while the model loaded."""

    server: Server
    ready_while_loading: list[tuple[int, str]]
    slowest_health_seconds: float


@pytest.fixture(scope="package")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Generator[Loaded]:
    model = embedded.locate()
    if model is None or importlib.util.find_spec("vllm") is None:
        missing = "vLLM is not installed (`make setup`)" if model else "the embedded model is missing (`make model`)"
        without(missing)
    folder = tmp_path_factory.mktemp("vllm")
    adapter = make_adapter(folder / "adapter", model=model)
    # vLLM's own processes write to stderr as they like.
    server = Server(
        folder / "data",
        folder / "server.log",
        flags=(*FLAGS, f"{ADAPTER}={adapter}"),
        ready_seconds=60,
        plain_lines=True,
    )
    server.start(wait="/health")
    try:
        yield _watch_loading(server)
        server.stop(within_seconds=35)
    except BaseException:
        print(server.log())
        raise
    finally:
        server.kill()


@pytest.fixture(scope="package")
def server(loaded: Loaded) -> Server:
    return loaded.server


@pytest.fixture
def client(server: Server) -> Generator[openai.OpenAI]:
    with server.sdk() as sdk:
        yield sdk


def _watch_loading(server: Server) -> Loaded:
    replies: list[tuple[int, str]] = []
    slowest = 0.0
    deadline = time.monotonic() + LOAD_SECONDS
    with server.http(key="") as http:
        while True:
            start = time.monotonic()
            assert http.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - start)
            reply = http.get("/ready")
            if reply.status_code == 200:
                return Loaded(server, replies, slowest)
            replies.append((reply.status_code, reply.text))
            assert time.monotonic() < deadline, replies[-1]
            assert server.process.poll() is None
            time.sleep(0.1)
