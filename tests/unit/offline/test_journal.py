"""The journal: what survives a kill, a torn tail, and a damaged byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.usage import Usage
from app.errors import Internal, SettingsInvalid, StorageFull, Unavailable
from app.offline.journal import COMPLETED, FAILED, MALFORMED, Finished, Journal

KEY = bytes(range(32))


def opened(folder: Path, *, lines: int = 10, key: bytes = KEY, restart: bool = False) -> Journal:
    return Journal.open(folder / "out", key=key, lines=lines, restart=restart)


def row(position: int, kind: int = COMPLETED, *, size: int = 10) -> Finished:
    text = f"{position}:".encode().ljust(size, b"x") + b"\n"
    return Finished(position, kind, text, Usage(1, 0, 2, 0, 3) if kind == COMPLETED else Usage())


def filled(folder: Path, *positions: int, lines: int = 10) -> None:
    journal = opened(folder, lines=lines)
    journal.append([row(position) for position in positions])
    journal.close()


def test_merge_gives_rows_in_input_order_with_their_kinds(tmp_path: Path) -> None:
    journal = opened(tmp_path, lines=4)
    journal.append([row(3), row(0, FAILED)])
    journal.append([row(1, MALFORMED), row(2)])
    assert [(kind, text[:2]) for kind, text in journal.merged()] == [
        (FAILED, b"0:"),
        (MALFORMED, b"1:"),
        (COMPLETED, b"2:"),
        (COMPLETED, b"3:"),
    ]
    assert journal.finished(1, 2) == {1, 2}
    journal.close()


def test_reopening_counts_what_has_ended(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append([row(1), row(5, FAILED), row(9, MALFORMED), row(2)])
    journal.close()
    again = opened(tmp_path)
    tally = again.ended.tally
    assert (tally.completed, tally.failed, again.ended.malformed) == (2, 2, 1)
    assert (tally.usage.input_tokens, tally.usage.output_tokens, tally.usage.total_tokens) == (2, 4, 6)
    assert again.finished(0, 10) == {1, 2, 5, 9}
    again.close()


@pytest.mark.parametrize("cut", range(1, 24))
def test_torn_tail_of_the_rows_runs_again(tmp_path: Path, cut: int) -> None:
    filled(tmp_path, 0, 1, 2)
    progress = tmp_path / "out.progress"
    os.truncate(progress, progress.stat().st_size - cut)
    journal = opened(tmp_path)
    kept = journal.finished(0, 10)
    assert kept == ({0, 1} if cut <= 11 else {0} if cut <= 22 else set())
    assert progress.stat().st_size == 11 * len(kept)
    journal.append([row(at) for at in range(10) if at not in kept])
    assert [text for _, text in journal.merged()] == [row(at).row for at in range(10)]
    journal.close()


def test_rows_without_a_slot_are_cut_off(tmp_path: Path) -> None:
    filled(tmp_path, 0)
    with (tmp_path / "out.progress").open("ab") as file:
        file.write(b'{"half a ro')
    journal = opened(tmp_path)
    assert (tmp_path / "out.progress").read_bytes() == row(0).row
    journal.close()


def test_torn_tail_of_the_journal_runs_again(tmp_path: Path) -> None:
    filled(tmp_path, 8, 9)
    os.truncate(tmp_path / "out.journal", (tmp_path / "out.journal").stat().st_size - 5)
    journal = opened(tmp_path)
    assert journal.finished(0, 10) == {8}
    journal.close()


@given(at=st.integers(0, 20 * 40 - 1), bit=st.integers(0, 7), which=st.sampled_from(["journal", "progress"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bit_never_gives_a_wrong_row(tmp_path: Path, at: int, bit: int, which: str) -> None:
    for kind in ("journal", "progress"):
        (tmp_path / f"out.{kind}").unlink(missing_ok=True)
    filled(tmp_path, *range(0, 20, 2), lines=20)
    file = tmp_path / f"out.{which}"
    data = bytearray(file.read_bytes())
    place = 64 + at if which == "journal" else at % len(data)
    data[place] ^= 1 << bit
    file.write_bytes(data)
    journal = opened(tmp_path, lines=20)
    kept = journal.finished(0, 20)
    journal.append([row(position) for position in range(20) if position not in kept])
    assert [text for _, text in journal.merged()] == [row(position).row for position in range(20)]
    journal.close()


def test_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 0)
    for key, lines in ((bytes(32), 10), (KEY, 11)):
        with pytest.raises(SettingsInvalid, match=r"another input or other arguments.*--restart"):
            opened(tmp_path, key=key, lines=lines)
    journal = opened(tmp_path, key=bytes(32), lines=11, restart=True)
    assert journal.finished(0, 11) == set()
    journal.close()


def test_head_cut_short_by_a_kill_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "out.journal").write_bytes(b"BYRUN1")
    (tmp_path / "out.progress").write_bytes(b"left over")
    journal = opened(tmp_path)
    assert (journal.finished(0, 10), (tmp_path / "out.progress").read_bytes()) == (set(), b"")
    journal.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(SettingsInvalid, match="in use"):
        opened(tmp_path)
    journal.close()
    opened(tmp_path).close()


def test_merge_refuses_a_gap(tmp_path: Path) -> None:
    journal = opened(tmp_path, lines=3)
    journal.append([row(0), row(2)])
    with pytest.raises(Internal, match="lacks lines"):
        list(journal.merged())
    journal.close()


def test_merge_refuses_rows_that_were_changed_meanwhile(tmp_path: Path) -> None:
    journal = opened(tmp_path, lines=1)
    journal.append([row(0)])
    (tmp_path / "out.progress").write_bytes(row(1).row)
    with pytest.raises(Internal, match="was changed"):
        list(journal.merged())
    journal.close()


def test_full_disk_is_told_as_such(tmp_path: Path) -> None:
    journal = opened(tmp_path, lines=1)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, journal._rows)
    os.close(full)
    with pytest.raises(StorageFull, match="no room left"):
        journal.append([row(0)])
    journal.close()


def test_journal_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "out.journal").mkdir()
    with pytest.raises(Unavailable, match="cannot be written"):
        opened(tmp_path)


def test_rows_far_apart_are_merged_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.offline.journal._RUN_BYTES", 40)
    journal = opened(tmp_path, lines=50)
    order = [*range(1, 50, 2), *range(0, 50, 2)]
    journal.append([row(at, size=10 + at) for at in order])
    assert [text for _, text in journal.merged()] == [row(at, size=10 + at).row for at in range(50)]
    journal.close()
