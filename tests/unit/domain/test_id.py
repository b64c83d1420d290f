"""Object ids."""

from __future__ import annotations

import re
import time

import pytest

from app.domain.id import is_plausible, new_batch_id, new_chunk_id, new_file_id, new_lease_token, new_request_id


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (new_file_id, r"file-[0-9A-Za-z]{22}"),
        (new_batch_id, r"batch_[0-9a-f]{32}"),
        (new_chunk_id, r"chunk_[0-9a-f]{32}"),
        (new_request_id, r"req_[0-9a-f]{32}"),
        (new_lease_token, r"[0-9a-f]{32}"),
    ],
    ids=["file", "batch", "chunk", "request", "token"],
)
def test_new_id_shape(make: type[str], shape: str) -> None:
    made = [make() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(re.fullmatch(shape, one) and is_plausible(one) for one in made)


@pytest.mark.parametrize("make", [new_file_id, new_batch_id, new_chunk_id], ids=["file", "batch", "chunk"])
def test_new_id_sorts_by_time(make: type[str]) -> None:
    made = []
    for _ in range(5):
        made.append(make())
        time.sleep(0.002)
    assert made == sorted(made)


@pytest.mark.parametrize("text", ["", "a b", "x" * 97, "../x", "a\n", "é", "a%00"])
def test_is_plausible_refuses(text: str) -> None:
    assert not is_plausible(text)
