"""The same bodies as lines of a batch and as requests of a client: what comes back must be the same."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from tests.acceptance.batch import Endpoint, by_id, rows, run
from tests.acceptance.server import Server
from tests.requirement import without

LOAD_SECONDS = 240
#: Names and times, which differ between any two requests.
_OWN = frozenset({"id", "created", "created_at", "completed_at", "request_id", "item_id", "kv_transfer_params"})

#: Lines one after the other: a text at temperature 0 may depend on what runs beside it.
ALONE = {"BATCHYARD_ENGINE_WINDOW": "1"}


@contextmanager
def running(folder: Path, *flags: str, settings: Mapping[str, str] | None = None) -> Generator[Server]:
    """A server with vLLM, `flags` and `settings`; without vLLM the test is skipped, and fails where CI is set."""
    if importlib.util.find_spec("vllm") is None:
        without("vLLM is not installed (`make setup`)")
    server = Server(
        folder / "data",
        folder / "server.log",
        settings=ALONE | dict(settings or {}),
        flags=("--engine", "vllm", *flags),
        ready_seconds=LOAD_SECONDS,
        plain_lines=True,
    )
    try:
        server.start()
        yield server
        server.stop(within_seconds=35)
    except BaseException:
        print(server.log())
        raise
    finally:
        server.kill()


def both(
    server: Server, endpoint: str, cases: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[tuple[int, Any], tuple[int, Any]]]:
    """For each case what its line and what its client got: (status, body without names and times)."""
    lines = [{"custom_id": name, "method": "POST", "url": endpoint, "body": body} for name, body in cases.items()]
    with server.sdk() as client:
        batch = run(client, lines, endpoint=cast(Endpoint, endpoint), seconds=120)
        assert batch.status == "completed", batch.errors
        found = by_id([*rows(client, batch.output_file_id), *rows(client, batch.error_file_id)])
        _check_usage(batch.usage, [row["response"] for row in found.values()])
    answers = {}
    with server.http() as http:
        for name, body in cases.items():
            reply = http.post(endpoint, json=body)
            line = found[name]["response"]
            answers[name] = (line["status_code"], plain(line["body"])), (reply.status_code, plain(reply.json()))
    return answers


def plain(value: Any) -> Any:
    """`value` without what differs between any two requests."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in _OWN}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


def _check_usage(usage: Any, responses: Sequence[Mapping[str, Any]]) -> None:
    spent = [one["body"].get("usage") or {} for one in responses if one["status_code"] == 200]
    asked = sum(one.get("prompt_tokens", 0) + one.get("input_tokens", 0) for one in spent)
    answered = sum((one.get("completion_tokens") or 0) + (one.get("output_tokens") or 0) for one in spent)
    assert (usage.input_tokens, usage.output_tokens) == (asked, answered)
