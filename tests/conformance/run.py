"""Runs the tests of the contract and of the clients, and listens to what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tests.clients.program import Program, pinned
from tests.conformance.verdict import ACCEPTANCE, Outcome

CLIENTS = ACCEPTANCE.parent / "clients"
_CONTRACT = sorted(str(path) for path in ACCEPTANCE.glob("test_contract_section_9_*.py"))


@dataclass
class Client:
    """A program and what it did, as its test told."""

    name: str
    ran: str
    calls: str


@dataclass
class Recorder:
    """A pytest plugin: the outcome of every test, and what the clients' tests have told."""

    outcomes: list[Outcome] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        self.outcomes.append(Outcome(report.nodeid, report.outcome))
        told = dict(report.user_properties)
        if report.passed and "client" in told:
            self.clients.append(Client(str(told["client"]), str(told["ran"]), str(told["calls"])))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(report.nodeid)

    @property
    def failed(self) -> list[str]:
        """Tests that failed, and files that could not be read."""
        return [*self.broken, *(outcome.test for outcome in self.outcomes if outcome.result != "passed")]


def install() -> None:
    """Every program that has a lock, into the user's cache; the first time takes minutes."""
    for name in pinned():
        program = Program.named(name)
        if not program.installed:
            print(f"installing {name} {program.version} into {program.environment}", flush=True)
            program.install()


def record(arguments: Sequence[str] = ()) -> Recorder:
    """Run them all, on two cores; `arguments` are pytest's."""
    recorder = Recorder()
    usual = ["-n", "2", "--dist", "loadfile", "-q", "-p", "no:cacheprovider"]
    pytest.main([*usual, *arguments, *_CONTRACT, str(CLIENTS)], plugins=[recorder])
    return recorder
