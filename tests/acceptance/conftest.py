from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.acceptance.server import Server

StartServer = Callable[..., Server]


class _Running:
    """The servers of this process, and how much of each log the current test has not written."""

    def __init__(self) -> None:
        self.servers: list[Server] = []
        self.marks: dict[Path, int] = {}

    def mark(self) -> None:
        self.marks = {server.log_path: server.log_path.stat().st_size for server in self.servers}

    def sections(self) -> list[tuple[str, str]]:
        return [
            (f"log of {server.data_dir.name}", server.log(since=self.marks.get(server.log_path, 0), tail=20_000))
            for server in self.servers
        ]


_running = _Running()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += _running.sections()
    if report.when == "teardown":
        _running.mark()
    return report


def _end(server: Server) -> None:
    _running.servers.remove(server)
    if server.process.poll() is None:
        try:
            server.stop()
        finally:
            server.kill()
    elif server.process.returncode == 0:
        server.check_log()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """The server that most tests share: one a test process, with one key and the default limits."""
    folder = tmp_path_factory.mktemp("shared")
    shared = Server(folder / "shared", folder / "server.log").start()
    _running.servers.append(shared)
    yield shared
    _end(shared)


@pytest.fixture
def start_server(tmp_path: Path) -> Generator[StartServer]:
    """Starts servers of the test's own. `settings` are environment variables; `data_dir` may be an earlier one's."""
    started: list[Server] = []

    def start(*, data_dir: Path | None = None, wait: str = "/ready", **options: Any) -> Server:
        number = len(started)
        own = Server(data_dir or tmp_path / f"data{number}", tmp_path / f"server{number}.log", **options)
        own.log_path.touch()
        own.start(wait=wait)
        started.append(own)
        _running.servers.append(own)
        return own

    yield start
    failures = []
    for own in reversed(started):
        try:
            _end(own)
        except AssertionError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


@pytest.fixture
def client(server: Server) -> Generator[openai.OpenAI]:
    with server.sdk() as sdk:
        yield sdk


@pytest.fixture
def http(server: Server) -> Generator[httpx2.Client]:
    with server.http() as plain:
        yield plain
