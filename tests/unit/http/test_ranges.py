from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from app.http.ranges import ByteRange, requested_range

WHOLE = ByteRange(0, 10, partial=False)


def asked(header: str | None, *, if_range: str | None = None, size: int = 10) -> ByteRange:
    return requested_range(header, if_range=if_range, etag='"e"', size_bytes=size)


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=3-5", 3, 6),
        ("bytes=3-", 3, 10),
        ("bytes=3-999", 3, 10),
        ("bytes=-4", 6, 10),
        ("bytes=-999", 0, 10),
        ("bytes= 1-2 ", 1, 3),
    ],
)
def test_one_range(header: str, start: int, end: int) -> None:
    assert asked(header) == ByteRange(start, end, partial=True)


@pytest.mark.parametrize(
    "header", [None, "", "bytes", "bytes=", "bytes=-", "bytes=a-b", "lines=0-1", "bytes=0-1,3-4", "bytes=5-3", "0-1"]
)
def test_anything_else_means_the_whole(header: str | None) -> None:
    assert asked(header) == WHOLE


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=10-20", 10), ("bytes=-0", 10), ("bytes=0-", 0)]
)
def test_range_outside_the_file(header: str, size: int) -> None:
    with pytest.raises(HTTPException) as caught:
        asked(header, size=size)
    assert caught.value.status_code == 416
    assert caught.value.headers == {"content-range": f"bytes */{size}"}


def test_if_range_of_another_version_means_the_whole() -> None:
    assert asked("bytes=3-5", if_range='"old"') == WHOLE
    assert asked("bytes=3-5", if_range='"e"') == ByteRange(3, 6, partial=True)


@given(header=st.text(max_size=30) | st.from_regex(r"bytes=[0-9]{0,20}-[0-9]{0,20}"), size=st.integers(0, 100))
def test_any_header_gives_a_range_inside_or_416(header: str, size: int) -> None:
    try:
        part = asked(header, size=size)
    except HTTPException:
        return  # 416, as above
    assert 0 <= part.start <= part.end <= size
    assert part.partial or (part.start, part.end) == (0, size)
