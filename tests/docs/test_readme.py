"""What README.md shows is run as printed, against a server with the echo engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest
import typer

from app.cli import cli
from app.settings import Settings
from tests.acceptance.batch import wait
from tests.acceptance.server import Server

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXPORT = "export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none"
#: Flags of vLLM that README shows, to be told apart from a flag of ours that is gone.
VLLM_FLAGS = {"--max-model-len", "--gpu-memory-utilization"}


def marked(page: str = README) -> list[tuple[str, str]]:
    """(language, code) of every block that the page says is run."""
    return re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", page, re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    folder = tmp_path_factory.mktemp("readme")
    running = Server(folder / "data", folder / "server.log", key=None).start()
    yield running
    try:
        running.stop()
    finally:
        running.kill()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the examples, whose lines name the model that the echo engine serves."""
    (tmp_path / "examples").mkdir()
    lines = (ROOT / "examples" / "chat.jsonl").read_text(encoding="utf-8")
    text = lines.replace('"SmolLM2-135M-Instruct"', '"echo"')
    (tmp_path / "examples" / "chat.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def run(language: str, code: str, *, cwd: Path, server: Server) -> subprocess.CompletedProcess[str]:
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": "none",
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
    }
    command = {"python": [sys.executable, "-c", code], "bash": ["bash", "-euo", "pipefail", "-c", code]}[language]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=50, check=False)


def test_readme_marks_an_example_for_each_client() -> None:
    assert [language for language, _ in marked()] == ["python", "bash", "bash"]


def test_readme_points_the_clients_at_the_default_address() -> None:
    server = Settings().server
    assert f"\n{EXPORT}\n" in README
    assert f"http://{server.host}:{server.port}/v1" in EXPORT


def test_readme_python_example_prints_answers_and_the_error(server: Server, checkout: Path) -> None:
    ended = run("python", marked()[0][1], cwd=checkout, server=server)
    assert ended.returncode == 0, ended.stderr
    assert "completed 19 of 20" in ended.stdout
    rows = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == 20
    assert [row["custom_id"] for row in rows if row["response"]["status_code"] == 400] == ["fails-at-the-model"]


def test_readme_curl_example_prints_batch_list_and_file(server: Server, checkout: Path) -> None:
    ended = run("bash", marked()[1][1], cwd=checkout, server=server)
    assert ended.returncode == 0, ended.stderr
    decoder = json.JSONDecoder()
    found, rest = [], ended.stdout.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:].strip()
    batch, page, line = found
    assert batch["object"] == "batch"
    assert page["object"] == "list"
    assert page["data"][0]["id"] == batch["id"]
    assert line["custom_id"] == "capital-france"


def test_readme_command_example_writes_answers_and_errors(server: Server, checkout: Path) -> None:
    ended = run("bash", marked()[2][1], cwd=checkout, server=server)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("batch_")
    assert "19 answered, 1 failed, 20 in all" in ended.stderr
    assert (checkout / "answers.jsonl").read_text().count("\n") == 19
    assert "fails-at-the-model" in (checkout / "errors.jsonl").read_text()


def test_readme_line_example_is_a_line_of_the_examples() -> None:
    block = re.search(r"```json\n(.*?)\n```", README, re.DOTALL)
    assert block
    shown = json.loads(block[1])
    assert {"custom_id", "method", "url", "body"} == set(shown)
    assert shown["body"]["messages"][0]["content"] == "What is the capital of France?"


def test_readme_shows_only_flags_that_exist() -> None:
    command = typer.main.get_command(cli)
    for line in re.findall(r"^ {4}(?:\w+=\S+ )?batchyard (\w+.*?)(?: +#.*)?$", README, re.MULTILINE):
        name, *words = line.split()
        named = command.commands[name]  # type: ignore[attr-defined]
        if hasattr(named, "commands"):  # a group, such as `keys`
            named = named.commands[words.pop(0)]
        known = {flag for parameter in named.params for flag in parameter.opts} | VLLM_FLAGS
        assert {word for word in words if word.startswith("--")} <= known, line


def test_readme_names_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`| {4})make (\S+?)[`\s]", README))
    assert {"demo", "test", "serve"} <= named
    for target in named:
        assert f"\n{target}:" in makefile, target


def test_readme_names_an_extra_that_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in re.findall(r"pip install '\.\[(\w+)\]'", README):
        assert extra in project["optional-dependencies"]


def test_echo_example_is_served_by_the_echo_engine(server: Server) -> None:
    path = ROOT / "examples" / "echo.jsonl"
    with server.sdk() as client:
        file = client.files.create(file=path, purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        batch = wait(client, batch.id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (4, 1)
