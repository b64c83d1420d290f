"""Manifests of segments."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from app.domain.file import Segment, overlapping


@given(sizes=st.lists(st.integers(0, 5), max_size=8), start=st.integers(0, 45), end=st.integers(0, 45))
def test_overlapping_covers_the_range_once(sizes: list[int], start: int, end: int) -> None:
    starts = [0, *accumulate(sizes)]
    segments = [Segment(str(number), starts[number], size) for number, size in enumerate(sizes)]
    data = {segment.key: range(segment.start, segment.start + segment.bytes) for segment in segments}
    found = [place for segment, low, high in overlapping(segments, start, end) for place in data[segment.key][low:high]]
    assert found == list(range(starts[-1]))[start:end]
