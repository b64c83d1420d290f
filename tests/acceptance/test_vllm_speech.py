"""A speech model's endpoints: a line with `file_url` is answered as the form that a client sends."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Generator
from typing import Any, cast

import pytest

from tests.acceptance.batch import Endpoint, by_id, counts, rows, run
from tests.acceptance.parity import LOAD_SECONDS, plain, running
from tests.acceptance.server import Server
from tests.acceptance.speech import make_speech_model, tone
from tests.requirement import without

MODEL = "speech"
WAV = "data:audio/wav;base64," + base64.b64encode(tone()).decode()

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.timeout(LOAD_SECONDS + 120),
    pytest.mark.filterwarnings("ignore"),  # torch and transformers warn while the model is made, in our process
]


@pytest.fixture(scope="module")
def speech_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    missing = [name for name in ("vllm", "soundfile") if importlib.util.find_spec(name) is None]
    if missing:
        without(f"not installed (`make setup`): {', '.join(missing)}")
    folder = make_speech_model(tmp_path_factory.mktemp("speech") / "model")
    flags = ("--model", str(folder), "--served-model-name", MODEL, "--load-format", "dummy", "--dtype", "float32")
    limits = ("--kv-cache-memory-bytes", str(1 << 28), "--max-num-seqs", "4", "--enforce-eager")
    with running(tmp_path_factory.mktemp("speech-server"), *flags, *limits) as server:
        yield server


def lines(endpoint: str, **cases: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"custom_id": name, "method": "POST", "url": endpoint, "body": {"model": MODEL} | body}
        for name, body in cases.items()
    ]


@pytest.mark.parametrize("endpoint", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_line_is_answered_as_the_form(speech_server: Server, endpoint: str) -> None:
    fields: dict[str, dict[str, Any]] = {
        "plain": {"language": "en", "temperature": 0},
        "verbose": {"language": "en", "temperature": 0, "response_format": "verbose_json"},
        "refused": {"language": "xx"},
    }
    cases = {name: body | {"file_url": WAV} for name, body in fields.items()}
    cases["no sound"] = {"file_url": "data:audio/wav;base64,AAAA"}
    with speech_server.sdk() as client:
        batch = run(client, lines(endpoint, **cases), endpoint=cast(Endpoint, endpoint), seconds=120)
        found = by_id([*rows(client, batch.output_file_id), *rows(client, batch.error_file_id)])
    with speech_server.http() as http:
        for name, body in fields.items():
            form = {"model": MODEL} | {key: str(value) for key, value in body.items()}
            reply = http.post(endpoint, data=form, files={"file": ("audio.wav", tone(), "application/octet-stream")})
            line = found[name]["response"]
            assert (line["status_code"], plain(line["body"])) == (reply.status_code, plain(reply.json())), name
    statuses = {name: row["response"]["status_code"] for name, row in found.items()}
    assert (statuses["plain"], statuses["verbose"]) == (200, 200)
    assert 400 <= statuses["refused"] < 500
    assert 400 <= statuses["no sound"] < 500
    assert isinstance(found["plain"]["response"]["body"]["text"], str)
    assert counts(batch) == (4, 2, 2)
