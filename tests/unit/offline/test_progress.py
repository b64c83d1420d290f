from __future__ import annotations

import io

import pytest
from rich.console import Console

from app.domain.chunk import NO_TALLY, Tally
from app.domain.usage import Usage
from app.offline import progress
from app.offline.progress import Meter

TALLY = Tally(completed=3, failed=2, usage=Usage(10, 0, 20, 0, 30))


def meter(*, terminal: bool = False, before: Tally = NO_TALLY) -> tuple[Meter, io.StringIO]:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=160)
    return Meter(lines=10, before=before, malformed=0, console=console), screen


def test_lines_are_said_now_and_then_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found, screen = meter(before=Tally(completed=1))
    with found:
        found.loading()
        found.loaded()
        found.ended(TALLY, 1)
        assert "lines/s" not in screen.getvalue()
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
        found.ended(TALLY, 0)
    assert screen.getvalue().startswith("10 lines, 1 of them done before\nloading the model\n")
    said = screen.getvalue().splitlines()[-1]
    assert said.startswith("11 of 10 lines, ")
    assert "lines/s" in said
    assert "tokens/s" in said
    assert "left" in said


def test_bar_shows_count_and_speeds_on_a_terminal() -> None:
    found, screen = meter(terminal=True)
    with found:
        found.loaded()
        found.ended(TALLY, 0)
    assert "running" in screen.getvalue()
    assert "5/10" in screen.getvalue()
    assert "tokens/s" in screen.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_lines_that_end_before_the_model_is_needed_have_no_speed(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    found, screen = meter(terminal=terminal)
    with found:
        found.ended(TALLY, 5)
    assert "/s" not in screen.getvalue()
    assert "loading" not in screen.getvalue()


def test_summary_tells_malformed_from_failed_and_earlier_from_now() -> None:
    found, _ = meter(before=Tally(completed=5, usage=Usage(1, 0, 1, 0, 2)))
    with found:
        found.loaded()
        found.ended(TALLY, 1)
    summary = found.summary()
    assert summary.startswith("10 lines: 8 answered, 1 failed, 1 malformed; 11 tokens in, 21 out; ")
    assert summary.endswith("5 lines before")


def test_summary_without_a_run_has_no_speed() -> None:
    found, _ = meter()
    assert found.summary() == "0 lines: 0 answered, 0 failed, 0 malformed; 0 tokens in, 0 out"
