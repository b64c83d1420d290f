"""Bytes that are away come back; bytes that are lost for good end as rows that say so, and nothing answered is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.blobs.local import LocalBlobs
from app.domain.batch import Batch
from app.domain.file import Purpose, Segment
from app.errors import Unavailable
from app.settings import WorkerSettings
from app.store import files
from app.worker import drain
from app.worker.absence import Absences, last_byte
from tests.unit.worker.yard import QUICK, Yard, jsonl, line

# Proven lost after three looks within 0.3 s, where others stand; with nothing standing, not within a test.
HASTY = QUICK.model_copy(update={"lost_after_seconds": 0.3, "gone_after_seconds": 600.0, "chunk_max_lines": 20})
GONE = HASTY.model_copy(update={"gone_after_seconds": 0.6})


def ids(count: int) -> list[str]:
    return [f"line-{number}" for number in range(count)]


def paced(count: int, *, hang_from: int | None = None) -> bytes:
    lines = []
    for number, name in enumerate(ids(count)):
        hangs = hang_from is not None and number >= hang_from
        lines.append(line(name, text=name, echo={"hang": True} if hangs else {}))
    return jsonl(lines)


async def drop(yard: Yard, prefix: str) -> list[str]:
    """Somebody removes blobs behind our back."""
    keys = await yard.blob_keys(prefix)
    assert keys
    for key in keys:
        await yard.blobs.delete(key)
    return keys


async def input_of(yard: Yard, batch_id: str) -> list[Segment]:
    batch = await yard.batch(batch_id)
    async with yard.database.read() as tx:
        return await files.segments(tx, batch.input_file_id)


async def drop_input(yard: Yard, batch_id: str) -> None:
    for segment in await input_of(yard, batch_id):
        await yard.blobs.delete(segment.key)


async def stopped_in_the_middle(yard: Yard, *, settings: WorkerSettings = HASTY) -> str:
    """A batch of 60 lines in three chunks, left by a killed worker: 12 answers are in parts, the others hang.

    Beside it stands what others have stored.
    """
    for number in range(8):
        await yard.put_file(b"file %d" % number, purpose=Purpose.USER_DATA)
    lines = [line(name, text=name, echo={} if n % 20 < 4 else {"hang": True}) for n, name in enumerate(ids(60))]
    batch_id = await yard.create(jsonl(lines))
    first = yard.start(settings=settings)
    await yard.until_ended(batch_id, 12)
    await first.kill()
    return batch_id


async def error_codes(yard: Yard, batch: Batch) -> list[tuple[str | None, str]]:
    return [(row["custom_id"], row["error"]["code"]) for row in await yard.rows(batch.error_file_id)]


class TestAbsences:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path / "elsewhere"

    async def look(self, yard: Yard, absences: Absences, key: str, *, seconds: float) -> bool:
        """Ask until it says lost, or for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            if await absences.lost(key, lambda: last_byte(yard.blobs, key, size=5)):
                return True
            await asyncio.sleep(0.02)
        return False

    def absences(self, yard: Yard, *, gone: float = 600, blobs: LocalBlobs | None = None) -> Absences:
        return Absences(
            database=yard.database, blobs=blobs or yard.blobs, lost_after_seconds=0.2, gone_after_seconds=gone
        )

    async def test_blob_is_lost_when_the_others_stand(self, yard: Yard) -> None:
        await yard.put_file(b"one")
        absences = self.absences(yard)
        assert not await absences.lost("uploads/x", lambda: last_byte(yard.blobs, "uploads/x", size=5)), "one look"
        assert await self.look(yard, absences, "uploads/x", seconds=5)

    async def test_blob_that_came_back_is_not_lost(self, yard: Yard) -> None:
        await yard.put_file(b"one")
        absences = self.absences(yard)
        await yard.blobs.put("uploads/x", b"12345")
        assert not await self.look(yard, absences, "uploads/x", seconds=0.6)
        await yard.blobs.put("uploads/short", b"123")
        assert await self.look(yard, absences, "uploads/short", seconds=5), "cut short is lost as well"

    async def test_another_disk_proves_nothing(self, yard: Yard, root: Path) -> None:
        """An empty folder stands where the disk should be mounted, and takes bytes like any other."""
        for text in (b"one", b"two", b"three"):
            await yard.put_file(text)
        absences = self.absences(yard, blobs=LocalBlobs(root))
        assert not await self.look(yard, absences, "uploads/x", seconds=0.6)

    async def test_emptied_store_is_lost_in_the_end(self, yard: Yard) -> None:
        await yard.put_file(b"one")
        await drop(yard, "uploads/")
        assert await self.look(yard, self.absences(yard, gone=0.4), "uploads/x", seconds=5)

    async def test_store_that_does_not_work_proves_nothing(self, yard: Yard) -> None:
        await yard.put_file(b"one")
        absences = self.absences(yard)
        yard.blobs.fault = Unavailable("away")
        with pytest.raises(Unavailable):
            await self.look(yard, absences, "uploads/x", seconds=5)


async def test_input_lost_before_validation_fails_the_batch(yard: Yard) -> None:
    lost = await yard.put_file(paced(5))
    await drop(yard, "uploads/")
    batch_id = await yard.create(file_id=lost)
    await yard.put_file(b"another\n")
    yard.start(settings=HASTY)
    batch = await yard.until(batch_id)
    assert batch.status.value == "failed"
    [problem] = batch.errors
    assert problem.message == f"The content of file {lost} is not available."


async def test_input_that_comes_back_is_validated(yard: Yard) -> None:
    file_id = await yard.put_file(paced(5))
    [key] = await yard.blob_keys("uploads/")
    aside = yard.blobs._root / "aside"
    (yard.blobs._root / key).rename(aside)
    batch_id = await yard.create(file_id=file_id)
    running = yard.start(settings=HASTY)
    while not running.worker._validator._absences._missing:  # noqa: ASYNC110 - asks what has no event
        await asyncio.sleep(0.02)
    (yard.blobs._root / key).parent.mkdir(exist_ok=True)
    aside.rename(yard.blobs._root / key)
    batch = await yard.until(batch_id)
    await yard.check_ledger(batch, ids(5))


async def test_input_lost_in_the_middle_keeps_what_was_answered(shared_yard: Yard) -> None:
    yard = shared_yard
    batch_id = await stopped_in_the_middle(yard)
    await drop_input(yard, batch_id)
    yard.start(settings=HASTY)
    batch = await yard.until(batch_id)
    assert batch.status.value == "completed"
    output, error = await yard.rows(batch.output_file_id), await yard.rows(batch.error_file_id)
    assert sorted(row["custom_id"] for row in output) == sorted(f"line-{n}" for n in range(60) if n % 20 < 4)
    assert [(row["custom_id"], row["response"], row["error"]["code"]) for row in error] == [
        (None, None, "input_lost")
    ] * 48
    assert "near line 5 of" in error[0]["error"]["message"]
    assert (batch.total, batch.tally.completed, batch.tally.failed) == (60, 12, 48)


async def test_lost_part_runs_its_lines_again(shared_yard: Yard) -> None:
    yard = shared_yard
    batch_id = await stopped_in_the_middle(yard)
    await drop(yard, "parts/")
    yard.start(settings=HASTY, request_timeout_seconds=0.5)
    batch = await yard.until(batch_id)
    output, error = await yard.check_ledger(batch, ids(60))
    assert len(output) == batch.tally.usage.output_tokens == 12
    assert {row["error"]["code"] for row in error} == {"request_timeout"}


async def test_damaged_part_runs_its_lines_again(yard: Yard) -> None:
    batch_id = await stopped_in_the_middle(yard)
    for key in await yard.blob_keys("parts/"):
        path = yard.blobs._root / key
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    yard.start(settings=HASTY, request_timeout_seconds=0.5)
    output, _ = await yard.check_ledger(await yard.until(batch_id), ids(60))
    assert len(output) == 12


async def test_emptied_store_ends_the_batch_with_error_rows(yard: Yard) -> None:
    batch_id = await stopped_in_the_middle(yard)
    await drop(yard, "")
    yard.start(settings=GONE)
    batch = await yard.until(batch_id)
    assert batch.status.value == "completed"
    assert (batch.tally.completed, batch.tally.failed, batch.output_file_id) == (0, 60, None)
    assert set(await error_codes(yard, batch)) == {(None, "input_lost")}


async def test_another_disk_ends_nothing(yard: Yard) -> None:
    batch_id = await stopped_in_the_middle(yard)
    root, aside = yard.blobs._root, yard.blobs._root.with_name("aside")
    root.rename(aside)
    running = yard.start(settings=HASTY)
    while not running.worker._drain._intake._absences._missing:  # noqa: ASYNC110 - asks what has no event
        await asyncio.sleep(0.02)
    await asyncio.sleep(1)
    assert (await yard.batch(batch_id)).status.value == "in_progress"
    assert (await yard.batch(batch_id)).tally.lines == 12
    assert await yard.blob_keys("parts/") == await yard.blob_keys("segments/") == [], "nothing was written off"
    await running.kill()
    if root.exists():
        root.rename(root.with_name("wrong"))
    aside.rename(root)
    yard.start(settings=HASTY)
    await yard.until_ended(batch_id, 12)
    await yard.cancel(batch_id)
    await yard.check_ledger(await yard.until(batch_id), ids(60))


async def test_cancel_of_a_batch_whose_input_is_lost(yard: Yard) -> None:
    batch_id = await stopped_in_the_middle(yard)
    await drop_input(yard, batch_id)
    await yard.cancel(batch_id)
    yard.start(settings=HASTY)
    batch = await yard.until(batch_id)
    assert batch.status.value == "cancelled"
    assert (batch.tally.completed, batch.tally.failed) == (12, 0)
    assert set(await error_codes(yard, batch)) == {(None, "batch_cancelled")}


async def test_input_that_is_not_what_was_validated_ends_no_worker(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many lines, other bytes: loud, the others go on, and so does this one once its bytes are right again."""
    monkeypatch.setattr(drain, "SET_ASIDE_SECONDS", 0.2)
    batch_id = await stopped_in_the_middle(yard)
    [segment] = await input_of(yard, batch_id)
    path = yard.blobs._root / segment.key
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'{"custom_id"', b'}"custom_id"'))
    running = yard.start(settings=HASTY)
    other = await yard.until(await yard.create(jsonl([line("a")])))
    assert other.status.value == "completed"
    assert (await yard.batch(batch_id)).tally.lines == 12
    path.write_bytes(whole)
    await yard.cancel(batch_id)
    await yard.check_ledger(await yard.until(batch_id), ids(60))
    assert not running.task.done()
