"""One round: a fresh service, a customer, ten mishaps or fewer, then quiet, and the audit."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from tests.chaos.customer import Customer, Record
from tests.chaos.fleet import KEY, Fleet
from tests.chaos.journal import Journal, Verdict, judge
from tests.chaos.ledger import audit
from tests.chaos.mishap import Mishaps
from tests.chaos.receiver import Receiver
from tests.chaos.storage import PostgresRows, PrivatePostgres, Rows, SqliteRows, Storage

STUCK_SECONDS = 60.0
_SWEPT_SECONDS = 30.0
_names = count()
#: A process that starts while its database is away says this, and ends.
_NO_DATABASE = "error: The database does not answer."
Kind = Literal["sqlite", "postgres"]


@dataclass
class Report:
    """What one or several rounds came to."""

    mishaps: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    unavailable: int = 0
    slowest_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.mishaps += other.mishaps
        self.fired += other.fired
        self.ends += other.ends
        self.lines += other.lines
        self.verdict.ran += other.verdict.ran
        self.verdict.rerun += other.verdict.rerun
        self.verdict.bound += other.verdict.bound
        self.verdict.unexcused += other.verdict.unexcused
        self.unavailable += other.unavailable
        self.slowest_seconds = max(self.slowest_seconds, other.slowest_seconds)
        self.problems += other.problems

    def count(self, *words: str) -> int:
        """Problems that speak of one of these."""
        return sum(1 for problem in self.problems if any(word in problem for word in words))


@dataclass
class Round:
    """`seed` decides everything but time. `workers` processes run lines; so many `mishaps` happen, or `only` these."""

    seed: str
    database: Kind
    workers: int
    mishaps: int
    postgres: PrivatePostgres | None = None
    outage_seconds: float = 10.0
    tell: Callable[[str], None] = lambda text: None
    only: Sequence[str] = ()

    def run(self) -> Report:
        """Raises nothing for what the service did wrong: that stands in `problems`. Keeps the folder then."""
        folder = Path(tempfile.mkdtemp(prefix="batchyard-chaos-"))
        report = Report()
        try:
            self._run(folder, report)
        except Exception as exc:  # the seed must be told, whatever it was
            report.problems.append(f"the round broke off: {exc!r}")
        if report.problems:
            self.tell(f"seed {self.seed}: the folder {folder} is kept")
        else:
            shutil.rmtree(folder)
        return report

    def _run(self, folder: Path, report: Report) -> None:
        storage = Storage(self._rows(folder), folder / "data" / "blobs")
        settings = {
            "DATA_DIR": str(folder / "data"),
            "STORE_URL": storage.rows.url,
            "ENGINE_ECHO_JOURNAL": str(folder / "journal"),
        }
        (folder / "data").mkdir()
        fleet = Fleet(folder, storage, settings, seed=self.seed)
        customer = Customer(self.seed, KEY, fleet.url, storage.age)
        mishaps = Mishaps(fleet, self.seed, self.postgres, self.outage_seconds, self.tell, self.only)
        with ExitStack() as stack:
            receiver = Receiver()
            stack.callback(receiver.close)
            stack.callback(fleet.close)
            stack.callback(customer.leave)
            fleet.open(self._roles())
            _until(lambda: fleet.url() is not None, 60, "no API listens")
            customer.listen(receiver.url)
            customer.start()
            mishaps.run(self.mishaps)
            customer.close()
            fleet.calm(60)
            calm_at = time.monotonic()
            _wait(lambda: not customer.running(), STUCK_SECONDS)
            report.slowest_seconds = time.monotonic() - calm_at
            self._audit(customer, report)
            self._hear(customer, receiver, report)
        report.mishaps, report.unavailable = mishaps.done, customer.unavailable
        report.fired = Counter(name for member in fleet.members for name in member.all_fired())
        report.problems += [*customer.problems, *fleet.problems, *_logged(fleet)]
        self._judge(Journal(folder / "journal"), fleet, customer, report)
        self._sweep(folder, storage, settings, report)

    def _rows(self, folder: Path) -> Rows:
        if self.database == "sqlite":
            return SqliteRows(folder / "data" / "batchyard.db")
        assert self.postgres is not None
        name = f"chaos_{next(_names)}"
        self.postgres.execute(f"CREATE DATABASE {name}")
        return PostgresRows(self.postgres, name)

    def _roles(self) -> list[str]:
        apart = ["api", *["worker"] * self.workers]
        if self.workers == 1:
            return ["all"]
        return random.Random(f"{self.seed}/roles").choice([apart, apart, ["all"] * self.workers])

    def _audit(self, customer: Customer, report: Report) -> None:
        records: dict[str, Record] = customer.records

        def read(file_id: str) -> str:
            return customer.insist("GET", f"/v1/files/{file_id}/content").text

        found = {batch["id"]: batch for batch in customer.batches()}
        for missing in customer.seen.keys() - found.keys():
            report.problems.append(f"{missing} is lost")
        made = Counter((batch["metadata"] or {}).get("tag", "") for batch in found.values())
        for tag, times in made.items():
            if times > 1 and tag in records and records[tag].errand.keyed:
                report.problems.append(f"{tag} was doubled: its one Idempotency-Key made {times} batches")
        for batch in found.values():
            record = records.get((batch["metadata"] or {}).get("tag", ""))
            report.problems += audit(batch, record, read)
            report.ends[batch["status"]] += 1
            report.lines += batch["request_counts"]["total"]

    def _hear(self, customer: Customer, receiver: Receiver, report: Report) -> None:
        """The end of every batch must be told, and told right. More than once is allowed."""
        ends = {batch["id"]: f"batch.{batch['status']}" for batch in customer.batches()}
        _wait(lambda: ends.keys() <= receiver.told.keys(), STUCK_SECONDS)
        for batch_id, end in ends.items():
            told = receiver.told.get(batch_id, set())
            if told != {end}:
                report.problems.append(f"{batch_id} ended as {end}, and what was told is {sorted(told)}")

    def _judge(self, journal: Journal, fleet: Fleet, customer: Customer, report: Report) -> None:
        tags = Counter((batch["metadata"] or {}).get("tag", "") for batch in customer.seen.values())
        digests: dict[str, str] = {}
        for tag, record in customer.records.items():
            if tags[tag] == 1:  # an errand whose create was sent twice runs twice
                digests |= record.errand.digests
        report.verdict = judge(journal.runs(digests), fleet.excuses)
        if report.verdict.unexcused:
            some = report.verdict.unexcused[:3]
            report.problems.append(f"{len(report.verdict.unexcused)} lines ran again without need: {some}")
        if report.verdict.rerun > report.verdict.bound:
            report.problems.append(f"{report.verdict.rerun} lines ran again, {report.verdict.bound} may have")

    def _sweep(self, folder: Path, storage: Storage, settings: dict[str, str], report: Report) -> None:
        """With a short grace: what nothing names must go, and what is named must be there."""
        short = {"RETENTION_SWEEP_SECONDS": "0.2", "RETENTION_ORPHAN_GRACE_SECONDS": "1"}
        fleet = Fleet(folder, storage, {**settings, **short}, seed=self.seed)
        try:
            fleet.open(["worker"])
            if not _wait(lambda: not storage.ownerless(), _SWEPT_SECONDS):
                report.problems.append(f"blobs without an owner stay: {sorted(storage.ownerless())[:5]}")
        finally:
            fleet.close()
        report.problems += fleet.problems
        if missing := storage.missing():
            report.problems.append(f"blobs are lost: {sorted(missing)[:5]}")
        for table in ("parts", "chunks"):
            if left := storage.rows.query(f"SELECT count(*) FROM {table}")[0][0]:
                report.problems.append(f"{left} {table} are left")


def _logged(fleet: Fleet) -> list[str]:
    return [
        f"{member.name} logged {event}"
        for member in fleet.members
        for event in member.loud()
        if event["event"] != _NO_DATABASE
    ]


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def _until(condition: Callable[[], bool], seconds: float, complaint: str) -> None:
    if not _wait(condition, seconds):
        raise RuntimeError(f"{complaint} after {seconds} s")
