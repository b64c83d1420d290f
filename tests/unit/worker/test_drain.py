"""The drain on a real database, real blobs and the echo engine."""

from __future__ import annotations

import asyncio
import json

import pytest
from sqlalchemy import update

from app.engine.echo import EchoEngine
from app.settings import WorkerSettings
from app.store import retention
from app.store.tables import batches
from app.worker import drain
from app.worker.parts import Parts
from app.worker.seal import Sealer
from tests.unit.worker.yard import QUICK, Yard, jsonl, line


def _inside(yard: Yard) -> int:
    """Requests inside the engine."""
    engine = yard.engine.current
    return engine.pulse().inside if isinstance(engine, EchoEngine) else 0


def _beats(yard: Yard) -> int:
    """Answers of the engine."""
    engine = yard.engine.current
    assert isinstance(engine, EchoEngine)
    return engine.pulse().beats


async def _never(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


def ids(count: int) -> list[str]:
    return [f"line-{number}" for number in range(count)]


async def test_run_plain_batch(shared_yard: Yard) -> None:
    yard = shared_yard
    yard.start()
    batch_id = await yard.create(jsonl(line(name, f"say {name}") for name in ids(333)))
    batch = await yard.until(batch_id)
    output, error = await yard.check_ledger(batch, ids(333))
    assert batch.status.value == "completed"
    assert batch.error_file_id is None
    assert not error
    assert batch.model == "echo"
    assert batch.tally.usage.input_tokens == batch.tally.usage.output_tokens == 2 * 333
    for row in output:
        assert row["response"]["body"]["choices"][0]["message"]["content"] == f"say {row['custom_id']}"
    assert await yard.blob_keys("parts/") == []


async def test_run_mixed_outcomes(yard: Yard) -> None:
    yard.start()
    lines = [line(name, echo={"status": 418}) if number % 3 == 0 else line(name) for number, name in enumerate(ids(90))]
    lines[1] = line("line-1", temperature=99)
    batch = await yard.until(await yard.create(jsonl(lines)))
    output, error = await yard.check_ledger(batch, ids(90))
    assert (len(output), len(error)) == (59, 31)
    assert {row["response"]["status_code"] for row in error} == {418, 400}
    assert all(row["error"] is None for row in error)


async def test_run_all_fail_is_completed_without_output(yard: Yard) -> None:
    yard.start()
    batch = await yard.until(await yard.create(jsonl(line(name, echo={"status": 500}) for name in ids(5))))
    assert batch.status.value == "completed"
    assert batch.output_file_id is None
    assert batch.tally.failed == 5
    await yard.check_ledger(batch, ids(5))


async def test_run_odd_bytes_keeps_them(yard: Yard) -> None:
    """BOM, CRLF, blank lines, no last line end, characters at which other tools cut lines."""
    text = "a\u2028b\u2029c\u0085d \U0001f600 e"
    body = b"\xef\xbb\xbf" + line("x", text) + b"\r\n\r\n \t \n" + line("y", text) + b"\n\n" + line("z\x1f", text)
    assert b"\xe2\x80\xa8" in body
    file_id = await yard.put_file(body, pieces=7)
    yard.start()
    batch = await yard.until(await yard.create(file_id=file_id))
    assert batch.errors == ()
    output, _ = await yard.check_ledger(batch, ["x", "y", "z\x1f"])
    assert {row["response"]["body"]["choices"][0]["message"]["content"] for row in output} == {text}
    content = (await yard.content(batch.output_file_id)).decode()
    assert len(content.splitlines()) == 3


async def test_run_line_of_megabytes(yard: Yard) -> None:
    settings = QUICK.model_copy(update={"chunk_max_bytes": 1 << 20})
    yard.start(settings=settings)
    big = "word " * 1_000_000
    batch = await yard.until(await yard.create(jsonl([line("a"), line("b", big), line("c")])))
    output, _ = await yard.check_ledger(batch, ["a", "b", "c"])
    assert output[1]["response"]["body"]["choices"][0]["message"]["content"] == big


async def test_cancel_aborts_in_flight(yard: Yard) -> None:
    yard.start(window=16)
    lines = [line(name) if number < 60 else line(name, echo={"hang": True}) for number, name in enumerate(ids(400))]
    batch_id = await yard.create(jsonl(lines))
    await yard.until_ended(batch_id, 60)
    await yard.cancel(batch_id)
    batch = await yard.until(batch_id)
    assert batch.status.value == "cancelled"
    assert batch.tally.completed == 60
    _, error = await yard.check_ledger(batch, ids(400))
    assert {row["error"]["code"] for row in error} == {"batch_cancelled"}
    assert all(row["response"] is None for row in error)
    # The seats are free again, so the engine let go of what was aborted.
    batch = await yard.until(await yard.create(jsonl(line(name) for name in ids(40))))
    assert batch.tally.completed == 40


async def test_cancel_while_engine_is_away(yard: Yard) -> None:
    yard.start()
    lines = [line(name, echo={"hang": True}) for name in ids(120)]
    batch_id = await yard.create(jsonl(lines))
    await yard.until(batch_id, "in_progress")
    await yard.engine.stop()
    await yard.cancel(batch_id)
    batch = await yard.until(batch_id)
    assert batch.status.value == "cancelled"
    await yard.check_ledger(batch, ids(120))


async def test_cancel_while_another_batch_fills_the_window(yard: Yard) -> None:
    running = yard.start(window=4)
    slow = await yard.create(jsonl(line(name, echo={"hang": True}) for name in ids(200)))
    await yard.until(slow, "in_progress")
    await asyncio.sleep(0.2)
    other = await yard.create(jsonl(line(name) for name in ids(200)))
    await yard.until(other, "in_progress")
    await asyncio.sleep(0.3)
    assert len(running.worker._drain.leases()) == 1, "no chunk is claimed before seats will be free"
    await yard.cancel(other)
    batch = await yard.until(other)
    await yard.check_ledger(batch, ids(200))


async def test_expire_writes_off_the_rest(yard: Yard) -> None:
    yard.start()
    lines = [line(name) if number < 10 else line(name, echo={"hang": True}) for number, name in enumerate(ids(130))]
    batch_id = await yard.create(jsonl(lines))
    await yard.until_ended(batch_id, 10)
    async with yard.database.write() as tx:
        await tx.conn.execute(update(batches).where(batches.c.id == batch_id).values(expires_at=batches.c.created_at))
    batch = await yard.until(batch_id)
    assert batch.status.value == "expired"
    assert batch.expired_at is not None
    output, error = await yard.check_ledger(batch, ids(130))
    assert len(output) == 10
    assert {row["error"]["code"] for row in error} == {"batch_expired"}


async def test_time_out_gives_an_error_row(yard: Yard) -> None:
    yard.start(request_timeout_seconds=0.3)
    lines = [line("a"), line("b", echo={"hang": True}), line("c")]
    batch = await yard.until(await yard.create(jsonl(lines)))
    assert batch.status.value == "completed"
    output, error = await yard.check_ledger(batch, ["a", "b", "c"])
    assert len(output) == 2
    assert error[0]["error"]["code"] == "request_timeout"
    assert batch.tally.failed == 1


async def test_busy_engine_is_asked_again(yard: Yard) -> None:
    yard.start()
    lines = [line(name, text=name, echo={"busy": 2}) for name in ids(60)]
    batch = await yard.until(await yard.create(jsonl(lines)))
    output, _ = await yard.check_ledger(batch, ids(60))
    assert len(output) == 60
    assert sum(yard.seen.values()) == 3 * 60


async def test_poison_line_gets_an_error_row(yard: Yard) -> None:
    yard.start()
    lines = [line(name, text=name, echo={"delay_ms": 5}) for name in ids(200)]
    lines[77] = line("line-77", echo={"crash": True})
    batch = await yard.until(await yard.create(jsonl(lines)))
    output, error = await yard.check_ledger(batch, ids(200))
    assert len(output) == 199
    assert [row["custom_id"] for row in error] == ["line-77"]
    assert error[0]["response"]["status_code"] == 500
    assert error[0]["response"]["body"]["error"]["code"] == "engine_error"
    assert error[0]["response"]["body"]["error"]["type"] == "server_error"
    assert error[0]["error"] is None


async def test_lines_that_end_engines_cost_three_deaths_each_at_most(yard: Yard) -> None:
    yard.start()
    lines = [line(name, text=name, echo={"delay_ms": 5}) for name in ids(200)]
    for number in (20, 21, 150):
        lines[number] = line(f"line-{number}", text="bad", echo={"crash": True})
    batch = await yard.until(await yard.create(jsonl(lines)))
    _, error = await yard.check_ledger(batch, ids(200))
    assert [row["custom_id"] for row in error] == ["line-20", "line-21", "line-150"]
    assert yard.engine.generation <= 1 + 3 * 3


async def test_batch_of_lines_that_end_engines_is_not_run_to_its_end(yard: Yard) -> None:
    """Without a limit each of them would cost a rebuild; another batch is served meanwhile."""
    yard.start(settings=QUICK.model_copy(update={"poison_lines_max": 4}), window=16)
    lines = [line(name, text=name, echo={"crash": True}) for name in ids(300)]
    batch_id = await yard.create(jsonl(lines))
    other = await yard.create(jsonl(line(name, text=name, echo={"delay_ms": 5}) for name in ids(100)))
    batch = await yard.until(batch_id)
    output, error = await yard.check_ledger(batch, ids(300))
    assert not output
    assert batch.status.value == "completed"
    ran = [row for row in error if row["response"] is not None]
    unrun = [row for row in error if row["response"] is None]
    assert len(ran) >= 4
    assert {row["response"]["status_code"] for row in ran} == {500}
    assert {row["error"]["code"] for row in unrun} == {"engine_error"}
    assert len(unrun) > 200
    assert yard.engine.generation < 60
    output, error = await yard.check_ledger(await yard.until(other), ids(100))
    assert len(output) == 100


async def test_line_that_ends_whole_processes_gets_an_error_row(shared_yard: Yard) -> None:
    """A kill with the line in flight stands in for a process that the line takes along."""
    yard = shared_yard
    batch_id = await yard.create(jsonl([*(line(name) for name in ids(30)), line("x", echo={"hang": True})]))
    for _ in range(5):
        running = yard.start()
        async with asyncio.timeout(20):
            await yard.until_ended(batch_id, 30)
            while not _inside(yard):  # noqa: ASYNC110 - asks what has no event
                await asyncio.sleep(0.02)
        await running.kill()
    yard.start()
    async with asyncio.timeout(20):
        batch = await yard.until(batch_id)
    _, error = await yard.check_ledger(batch, [*ids(30), "x"])
    assert [(row["custom_id"], row["response"]["status_code"]) for row in error] == [("x", 500)]


async def test_process_that_dies_of_something_else_blames_no_line(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line is answered each time, but nothing becomes durable before the process goes."""
    batch_id = await yard.create(jsonl(line(name, text=name) for name in ids(12)))
    yard.start()
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "commit", _never)
        patch.setattr(Sealer, "seal", _never)
        for _ in range(8):
            running = yard.running[-1]
            answered = _beats(yard) + 12
            async with asyncio.timeout(20):
                while _beats(yard) < answered:  # noqa: ASYNC110 - asks what has no event
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.3)  # the last note is set right
            await running.kill()
            yard.start()
        await yard.running[-1].kill()
    yard.start()
    async with asyncio.timeout(30):
        output, _ = await yard.check_ledger(await yard.until(batch_id), ids(12))
    assert len(output) == 12


async def test_engine_death_runs_lines_again(yard: Yard) -> None:
    yard.start()
    lines = [line(name, text=name, echo={"delay_ms": 20}) for name in ids(100)]
    lines[3] = line("line-3", echo={"crash": 1})
    lines[80] = line("line-80", text="other", echo={"crash": 1})
    batch = await yard.until(await yard.create(jsonl(lines)))
    output, _ = await yard.check_ledger(batch, ids(100))
    assert len(output) == 100
    assert yard.engine.generation == 3


async def test_kill_and_take_over(shared_yard: Yard) -> None:
    yard = shared_yard
    first = yard.start(window=8)
    lines = [line(name, text=name, echo={"delay_ms": 10}) for name in ids(500)]
    batch_id = await yard.create(jsonl(lines))
    before = await yard.until_ended(batch_id, 100)
    await first.kill()
    # What it had written and not yet named when it died is the sweep's.
    litter = set(await yard.blob_keys("parts/"))
    async with yard.database.read() as tx:
        litter -= await retention.owned(tx, litter)
    second = yard.start(window=32)
    batch = await yard.until(batch_id)
    assert before.tally.completed >= 100
    output, _ = await yard.check_ledger(batch, ids(500))
    assert len(output) == 500
    await second.finish()
    assert set(await yard.blob_keys("parts/")) == litter


@pytest.mark.parametrize("round_", range(4))
async def test_kill_again_and_again(yard: Yard, round_: int) -> None:
    """At other moments each time: claiming, committing, sealing, finalizing."""
    lines = [line(name, text=name, echo={"delay_ms": 3}) for name in ids(300)]
    batch_id = await yard.create(jsonl(lines))
    settings = QUICK.model_copy(update={"lease_seconds": 0.2, "heartbeat_seconds": 0.05, "part_seconds": 0.03})
    for kill in range(12):
        running = yard.start(settings=settings, window=16)
        await asyncio.sleep(0.05 + 0.013 * kill + 0.003 * round_)
        await running.kill()
    yard.start(settings=settings, window=16)
    batch = await yard.until(batch_id)
    assert batch.status.value == "completed"
    await yard.check_ledger(batch, ids(300))


async def test_two_workers_share_a_batch(shared_yard: Yard) -> None:
    yard = shared_yard
    first, second = yard.start(window=8), yard.start(window=8)
    lines = [line(name, text=name, echo={"delay_ms": 10}) for name in ids(600)]
    batch_id = await yard.create(jsonl(lines))
    await yard.until_ended(batch_id, 50)
    held = [len(running.worker._drain.leases()) for running in (first, second)]
    assert all(held), "both hold chunks of the one batch"
    batch = await yard.until(batch_id)
    await yard.check_ledger(batch, ids(600))
    await first.finish()
    await second.finish()


async def test_stop_flushes_and_releases(yard: Yard) -> None:
    running = yard.start(settings=QUICK.model_copy(update={"part_seconds": 60.0}), window=8, stop_seconds=2)
    lines = [line(name, text=name, echo={"delay_ms": 80}) for name in ids(200)]
    batch_id = await yard.create(jsonl(lines))
    while _beats(yard) < 16:  # noqa: ASYNC110 - asks what has no event
        await asyncio.sleep(0.02)
    assert (await yard.batch(batch_id)).tally.completed == 0
    await running.finish()
    flushed = (await yard.batch(batch_id)).tally.completed
    assert flushed >= 8
    # Released, not left to lapse: the next worker starts at once.
    async with yard.database.read() as tx:
        assert (await retention.depth(tx)).leased_chunks == 0
    yard.start(window=64)
    batch = await yard.until(batch_id)
    output, _ = await yard.check_ledger(batch, ids(200))
    assert len(output) == 200 > flushed


async def test_stop_aborts_what_does_not_end(yard: Yard) -> None:
    settings = WorkerSettings(poll_seconds=0.05, part_seconds=60.0, chunk_max_lines=50)
    running = yard.start(settings=settings, window=8, stop_seconds=0.2)
    lines = [line(name, echo={"hang": True} if number == 5 else {}) for number, name in enumerate(ids(20))]
    batch_id = await yard.create(jsonl(lines))
    await yard.until(batch_id, "in_progress")
    while _beats(yard) < 19:  # noqa: ASYNC110 - asks what has no event
        await asyncio.sleep(0.02)
    await running.finish()
    assert (await yard.batch(batch_id)).tally.completed == 19


async def test_damaged_part_is_loud_and_nothing_is_lost(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "SET_ASIDE_SECONDS", 0.3)
    first = yard.start(window=64)
    lines = [line(name, text=name, echo={} if n < 10 else {"hang": True}) for n, name in enumerate(ids(50))]
    batch_id = await yard.create(jsonl(lines))
    await yard.until_ended(batch_id, 10)
    await first.kill()
    async with yard.database.read() as tx:
        key, *_ = await retention.owned(tx, await yard.blob_keys("parts/"))
    path = yard.blobs._root / key
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + b"?" + whole[-8:])
    yard.start(window=64, request_timeout_seconds=0.5)
    other = await yard.until(await yard.create(jsonl(line(name) for name in ids(30))))
    assert other.status.value == "completed", "other batches go on"
    await asyncio.sleep(1)
    assert (await yard.batch(batch_id)).status.value == "in_progress"
    path.write_bytes(whole)
    output, _ = await yard.check_ledger(await yard.until(batch_id), ids(50))
    assert len(output) == 10


async def test_fast_batch_needs_no_part(yard: Yard) -> None:
    """Chunks that end within `part_seconds` go straight into their segments."""
    yard.start(settings=WorkerSettings(poll_seconds=0.05))
    batch = await yard.until(await yard.create(jsonl(line(name) for name in ids(3000))))
    await yard.check_ledger(batch, ids(3000))
    assert len(await yard.blob_keys("segments/")) == 3


async def test_embeddings(yard: Yard) -> None:
    yard.start()
    lines = [
        json.dumps(
            {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": {"model": "echo", "input": name}}
        ).encode()
        for name in ids(20)
    ]
    batch = await yard.until(await yard.create(jsonl(lines), endpoint="/v1/embeddings"))
    await yard.check_ledger(batch, ids(20))
    assert batch.tally.completed == 20
