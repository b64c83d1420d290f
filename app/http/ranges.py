"""`Range: bytes=…` with one range (RFC 9110, 14); a download that broke off can go on where it stopped."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.exceptions import HTTPException

_ONE_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [start, end) of a file; `partial` when the client asked for a range that we honour."""

    start: int
    end: int
    partial: bool


def requested_range(header: str | None, *, if_range: str | None, etag: str, size_bytes: int) -> ByteRange:
    """What to send. A header that is absent, malformed, or lists several ranges means the whole, as RFC 9110 allows.

    Raises HTTPException 416 for a range outside the file.
    """
    whole = ByteRange(0, size_bytes, partial=False)
    match = _ONE_RANGE.fullmatch(header or "")
    if match is None or not (match[1] or match[2]) or (if_range is not None and if_range != etag):
        return whole
    if match[1]:
        start = int(match[1])
        end = min(int(match[2]) + 1, size_bytes) if match[2] else size_bytes
        if match[2] and int(match[2]) < start:
            return whole
    else:  # the last N bytes
        start = max(0, size_bytes - int(match[2]))
        end = size_bytes
    if start >= end:
        raise HTTPException(
            416, f"The range is outside the file of {size_bytes} bytes.", {"content-range": f"bytes */{size_bytes}"}
        )
    return ByteRange(start, end, partial=True)
