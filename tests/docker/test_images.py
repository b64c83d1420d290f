"""Dockerfiles and compose files are linted; what they start is started here as processes, as the images' user would."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from app.settings import Settings, knobs

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
SCRIPTS = Path(sys.executable).parent
DOCKERFILES = sorted(DOCKER.glob("Dockerfile.*"))
COMPOSE = sorted(DOCKER.glob("compose*.yaml"))
KEY = "k" * 32


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(word, rest) of each instruction, continued lines joined, comments dropped."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def last(dockerfile: Path, word: str) -> str:
    return [rest for name, rest in instructions(dockerfile) if name == word][-1]


def environment_of(dockerfile: Path) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(last(dockerfile, "ENV")))


def services(compose: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(compose.read_text())["services"]
    return found


def test_there_is_something_to_check() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.gpu"]
    assert [path.name for path in COMPOSE] == ["compose.postgres.yaml", "compose.yaml"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfile_passes_hadolint(dockerfile: Path) -> None:
    ended = subprocess.run(
        [str(SCRIPTS / "hadolint"), str(dockerfile)], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("compose", COMPOSE, ids=lambda path: path.name)
def test_compose_file_follows_the_schema(compose: Path) -> None:
    command = [str(SCRIPTS / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(compose)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_image_runs_as_a_user_and_gets_its_signals(dockerfile: Path) -> None:
    assert last(dockerfile, "USER") == "10001"
    assert f"--uid {last(dockerfile, 'USER')} " in dockerfile.read_text()
    assert json.loads(last(dockerfile, "ENTRYPOINT")) == ["tini", "--", "batchyard"]
    assert json.loads(last(dockerfile, "CMD")) == ["serve"]
    assert "/usr/local/lib/batchyard/healthcheck.py" in last(dockerfile, "HEALTHCHECK")
    assert " ca-certificates " in last(dockerfile, "RUN") or " ca-certificates " in dockerfile.read_text()


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_image_starts_from_a_pinned_tag(dockerfile: Path) -> None:
    bases = [rest.split()[0] for word, rest in instructions(dockerfile) if word == "FROM"]
    for base in bases:
        name, _, tag = base.partition(":")
        assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?(-slim)?", tag), base
        if name == "vllm/vllm-openai":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            low, high = (int(minor) for minor in re.findall(r"0\.(\d+)", extras["gpu"][0]))
            assert low <= int(tag.split(".")[1]) < high, "the image's vLLM is outside of our range"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_image_copies_only_what_exists_and_is_not_ignored(dockerfile: Path) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for word, rest in instructions(dockerfile):
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source in allowed, f"{source} is left out by .dockerignore"


def test_environment_names_only_settings_that_exist() -> None:
    known = {knob.variable for knob in knobs()} | {"BATCHYARD_MODELS_DIR"}
    named = set().union(*(environment_of(dockerfile) for dockerfile in DOCKERFILES))
    for compose in COMPOSE:
        for service in services(compose).values():
            named |= set(service.get("environment", {}))
    assert {name for name in named if name.startswith("BATCHYARD_")} <= known


@pytest.mark.parametrize("compose", COMPOSE, ids=lambda path: path.name)
def test_compose_waits_longer_than_the_service_takes_to_stop(compose: Path) -> None:
    for name, service in services(compose).items():
        if name != "postgres":
            assert int(service["stop_grace_period"].removesuffix("s")) > Settings().server.stop_seconds


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the images install, unpacked into a folder of its own."""
    folder = tmp_path_factory.mktemp("image")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "-w", str(folder), str(ROOT)], check=True, timeout=55, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def running(installed: Path, tmp_path: Path) -> Generator[tuple[subprocess.Popen[str], str, dict[str, str]]]:
    """CMD of the CPU image under its environment, from the wheel and outside of the checkout, with the echo engine."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), "HOME": str(tmp_path)}
    environment |= environment_of(DOCKER / "Dockerfile.cpu")
    environment |= {
        "PATH": os.environ["PATH"],
        "BATCHYARD_DATA_DIR": str(tmp_path / "data"),
        "BATCHYARD_SERVER_HOST": "127.0.0.1",  # the image listens on every address; a test never does
        "BATCHYARD_SERVER_PORT": "0",
        "BATCHYARD_SERVER_API_KEYS": KEY,
        "BATCHYARD_ENGINE_KIND": "echo",
    }
    command = [sys.executable, "-m", "app", *json.loads(last(DOCKER / "Dockerfile.cpu", "CMD"))]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = ""
    for line in process.stderr:
        record = json.loads(line)
        if record["event"] == "listening":
            url = record["base_url"].removesuffix("/v1")
            break
    assert url, "the server did not listen"
    yield process, url, environment
    process.kill()
    process.communicate()


def test_what_the_image_starts_serves_and_stops_on_sigterm(
    running: tuple[subprocess.Popen[str], str, dict[str, str]],
) -> None:
    process, url, environment = running
    assert httpx2.get(f"{url}/health").status_code == 200
    deadline = time.monotonic() + 20
    while httpx2.get(f"{url}/ready").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert httpx2.get(f"{url}/v1/files").status_code == 401
    check = [sys.executable, str(DOCKER / "healthcheck.py")]
    own = {**environment, "BATCHYARD_SERVER_PORT": url.rpartition(":")[2]}
    assert subprocess.run(check, env=own, timeout=20, check=False).returncode == 0
    process.terminate()
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert json.loads(rest.splitlines()[-1])["event"] == "stopped"
    assert subprocess.run(check, env=own, timeout=20, check=False, capture_output=True).returncode == 1


def test_image_without_a_key_refuses_to_start(installed: Path, tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": str(installed),
        **environment_of(DOCKER / "Dockerfile.cpu"),
        "PATH": os.environ["PATH"],
    }
    command = [sys.executable, "-m", "app", "serve", "--engine", "echo"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 2
    assert "no API key is set" in ended.stderr
