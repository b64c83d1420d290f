from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from tests.acceptance.batch import chat, jsonl
from tests.acceptance.server import KEY, Server
from tests.clients.program import FOLDER, Program

#: Told to the report: a program's name and version, what it ran, and the calls that came of it.
Tell = Callable[[str, str, list[str]], None]
#: Ids in paths.
_ID = re.compile(r"/(?:file-|batch_|upload_|part_|whe_)\w+")


@dataclass
class Job:
    """A program, the server it is pointed at, and a folder of its own; `calls` is what it has asked of the server."""

    program: Program
    server: Server
    sdk: openai.OpenAI
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.environment |= pointed_at(self.server)

    def run(self, *command: str, **environment: str) -> str:
        """Run an executable of the program's environment; its standard output."""
        start = self.server.log_path.stat().st_size
        printed = self.program.run(*command, cwd=self.folder, environment=self.environment | environment)
        self.calls += [call for call in calls(self.server, since=start) if call not in self.calls]
        return printed

    def script(self, name: str) -> dict[str, object]:
        """Run jobs/NAME with the program's Python; the JSON object on its last line."""
        printed = self.run("python", str(FOLDER / "jobs" / name))
        found: dict[str, object] = json.loads(printed.splitlines()[-1])
        return found

    def write(self, name: str, *contents: str) -> Path:
        """An input file in the folder, a good line for each of `contents`."""
        path = self.folder / name
        path.write_bytes(jsonl(chat(f"line-{number}", text) for number, text in enumerate(contents)))
        return path


def calls(server: Server, *, since: int) -> list[str]:
    """Method and path of the requests that the log tells of, each kind once, ids left out."""
    found = [event for event in server.events(since=since) if event["event"] == "http_request"]
    kinds = [f"{event['method']} {_ID.sub('/{id}', event['path'])}" for event in found]
    return list(dict.fromkeys(kind for kind in kinds if "/v1/" in kind))


def pointed_at(server: Server) -> dict[str, str]:
    """The environment that points a client of OpenAI's at `server`."""
    return {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": KEY}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """One server for all programs; a clean log at the end is part of what they prove."""
    folder = tmp_path_factory.mktemp("clients")
    settings = {"BATCHYARD_WEBHOOKS_ALLOW_HTTP": "true", "BATCHYARD_WEBHOOKS_ALLOW_PRIVATE_ADDRESSES": "true"}
    running = Server(folder / "data", folder / "server.log", settings=settings).start()
    yield running
    try:
        running.stop()
    finally:
        running.kill()


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    def tell(client: str, ran: str, calls: list[str]) -> None:
        record_property("client", client)
        record_property("ran", ran)
        record_property("calls", ", ".join(calls))

    return tell


@pytest.fixture
def job(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Generator[Job]:
    """The program that the mark `client` names, installed."""
    mark = request.node.get_closest_marker("client")
    assert mark is not None
    with server.sdk() as sdk:
        yield Job(Program.named(mark.args[0]).install(), server, sdk, tmp_path)
