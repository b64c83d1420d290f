from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.blobs.key import chunk_of, is_key, part_key, segment_key, upload_key
from app.domain.id import new_batch_id, new_chunk_id, new_lease_token

BATCH, CHUNK, TOKEN = new_batch_id(), new_chunk_id(), new_lease_token()


@pytest.mark.parametrize(
    "make",
    [
        upload_key,
        lambda: part_key(BATCH, CHUNK, TOKEN),
        lambda: segment_key(BATCH, CHUNK, "output"),
        lambda: segment_key(BATCH, CHUNK, "error"),
    ],
)
def test_made_keys_are_keys_and_never_repeat(make: Callable[[], str]) -> None:
    keys = {make() for _ in range(100)}
    assert len(keys) == 100
    assert all(is_key(key) for key in keys)


def test_chunk_of_reads_it_back_from_parts_and_segments() -> None:
    assert chunk_of(part_key(BATCH, CHUNK, TOKEN)) == CHUNK
    assert chunk_of(segment_key(BATCH, CHUNK, "output")) == chunk_of(segment_key(BATCH, CHUNK, "error")) == CHUNK
    for other in (upload_key(), "check/ab", "parts/a", "segments/a/b", "segments/a/b/c-d", "parts/a/b/c/d"):
        assert chunk_of(other) is None


def test_part_key_does_not_hand_out_the_lease_token() -> None:
    assert TOKEN not in part_key(BATCH, CHUNK, TOKEN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "/a/b",
        "a/b/",
        "a//b",
        "../etc/passwd",
        "a/../b",
        "a/.b",
        ".tmp/a",
        "a/B",
        "a/b c",
        "a/b\n",
        "a/ü",
        "a/b\0",
    ],
)
def test_other_names_are_no_keys(text: str) -> None:
    assert not is_key(text)


@given(st.text(alphabet="ab/._-", max_size=30))
def test_no_key_climbs_out_or_hides(text: str) -> None:
    if is_key(text):
        names = text.split("/")
        assert len(names) > 1
        assert all(name and not name.startswith(".") for name in names)
