from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.errors import Internal
from app.offline.input import Input
from app.offline.line import fault_finder
from app.settings import LimitSettings
from tests.unit.offline.scenes import line

LIMITS = LimitSettings(line_max_bytes=5000)


Opened = Callable[[str, bytes], Input]


@pytest.fixture
def opened(tmp_path: Path) -> Generator[Opened]:
    """Makes a file of this name and content, and an Input of it."""
    with ExitStack() as stack:

        def open_(name: str, content: bytes) -> Input:
            (tmp_path / name).write_bytes(content)
            data = Input((tmp_path / name).open("rb", buffering=0), name=name, line_max_bytes=LIMITS.line_max_bytes)
            stack.callback(data.close)
            return data

        yield open_


def test_survey_counts_lines_that_are_not_blank_and_names_the_content(opened: Opened) -> None:
    first = opened("a", b"\xef\xbb\xbfone\r\n\n  \ntwo\n\nthree").survey()
    second = opened("b", b"\xef\xbb\xbfone\r\n\n  \ntwo\n\nthreE").survey()
    assert (first.lines, first.bytes, first.faulty) == (3, 22, 0)
    assert first.digest != second.digest
    assert len(first.digest) == 32


def test_survey_counts_all_faults_and_keeps_the_first_ones(opened: Opened) -> None:
    found = opened("a", b"{\n" * 30 + line("a")).survey(fault_finder(LIMITS))
    assert (found.lines, found.faulty, len(found.faults)) == (31, 30, 20)


def test_runs_hold_whole_lines_in_order_up_to_both_limits(opened: Opened) -> None:
    texts = [b"%d" % at * size for at, size in enumerate((5, 5, 5, 500, 5, 5, 6000, 5), 1)]
    runs = list(opened("a", b"\n".join(texts)).runs(max_lines=3, max_bytes=100))
    assert [(run.first, len(run.lines)) for run in runs] == [(0, 3), (3, 1), (4, 2), (6, 1), (7, 1)]
    assert [found.text for run in runs for found in run.lines] == [*texts[:6], None, texts[7]]


def test_file_that_is_replaced_is_still_read_and_one_that_grows_is_refused(opened: Opened, tmp_path: Path) -> None:
    data = opened("a", b"one\ntwo\n")
    (tmp_path / "b").write_bytes(b"other")
    (tmp_path / "b").rename(tmp_path / "a")
    assert [len(run.lines) for run in data.runs(max_lines=9, max_bytes=99)] == [2]
    grown = opened("c", b"one\n")
    with (tmp_path / "c").open("ab") as file:
        file.write(b"more\n")
    with pytest.raises(Internal, match="was changed"):
        list(grown.runs(max_lines=9, max_bytes=99))
