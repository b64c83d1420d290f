"""A database, a blob folder, an echo engine, and workers on them, all real; and ways to ask what became of a batch."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from app.blobs.base import BlobWriter
from app.blobs.key import upload_key
from app.blobs.local import LocalBlobs
from app.domain.batch import Batch
from app.domain.file import Purpose
from app.domain.id import new_batch_id, new_file_id
from app.domain.project import DEFAULT_PROJECT
from app.engine.echo import EchoEngine
from app.engine.supervised import SupervisedEngine
from app.errors import Unavailable
from app.settings import LimitSettings, RetentionSettings, WorkerSettings
from app.store import batches, files
from app.store.db import Database, Read, Write
from app.worker.loop import Worker

CHAT = "/v1/chat/completions"
QUICK = WorkerSettings(
    poll_seconds=0.05, lease_seconds=1.0, heartbeat_seconds=0.2, part_seconds=0.1, chunk_max_lines=50
)


def line(custom_id: str, text: str = "hello", *, url: str = CHAT, model: str = "echo", **body: Any) -> bytes:
    """One good chat line, without its line end."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], **body}
    request = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(request, ensure_ascii=False).encode()


def jsonl(lines: Iterable[bytes]) -> bytes:
    return b"".join(text + b"\n" for text in lines)


class HeldDatabase(Database):
    """The real database, but while it is held no transaction begins: so a paused or dead process looks to the others.

    Stands in for SIGSTOP and SIGKILL, which would stop the test as well. A kill inside a transaction rolls it back, so
    it looks like one before it.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._free = asyncio.Event()
        self._free.set()
        self._fault: Unavailable | None = None
        self._lost_every = 0
        self._writes = 0
        self.answers_lost = 0

    def hold(self) -> None:
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    def fail(self, fault: Unavailable | None) -> None:
        """Answer every transaction with `fault`, until called with None."""
        self._fault = fault

    def lose_answers(self, every: int) -> None:
        """Of so many writes, one is committed and its writer told that it may not be."""
        self._lost_every = every

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Read]:
        await self._enter()
        async with super().read() as tx:
            yield tx

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[Write]:
        await self._enter()
        async with super().write() as tx:
            yield tx
        self._writes += 1
        if self._lost_every and self._writes % self._lost_every == 0:
            self.answers_lost += 1
            raise Unavailable("the connection broke in the commit")

    async def _enter(self) -> None:
        await self._free.wait()
        if self._fault is not None:
            raise self._fault


class FaultyBlobs(LocalBlobs):
    """The real blob folder, but every write meets `fault` while it is set: a full disk cannot be provoked here."""

    fault: Unavailable | None = None

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[BlobWriter]:
        if self.fault is not None:
            raise self.fault
        async with super().writer(key) as writer:
            yield writer


@dataclass
class Running:
    """A worker at work, with connections of its own."""

    worker: Worker
    database: HeldDatabase
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def finish(self) -> None:
        """A clean stop."""
        self.stop.set()
        await self.task

    async def kill(self) -> None:
        """The worker's tasks end where they stand; nothing is flushed or released."""
        self.database.hold()
        while self.database.checked_out:  # noqa: ASYNC110 - the pool tells nobody
            await asyncio.sleep(0.001)
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@dataclass
class Yard:
    """See the module. `seen` outlives the engines, so that a crash can be asked for a number of times."""

    database: Database
    url: str
    blobs: FaultyBlobs
    engine: SupervisedEngine
    seen: Counter[bytes]
    running: list[Running] = field(default_factory=list)

    def start(
        self,
        *,
        settings: WorkerSettings = QUICK,
        limits: LimitSettings | None = None,
        retention: RetentionSettings | None = None,
        window: int = 64,
        request_timeout_seconds: float = 60,
        stop_seconds: float = 5,
    ) -> Running:
        database = HeldDatabase(self.url)
        worker = Worker(
            database=database,
            blobs=self.blobs,
            engine=self.engine,
            settings=settings,
            limits=limits or LimitSettings(),
            retention=retention or RetentionSettings(),
            window=window,
            request_timeout_seconds=request_timeout_seconds,
            stop_seconds=stop_seconds,
        )
        stop = asyncio.Event()
        running = Running(worker, database, stop, asyncio.create_task(worker.run(stop)))
        self.running.append(running)
        return running

    async def put_file(self, data: bytes, *, purpose: Purpose = Purpose.BATCH, pieces: int = 1) -> str:
        """A file of `data`, in `pieces` segments of about one size."""
        size = max(1, -(-len(data) // pieces))
        segments = []
        for start in range(0, len(data), size):
            key = upload_key()
            await self.blobs.put(key, data[start : start + size])
            segments.append((key, len(data[start : start + size])))
        file_id = new_file_id()
        async with self.database.write() as tx:
            await files.create(
                tx,
                id=file_id,
                project_id=DEFAULT_PROJECT,
                purpose=purpose,
                filename="lines.jsonl",
                sha256=None,
                expires_after_seconds=None,
                segments=segments,
            )
        return file_id

    async def create(
        self, data: bytes | None = None, *, file_id: str = "", endpoint: str = CHAT, window_seconds: int = 86_400
    ) -> str:
        """A batch over `data` (or over a file that stands already); its id."""
        batch_id = new_batch_id()
        input_file_id = file_id if data is None else await self.put_file(data)
        async with self.database.write() as tx:
            found = await files.get(tx, input_file_id, project_id=DEFAULT_PROJECT)
            await batches.create(
                tx,
                id=batch_id,
                project_id=DEFAULT_PROJECT,
                endpoint=endpoint,
                input_file_id=input_file_id,
                input_found=found is not None,
                completion_window="24h",
                window_seconds=window_seconds,
                metadata=None,
                output_expires_after_seconds=None,
            )
        return batch_id

    async def cancel(self, batch_id: str) -> None:
        async with self.database.write() as tx:
            await batches.cancel(tx, batch_id, project_id=DEFAULT_PROJECT)

    async def batch(self, batch_id: str) -> Batch:
        async with self.database.read() as tx:
            batch = await batches.get(tx, batch_id, project_id=DEFAULT_PROJECT)
        assert batch is not None
        return batch

    async def until(self, batch_id: str, *statuses: str) -> Batch:
        """The batch once it is in one of `statuses`; in any terminal one where none is named."""
        while True:
            batch = await self.batch(batch_id)
            if batch.status.value in statuses or (not statuses and batch.is_terminal):
                return batch
            for running in self.running:
                if running.task.done() and not running.task.cancelled():
                    running.task.result()
            await asyncio.sleep(0.02)

    async def until_ended(self, batch_id: str, lines: int) -> Batch:
        """The batch once at least `lines` of its lines are durable."""
        while True:
            batch = await self.batch(batch_id)
            if batch.tally.lines >= lines:
                return batch
            await asyncio.sleep(0.02)

    async def content(self, file_id: str | None) -> bytes:
        """The bytes of a file; empty for None."""
        if file_id is None:
            return b""
        async with self.database.read() as tx:
            segments = await files.segments(tx, file_id)
        return b"".join([await self.blobs.get(segment.key) for segment in segments])

    async def rows(self, file_id: str | None) -> list[dict[str, Any]]:
        return [json.loads(text) for text in (await self.content(file_id)).split(b"\n") if text]

    async def check_ledger(self, batch: Batch, custom_ids: Iterable[str]) -> tuple[list[Any], list[Any]]:
        """Every accepted line stands in exactly one file, in input order, and is counted; (output rows, error rows)."""
        wanted = list(custom_ids)
        output, error = await self.rows(batch.output_file_id), await self.rows(batch.error_file_id)
        found = Counter(row["custom_id"] for row in (*output, *error))
        assert found == Counter(wanted)
        place = {custom_id: number for number, custom_id in enumerate(wanted)}
        for rows in (output, error):
            places = [place[row["custom_id"]] for row in rows]
            assert places == sorted(places)
        assert batch.total == len(wanted)
        assert batch.tally.completed == len(output)
        assert batch.tally.failed == sum(row["response"] is not None or _ran(row) for row in error)
        return output, error

    async def blob_keys(self, prefix: str = "") -> list[str]:
        return sorted([info.key async for info in self.blobs.scan(prefix)])


def _ran(row: dict[str, Any]) -> bool:
    return row["error"]["code"] not in ("batch_cancelled", "batch_expired")


def new_engine(seen: Counter[bytes], *, load_seconds: float = 0, concurrent: int = 256) -> SupervisedEngine:
    return SupervisedEngine(
        lambda: EchoEngine(seen=seen, load_seconds=load_seconds, concurrent=concurrent),
        first_backoff_seconds=0.02,
        max_backoff_seconds=0.05,
    )
