"""Calls made up from openapi.yaml, each going on with what another one answered, against a running server.

No answer is a 5xx, or of a status or shape that the document does not name; and the chains lead somewhere: batches run,
uploads become files. The links are the document's own.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis import Case
from schemathesis.generation.stateful import run_state_machine_as_test

from tests.acceptance.batch import CHAT, chat, jsonl
from tests.acceptance.server import Server
from tests.contract.conftest import ROOT
from tests.contract.test_generated import EXCLUDED

#: A test call would go to made-up hosts.
SCHEMA = schemathesis.openapi.from_path(str(ROOT / "openapi.yaml")).exclude(operation_id="testWebhookEndpoint")
SCHEMA.config.generation.update(with_security_parameters=False)
LINES = jsonl([chat("a"), chat("b", n=0)])
#: At least so many calls, in rounds of so many chains, of at most so many steps each.
CALLS, CHAINS, STEPS = 150, 10, 15
#: Tags whose operations make up the chains, and operations that must have answered 200, or the chains led nowhere.
GROUPS = {
    "batches": (
        ["Files", "Batches", "Extensions"],
        {"createFile", "downloadFile", "deleteFile", "createBatch", "retrieveBatch", "cancelBatch", "readBatchResults"},
    ),
    "uploads": (["Uploads", "Files"], {"createUpload", "addUploadPart", "completeUpload", "cancelUpload"}),
    "webhooks": (
        ["Webhooks"],
        {"createWebhookEndpoint", "updateWebhookEndpoint", "rotateWebhookSecret", "deleteWebhookEndpoint"},
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    folder = tmp_path_factory.mktemp("stateful")
    running = Server(folder / "data", folder / "server.log").start()
    yield running
    try:
        running.stop()
    finally:
        running.kill()


def sensible(operation: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body with what no schema can say: lines of requests, and a size that fits them."""
    match operation:
        case "createFile":
            return {"file": LINES, "purpose": "batch"}
        case "createUpload":
            fits = {"filename": "a.jsonl", "purpose": "batch", "mime_type": "application/jsonl", "bytes": len(LINES)}
            return body | fits
        case "addUploadPart":
            return {"data": LINES}
        case "completeUpload":
            return {"part_ids": body.get("part_ids", [])}
        case "createBatch":
            return {"input_file_id": body.get("input_file_id", ""), "endpoint": CHAT, "completion_window": "24h"}
    return body


class Journal:
    """What was asked and answered over all chains."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, int]] = Counter()
        self.problems: list[str] = []


def _name(case: Case[Any]) -> str:
    return str(case.operation.definition.raw["operationId"])


def machine(server: Server, tags: list[str], journal: Journal) -> Any:
    """The state machine of the document's links between the operations of `tags`, against `server`."""

    class Calls(SCHEMA.include(tag=tags).as_state_machine()):  # type: ignore[misc]  # made at run time
        def setup(self) -> None:
            self.turns = itertools.count()

        def before_call(self, case: Case[Any]) -> None:
            if next(self.turns) % 4 and isinstance(case.body, dict):  # each fourth stays as it was made up
                case.body = sensible(_name(case), case.body)

        def get_call_kwargs(self, case: Case[Any]) -> dict[str, Any]:
            return {"base_url": server.url, "headers": {"authorization": f"Bearer {server.key}"}}

        def after_call(self, response: Any, case: Case[Any]) -> None:
            journal.seen[_name(case), response.status_code] += 1

        def validate_response(self, response: Any, case: Case[Any], additional_checks: Any = (), **kwargs: Any) -> None:
            try:
                case.validate_response(response, excluded_checks=EXCLUDED)
            except Exception as exc:  # kept: a replay that goes another way would hide it
                journal.problems.append(f"{case.as_curl_command()}\n{exc!r}")
                raise

    # Chains begin where something is made or listed; what needs an id comes after.
    for name in Calls.root_rules:
        if "_id" in name:
            setattr(Calls, name, None)
    return Calls


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("tags", "wanted"), GROUPS.values(), ids=GROUPS)
def test_chains_of_calls_keep_to_the_document(server: Server, tags: list[str], wanted: set[str]) -> None:
    journal = Journal()
    once = settings(
        max_examples=CHAINS,
        stateful_step_count=STEPS,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    for number in itertools.count():
        # Answers are not the same each time (ids, how far a batch has come), which the generator takes for a fault of
        # the test: another seed then goes on.
        with contextlib.suppress(FlakyStrategyDefinition):
            run_state_machine_as_test(seed(number)(machine(server, tags, journal)), settings=once)
        assert not journal.problems, "\n".join(journal.problems)
        missing = wanted - {operation for operation, status in journal.seen if status == 200}
        if journal.seen.total() >= CALLS and not missing:
            break
        assert journal.seen.total() < 10 * CALLS, f"never answered 200: {missing}"
