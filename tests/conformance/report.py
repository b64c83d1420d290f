"""The table that `make conformance` prints."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping

from tests.clients.program import pinned
from tests.conformance.assertions import DEVIATIONS, SECTIONS
from tests.conformance.run import Client, Recorder
from tests.conformance.verdict import GOOD, Verdict, census, judge

_WIDTH = 100
_INDENT = " " * 17


def render(recorder: Recorder) -> tuple[str, bool]:
    """The report as text, and whether all of it is good."""
    verdicts = judge(recorder.outcomes, wanted=census())
    absent = missing_clients(recorder.clients)
    lines = [*_assertions(verdicts), *_clients(recorder.clients, absent)]
    if recorder.failed:
        lines += ["", "Not passed:", *(f"  {test}" for test in sorted(set(recorder.failed)))]
    good = not absent and not recorder.failed and all(verdict in GOOD for verdict in verdicts.values())
    counted = Counter(verdicts.values())
    total = [f"{counted[verdict]} {verdict}" for verdict in Verdict if counted[verdict]]
    lines += ["", f"{len(verdicts)} assertions: {', '.join(total)}. {len(recorder.clients)} client jobs done."]
    lines += ["all good" if good else "NOT GOOD: see FAIL, MISSING and the tests above"]
    return "\n".join(lines) + "\n", good


def missing_clients(told: list[Client]) -> list[str]:
    """Programs that should have run and did not say so: the SDK, and whatever has a lock."""
    names = {client.name.split()[0] for client in told}
    return [name for name in ("openai", *pinned()) if name not in names]


def _assertions(verdicts: Mapping[int, Verdict]) -> list[str]:
    lines = []
    for section, titles in SECTIONS.items():
        lines += ["", section]
        for number, title in titles.items():
            lines.append(f"  {number:3}  {verdicts[number]:9} {title}")
            if verdicts[number] is Verdict.DEVIATES:
                lines += _wrapped(DEVIATIONS[number].reason)
    return lines


def _clients(told: list[Client], absent: list[str]) -> list[str]:
    lines = ["", "Clients"]
    for client in sorted(told, key=lambda client: client.name):
        lines.append(f"  {client.name}")
        lines += [*_wrapped(f"ran: {client.ran}"), *_wrapped(f"calls: {client.calls}")]
    lines += [f"  {name}: {Verdict.MISSING}" for name in absent]
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, width=_WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT + "  ")
