"""The mapping from tests to assertions is complete, and the verdicts are strict; nothing of the suite runs here."""

from __future__ import annotations

import pytest

from tests.clients.program import pinned
from tests.conformance.assertions import ASSERTIONS, DEVIATIONS, SECTIONS
from tests.conformance.report import missing_clients, render
from tests.conformance.run import Client, Recorder
from tests.conformance.verdict import Outcome, Verdict, census, judge, numbers


def all_passed() -> list[Outcome]:
    return [Outcome(f"tests/x.py::{test}[a]", "passed") for tests in census().values() for test in tests]


def all_clients() -> list[Client]:
    return [Client(f"{name} 1.0", "batches.create", "POST /v1/batches") for name in ("openai", *pinned())]


def test_every_number_has_one_title_and_a_test() -> None:
    expected = list(range(1, 97))
    assert list(ASSERTIONS) == expected
    assert sum(len(section) for section in SECTIONS.values()) == len(expected)
    assert sorted(census()) == expected
    assert all(ASSERTIONS.values())


def test_every_deviation_has_a_reason_and_a_test_of_its_number() -> None:
    for number, deviation in DEVIATIONS.items():
        assert number in numbers(deviation.test)
        assert deviation.test in census()[number]
        assert len(deviation.reason) > 40


@pytest.mark.parametrize(
    ("name", "expected"),
    [("test_item_07_x", [7]), ("test_item_82_and_83_x", [82, 83]), ("test_item_7_x", []), ("test_a_key", [])],
)
def test_numbers_stand_in_the_name(name: str, expected: list[int]) -> None:
    assert numbers(name) == expected


def test_all_passed_is_good() -> None:
    verdicts = judge(all_passed(), wanted=census())
    assert {number for number, verdict in verdicts.items() if verdict is Verdict.DEVIATES} == set(DEVIATIONS)
    assert set(verdicts.values()) == {Verdict.PASS, Verdict.DEVIATES}
    text, good = render(Recorder(all_passed(), all_clients()))
    assert good
    for line in (*ASSERTIONS.values(), "all good", "96 assertions: 90 pass, 6 deviates."):
        assert line in text


@pytest.mark.parametrize(
    ("number", "result", "verdict"),
    [
        (5, "failed", Verdict.FAIL),
        (5, "skipped", Verdict.MISSING),
        (5, None, Verdict.MISSING),
        (34, "failed", Verdict.FAIL),
        (34, None, Verdict.MISSING),
    ],
)
def test_one_test_that_did_not_pass_is_not_good(number: int, result: str | None, verdict: Verdict) -> None:
    test = census()[number][0]
    outcomes = [outcome for outcome in all_passed() if outcome.function != test]
    if result is not None:
        # One parameter of several is enough.
        outcomes += [Outcome(f"x.py::{test}[a]", "passed"), Outcome(f"x.py::{test}[b]", result)]
    assert judge(outcomes, wanted=census())[number] is verdict
    text, good = render(Recorder(outcomes, all_clients()))
    assert not good
    assert "NOT GOOD" in text


def test_a_number_without_a_test_is_missing() -> None:
    wanted = {number: tests for number, tests in census().items() if number != 12}
    assert judge(all_passed(), wanted=wanted)[12] is Verdict.MISSING


def test_a_deviation_without_its_test_is_missing() -> None:
    wanted = census() | {75: ["test_item_75_all_succeed"]}
    assert judge(all_passed(), wanted=wanted)[75] is Verdict.MISSING


def test_a_silent_client_is_not_good() -> None:
    clients = [client for client in all_clients() if not client.name.startswith("litellm")]
    assert missing_clients(clients) == ["litellm"]
    text, good = render(Recorder(all_passed(), clients))
    assert not good
    assert "litellm: MISSING" in text


def test_a_file_that_cannot_be_collected_is_not_good() -> None:
    text, good = render(Recorder(all_passed(), all_clients(), ["tests/acceptance/test_broken.py"]))
    assert not good
    assert "tests/acceptance/test_broken.py" in text
