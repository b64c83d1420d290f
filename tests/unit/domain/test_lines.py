"""Cutting lines: any blocks, the same lines."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from app.domain.lines import Line, LineCutter


def cut(data: bytes, *sizes: int, limit: int = 1000) -> list[Line]:
    """The lines of `data`, fed in blocks of `sizes`, the last size over and over."""
    cutter = LineCutter(line_max_bytes=limit)
    found: list[Line] = []
    at, turn = 0, 0
    while at < len(data):
        size = sizes[min(turn, len(sizes) - 1)] if sizes else len(data)
        found += cutter.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    return found + cutter.finish()


def naive(data: bytes, limit: int) -> list[Line]:
    """The same, over the whole text at once."""
    found = []
    start = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    for number, raw in enumerate(data[start:].split(b"\n"), start=1):
        end = min(len(data), start + len(raw) + 1)
        text = raw[:-1] if raw.endswith(b"\r") else raw
        if len(text) > limit:
            found.append(Line(number, start, end, None))
        elif text.strip():
            found.append(Line(number, start, end, text))
        start = end
    return found


def test_cut_numbers_are_physical() -> None:
    assert cut(b"a\n\n  \nb\r\nc") == [
        Line(1, 0, 2, b"a"),
        Line(4, 6, 9, b"b"),
        Line(5, 9, 10, b"c"),
    ]


def test_cut_skips_one_byte_order_mark() -> None:
    assert cut(b"\xef\xbb\xbf\xef\xbb\xbfa\n") == [Line(1, 3, 8, b"\xef\xbb\xbfa")]
    assert cut(b"\xef\xbb\xbfa\n", 1) == [Line(1, 3, 5, b"a")]
    assert cut(b"\xef\xbb", 1) == [Line(1, 0, 2, b"\xef\xbb")]


def test_cut_ends_at_newline_only() -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj".encode()
    assert [line.text for line in cut(text + b"\n")] == [text]


def test_cut_resyncs_after_a_long_line() -> None:
    assert [line.text for line in cut(b"x" * 11 + b"\n" + b"y" * 10 + b"\r\n" + b"z" * 11, 3, limit=10)] == [
        None,
        b"y" * 10,
        None,
    ]


def test_cut_long_line_in_bounded_memory() -> None:
    block = b"x" * 65_536
    cutter = LineCutter(line_max_bytes=100_000)
    tracemalloc.start()
    try:
        for _ in range(1000):
            assert not cutter.feed(block)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert cutter.feed(b"\nshort\n") == [
        Line(1, 0, 65_536_001, None),
        Line(2, 65_536_001, 65_536_007, b"short"),
    ]


PIECES = st.lists(
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b" ", b"\t", b"\xef\xbb\xbf", b"\xef", b"a", b"{}", b"bcdefgh", b"\xe2\x80\xa8"]
    ),
    max_size=30,
)


@given(pieces=PIECES, sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5), limit=st.integers(1, 12))
def test_cut_any_blocks_give_the_same_lines(pieces: list[bytes], sizes: list[int], limit: int) -> None:
    data = b"".join(pieces)
    found = cut(data, *sizes, limit=limit)
    assert found == naive(data, limit)
    for line in found:
        assert line.text is None or data[line.start : line.end].rstrip(b"\r\n") == line.text.rstrip(b"\r")
