"""The part format."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.part import PartDamaged, PartReader, Row, encode

ROWS = st.dictionaries(st.integers(0, 2000), st.tuples(st.integers(0, 2), st.binary(max_size=50)), max_size=20).map(
    lambda found: [Row(line, kind, text) for line, (kind, text) in found.items()]
)


async def blocks(data: bytes, size: int) -> AsyncGenerator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def read(data: bytes, size: int = 7) -> tuple[list[Row], tuple[int, int, int]]:
    reader = PartReader(blocks(data, size), key="k")
    rows: list[Row] = []
    while found := await reader.batch():
        rows += found
    return rows, reader.counts


@given(rows=ROWS, size=st.integers(1, 200))
async def test_read_what_was_written(rows: list[Row], size: int) -> None:
    found, counts = await read(encode(rows), size)
    assert found == sorted(rows)
    assert counts == tuple(sum(row.kind == kind for row in rows) for kind in range(3))


@given(rows=ROWS, data=st.data())
async def test_read_any_damage_is_noticed(rows: list[Row], data: st.DataObject) -> None:
    whole = encode(rows)
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PartDamaged):
        await read(bytes(damaged))
    with pytest.raises(PartDamaged):
        await read(whole[:place])
    with pytest.raises(PartDamaged):
        await read(whole + b"x")
