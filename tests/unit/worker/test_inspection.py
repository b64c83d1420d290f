"""What validation finds, and the chunks it cuts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.domain.lines import LineCutter
from app.settings import LimitSettings, WorkerSettings
from app.worker.inspection import Inspection
from app.worker.repeats import Hashes, Suspects
from tests.unit.worker.yard import CHAT, jsonl, line

SERVED = frozenset({"echo", "other"})


def inspect(
    data: bytes,
    *,
    endpoint: str = CHAT,
    block: int = 1 << 20,
    chunk_lines: int = 1000,
    chunk_bytes: int = 1 << 24,
    hashed: Callable[[str], int] = hash,
    **limits: Any,
) -> Inspection:
    """What the validator makes of `data`: a second reading where the first saw equal hashes."""
    worker = WorkerSettings(chunk_max_lines=chunk_lines, chunk_max_bytes=chunk_bytes)
    new = partial(Inspection, endpoint=endpoint, limits=LimitSettings(**limits), worker=worker)
    first = read(new(hashes=Hashes(hashed)), data, block=block)
    repeated = first.repeated()
    return read(new(suspects=Suspects(repeated, hashed)), data, block=block) if repeated else first


def read(inspection: Inspection, data: bytes, *, block: int) -> Inspection:
    for start in range(0, len(data), block):
        if not inspection.feed(data[start : start + block]):
            return inspection
    inspection.finish()
    return inspection


def codes(inspection: Inspection, models: frozenset[str] | None = SERVED) -> list[tuple[str, int | None]]:
    return [(problem.code, problem.line) for problem in inspection.problems(models)]


def test_good_file_has_no_problems() -> None:
    inspection = inspect(jsonl([line("a"), line("b")]))
    assert codes(inspection) == []
    assert [chunk.lines for chunk in inspection.chunks] == [2]


def test_model_problems() -> None:
    data = jsonl([line("a", model="gone"), line("b"), line("c", model="other"), line("d")])
    assert codes(inspect(data)) == [("model_not_found", 1), ("mismatched_model", 3)]
    assert codes(inspect(data), None) == [("mismatched_model", number) for number in (2, 3, 4)]
    assert codes(inspect(data, mixed_models=True)) == [("model_not_found", 1)]
    assert codes(inspect(data, mixed_models=True), None) == []


def test_unknown_model_and_bad_json_in_one_pass() -> None:
    assert codes(inspect(jsonl([line("a", model="gone"), b"{"]))) == [("model_not_found", 1), ("invalid_json_line", 2)]


def test_problems_are_capped() -> None:
    data = jsonl([b"x"] * 500)
    assert codes(inspect(data)) == [("invalid_json_line", number) for number in range(1, 101)]
    assert len(codes(inspect(data, problems_max=3))) == 3
    assert len(codes(inspect(jsonl(line(str(number), model="gone") for number in range(500))))) == 100


def test_duplicate_of_a_bad_line_is_found() -> None:
    bad = json.dumps(
        {"custom_id": "a", "method": "GET", "url": CHAT, "body": {"model": "echo", "messages": []}}
    ).encode()
    assert codes(inspect(jsonl([bad, line("a")]))) == [("invalid_method", 1), ("duplicate_custom_id", 2)]


def hashed_badly(custom_id: str) -> int:
    return len(custom_id) - 2  # negative ones too, as Python's own


def test_different_ids_with_equal_hashes_are_no_duplicates() -> None:
    data = jsonl(line(f"{number:02}") for number in range(50))
    whole = inspect(data)
    found = inspect(data, hashed=hashed_badly)
    assert codes(found) == []
    assert (found.lines, found.tokens, found.chunks) == (whole.lines, whole.tokens, whole.chunks)


@given(
    ids=st.lists(st.sampled_from(["a", "b", "ab", "ba", "abc", "\u2028", "é" * 9, ""]), min_size=1, max_size=40),
    problems_max=st.integers(1, 12),
    bad=st.integers(0, 39),
)
def test_duplicates_are_those_that_a_set_of_all_ids_finds(ids: list[str], problems_max: int, bad: int) -> None:
    lines = [line(custom_id) for custom_id in ids]
    lines[bad % len(lines)] = b"{"
    expected: list[tuple[str, int | None]] = []
    seen: set[str] = set()
    for number, custom_id in enumerate(ids, 1):
        if len(expected) == problems_max:
            break
        if lines[number - 1] == b"{":
            expected.append(("invalid_json_line", number))
        elif custom_id in seen:
            expected.append(("duplicate_custom_id", number))
        else:
            seen.add(custom_id)
    for hashed in (hash, hashed_badly):
        assert codes(inspect(jsonl(lines), hashed=hashed, problems_max=problems_max)) == expected


def test_enough_duplicates_end_the_reading_as_enough_of_any_problem_do() -> None:
    data = jsonl([line("a"), line("a"), line("a"), b"{", line("b")])
    found = inspect(data, problems_max=2, batch_max_lines=4)
    assert codes(found) == [("duplicate_custom_id", 2), ("duplicate_custom_id", 3)]


def test_long_line_is_a_problem_and_the_rest_is_seen() -> None:
    data = jsonl([line("a", "x" * 5000), b"{", line("b")])
    assert codes(inspect(data, line_max_bytes=2000, block=100)) == [("line_too_long", 1), ("invalid_json_line", 2)]


def test_embedding_inputs_are_counted_over_all_lines() -> None:
    def embedding(custom_id: str, value: Any) -> bytes:
        body = {"model": "echo", "input": value}
        return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}).encode()

    data = jsonl(
        [embedding("a", ["x", "y"]), embedding("b", "z"), embedding("c", [1, 2, 3]), embedding("d", [[1], [2]])]
    )
    assert codes(inspect(data, endpoint="/v1/embeddings", embedding_max_inputs=6)) == []
    assert codes(inspect(data, endpoint="/v1/embeddings", embedding_max_inputs=5)) == [("too_many_inputs", None)]


def test_empty_file() -> None:
    assert codes(inspect(b"\n\n")) == [("empty_file", None)]


@given(
    gaps=st.lists(st.sampled_from([b"", b"\n", b" \n\r\n"]), min_size=1, max_size=30),
    bom=st.booleans(),
    chunk_lines=st.integers(1, 5),
    chunk_bytes=st.integers(1024, 1500),
    sizes=st.lists(st.integers(0, 900), min_size=30, max_size=30),
)
def test_chunks_hold_every_line_once(
    gaps: list[bytes], bom: bool, chunk_lines: int, chunk_bytes: int, sizes: list[int]
) -> None:
    lines = [line(str(number), "x" * sizes[number]) for number in range(len(gaps))]
    data = (b"\xef\xbb\xbf" if bom else b"") + b"".join(
        gap + text + b"\n" for gap, text in zip(gaps, lines, strict=True)
    )
    inspection = inspect(data, chunk_lines=chunk_lines, chunk_bytes=chunk_bytes, block=77)
    assert codes(inspection) == []
    found: list[bytes | None] = []
    for position, chunk in enumerate(inspection.chunks):
        assert chunk.position == position
        assert 1 <= chunk.lines <= chunk_lines
        assert chunk.lines == 1 or chunk.end - chunk.start <= chunk_bytes
        cutter = LineCutter(line_max_bytes=10_000, number=chunk.first_line, offset=max(1, chunk.start))
        cut = [*cutter.feed(data[chunk.start : chunk.end]), *cutter.finish()]
        assert len(cut) == chunk.lines
        assert cut[0].number == chunk.first_line == data[: chunk.start].count(b"\n") + 1
        found += [text.text for text in cut]
    assert found == lines
