"""What a row says, and how it is written down."""

from __future__ import annotations

import json
from pathlib import Path

from bench.report import Row, document, earlier, judged, markdown

WHERE = {"cpu": "c", "cores": 2, "memory_gib": 1.0, "system": "s", "load_before": 0.0, "device": "a GPU"}


def test_median_and_spread_show_the_noise() -> None:
    row = judged(Row("drain", "lines/s", (90.0, 100.0, 120.0)), ">= 95", lambda rate: rate >= 95)
    assert (row.median, row.met) == (100, True)
    assert row.spread == "-10 % … +20 %"


def test_spread_of_shares_is_in_shares() -> None:
    assert Row("cost", "%", (-0.5, 0.02, 2.25)).spread == "-0.5 … +2.2"


def test_what_was_not_measured_meets_and_misses_nothing() -> None:
    row = judged(Row("drain", "lines/s", (), note="no disk", measurement="drain"), ">= 95", lambda rate: rate >= 95)
    assert row.met is None
    assert "| drain | not measured | lines/s |" in markdown([row], where=WHERE)
    assert document([row], where=WHERE)["rows"][0]["median"] is None


def test_page_tells_the_command_of_each_row() -> None:
    rows = [Row("a", "s", (1.0,), measurement="drain"), Row("b", "s", (2.0,), measurement="poll")]
    page = markdown(rows, where=WHERE)
    assert page.index("`python -m bench drain`") < page.index("| a |") < page.index("`python -m bench poll`")
    commands = [row["command"] for row in document(rows, where=WHERE)["rows"]]
    assert commands == ["python -m bench drain", "python -m bench poll"]


def test_rows_of_an_earlier_run_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        judged(Row("a", "s", (1.0, 2.0), note="n", measurement="drain", load=1.5), "<= 2", lambda value: value <= 2),
        Row("b", "s", (), measurement="poll"),
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(document(rows, where=WHERE)))
    assert earlier(path) == rows
