"""A vision-language model: a line with a picture is answered as the same body online, wherever the picture is from."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator
from typing import Any

import pytest

from tests.acceptance.parity import LOAD_SECONDS, both, running
from tests.acceptance.server import Server
from tests.acceptance.vision import data_url, make_vision_model, picture
from tests.requirement import without
from tests.web import Quiet, served

MODEL = "vision"
RED, BLUE = picture((255, 0, 0)), picture((0, 0, 255))

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.timeout(LOAD_SECONDS + 120),
    pytest.mark.filterwarnings("ignore"),  # torch and transformers warn while the model is made, in our process
]


class _Pictures(Quiet):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(RED)


@pytest.fixture(scope="module")
def gallery() -> Generator[int]:
    """The port of a web server with a red picture, on the loopback."""
    with served(_Pictures) as port:
        yield port


@pytest.fixture(scope="module")
def vision_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    if importlib.util.find_spec("vllm") is None:
        without("vLLM is not installed (`make setup`)")
    folder = make_vision_model(tmp_path_factory.mktemp("vision") / "model")
    flags = ("--model", str(folder), "--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "256")
    limits = ("--kv-cache-memory-bytes", str(1 << 26), "--max-num-seqs", "4", "--enforce-eager")
    # The address is allowed, its name is not.
    home = {"BATCHYARD_MEDIA_PRIVATE_HOSTS": '["127.0.0.1"]'}
    with running(tmp_path_factory.mktemp("vision-server"), *flags, *limits, settings=home) as server:
        yield server


def asked(*urls: str) -> dict[str, Any]:
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    turn = {"role": "user", "content": [*pictures, {"type": "text", "text": "What is it?"}]}
    return {"model": MODEL, "messages": [turn], "temperature": 0, "max_tokens": 8, "logprobs": True}


def test_lines_with_pictures_are_answered_as_online(vision_server: Server, gallery: int) -> None:
    cases = {
        "red": asked(data_url(RED)),
        "blue": asked(data_url(BLUE)),
        "both": asked(data_url(RED), data_url(BLUE)),
        "fetched": asked(f"http://127.0.0.1:{gallery}/red.png"),
        "file": asked("file:///etc/hostname"),
        "private": asked(f"http://localhost:{gallery}/red.png"),
        "no picture": asked("data:image/png;base64,AAAA"),
    }
    answers = both(vision_server, "/v1/chat/completions", cases)
    for name, (line, online) in answers.items():
        assert line == online, name
    bodies = {name: line[1] for name, (line, _) in answers.items()}
    statuses = {name: line[0] for name, (line, _) in answers.items()}
    assert statuses == dict.fromkeys(cases, 400) | dict.fromkeys(["red", "blue", "both", "fetched"], 200)
    assert bodies["red"]["usage"] == bodies["blue"]["usage"]
    assert bodies["red"]["choices"] == bodies["fetched"]["choices"]
    assert bodies["red"]["choices"] != bodies["blue"]["choices"], "it does not see the picture"
    assert bodies["both"]["usage"]["prompt_tokens"] > bodies["red"]["usage"]["prompt_tokens"]
    assert "is not read" in bodies["file"]["error"]["message"]
    assert "open internet" in bodies["private"]["error"]["message"]
