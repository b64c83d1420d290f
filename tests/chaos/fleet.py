"""The processes of a service, and a supervisor that notices what died or froze and puts it right again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.journal import Excuse
from tests.chaos.storage import Storage

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-chaos-0b6d3f"
LEASE_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.5
#: How long whatever froze itself stays so.
FREEZE_SECONDS = 1.5 * LEASE_SECONDS
RESTART_SECONDS = 0.3
#: Sooner after a death no other worker can have begun its lines: the lease was extended up to a heartbeat before.
_LOOK_SECONDS = LEASE_SECONDS - HEARTBEAT_SECONDS - 0.3
#: Fast, so that much happens within a round; blobs without an owner outlive every freeze.
SETTINGS = {
    "ENGINE_KIND": "echo",
    "ENGINE_ECHO_DELAY_SECONDS": "0.05",
    "ENGINE_ECHO_CONCURRENT": "25",
    "ENGINE_WINDOW": "40",
    "WORKER_POLL_SECONDS": "0.1",
    "WORKER_PART_SECONDS": "0.2",
    "WORKER_LEASE_SECONDS": str(LEASE_SECONDS),
    "WORKER_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
    "WORKER_CHUNK_MAX_LINES": "150",
    "WEBHOOKS_ALLOW_PRIVATE_ADDRESSES": "true",
    "WEBHOOKS_ALLOW_HTTP": "true",
    "WEBHOOKS_POLL_SECONDS": "0.1",
    "WEBHOOKS_TIMEOUT_SECONDS": "1",
    "WEBHOOKS_RETRY_FIRST_SECONDS": "0.3",
    "WEBHOOKS_RETRY_MAX_SECONDS": "2",
    "RETENTION_SWEEP_SECONDS": "0.5",
    "RETENTION_ORPHAN_GRACE_SECONDS": "15",
    "SERVER_STOP_SECONDS": "10",
    "SERVER_PORT": "0",
    "SERVER_API_KEYS": KEY,
    "LOG_FORMAT": "json",
}


@dataclass
class Member:
    """One process, through all its lives. `role` is `all`, `api` or `worker`."""

    name: str
    role: str
    log: Path
    environment: Mapping[str, str]
    popen: subprocess.Popen[bytes] | None = None
    url: str | None = None
    failpoint: str = ""
    expected: set[int] = field(default_factory=set)
    restart_at: float | None = None
    next_failpoint: str = ""
    frozen_at: int | None = None
    thaw_at: float | None = None
    freezes_all: bool = False
    durable: frozenset[str] = frozenset()
    wanted: bool = True
    _read_from: int = 0

    def start(self) -> None:
        """A new life, with `next_failpoint` armed."""
        self.failpoint, self.next_failpoint = self.next_failpoint, ""
        self.expected, self.url, self.restart_at, self.frozen_at, self.thaw_at = set(), None, None, None, None
        self.forget()
        arguments = ["worker"] if self.role == "worker" else ["serve", "--role", self.role]
        with self.log.open("ab") as stream:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "app", *arguments],
                cwd=ROOT,
                env={**self.environment, "BATCHYARD_DEBUG_FAILPOINT": self.failpoint},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    def forget(self) -> None:
        """This life is over: what it logged is no word of the next."""
        self._read_from = self.log.stat().st_size if self.log.exists() else 0

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    def alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def frozen(self) -> bool:
        """SIGSTOP has taken hold."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def send(self, number: signal.Signals) -> None:
        if self.alive():
            os.kill(self.pid, number)

    def listening(self) -> str | None:
        """The URL of its API, once it listens in this life."""
        if self.url is None and self.role != "worker" and self.alive():
            with self.log.open("rb") as stream:
                stream.seek(self._read_from)
                for line in stream:
                    if b'"listening"' in line and line.endswith(b"\n"):
                        self.url = json.loads(line)["base_url"].removesuffix("/v1")
        return self.url if self.alive() and not self.frozen() else None

    def has_started(self) -> bool:
        """In this life it had found its database."""
        with self.log.open("rb") as stream:
            stream.seek(self._read_from)
            return any(b'"worker_started"' in line or b'"listening"' in line for line in stream)

    def fired(self) -> bool:
        """Its failpoint has been reached in this life."""
        with self.log.open("rb") as stream:
            stream.seek(self._read_from)
            return any(b'"failpoint_fired"' in line for line in stream)

    def all_fired(self) -> list[str]:
        """The failpoints that it reached, over all lives."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [json.loads(line)["failpoint"] for line in lines if '"failpoint_fired"' in line]

    def loud(self) -> list[dict[str, Any]]:
        """Everything at level error or above, and every line that is no event, over all lives."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else []:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"level": "error", "event": line}
            if event.get("level") in ("error", "critical") or "exception" in event:
                found.append(event)
        return found


class Fleet:
    """Members under a supervisor thread. `excuses` are the mishaps so far, as the journal's judge wants them."""

    def __init__(self, folder: Path, storage: Storage, settings: Mapping[str, str], *, seed: str) -> None:
        self._folder = folder
        self._storage = storage
        own = {f"BATCHYARD_{name}": value for name, value in {**SETTINGS, **settings}.items()}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BATCHYARD_")}
        self._environment = {**inherited, **own}
        self._rng = random.Random(f"{seed}/fleet")
        self.members: list[Member] = []
        self.excuses: list[Excuse] = []
        self.problems: list[str] = []
        self.outage = threading.Event()
        self._back_at = float("-inf")
        self._end = threading.Event()
        self._lock = threading.RLock()
        self._durable: frozenset[str] = frozenset()
        self._looked_at = time.monotonic_ns()
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def open(self, roles: list[str]) -> None:
        for role in roles:
            self.add(role)
        self._thread.start()

    def add(self, role: str) -> Member:
        name = f"{role}{len(self.members)}"
        member = Member(name, role, self._folder / f"{name}.log", self._environment)
        member.start()
        with self._lock:
            self.members.append(member)
        return member

    def live(self, *roles: str) -> list[Member]:
        """Members that run and are neither frozen nor about to die."""
        with self._lock:
            return [m for m in self.members if (not roles or m.role in roles) and m.alive() and m.frozen_at is None]

    def whole(self) -> bool:
        """All who should run do, have started, and are not frozen."""
        with self._lock:
            wanted = [member for member in self.members if member.wanted]
            return all(member.alive() and member.frozen_at is None and member.has_started() for member in wanted)

    def url(self) -> str | None:
        urls = [url for member in self.live("all", "api") if (url := member.listening()) is not None]
        return self._rng.choice(urls) if urls else None

    # --- mishaps ---

    def kill(self, members: list[Member], *, restart_seconds: float) -> None:
        """SIGKILL at one moment."""
        begin = time.monotonic_ns()
        with self._lock:
            for member in members:
                member.expected.add(-signal.SIGKILL)
                member.send(signal.SIGKILL)
            for member in members:
                assert member.popen is not None
                member.popen.wait(20)
                member.restart_at = time.monotonic() + restart_seconds
        self._excuse("kill", members, begin)

    def freeze(self, member: Member, seconds: float) -> None:
        """SIGSTOP now, SIGCONT by the supervisor."""
        with self._lock:
            member.frozen_at, member.thaw_at = time.monotonic_ns(), time.monotonic() + seconds
            member.send(signal.SIGSTOP)
            self._froze(member)

    def end(self, member: Member, *, restart_seconds: float | None, failpoint: str = "") -> None:
        """SIGTERM; it must end well. Started again with `failpoint`, or not at all."""
        begin, durable = time.monotonic_ns(), self.durable()
        with self._lock:
            member.expected.add(0)
            member.wanted = False
        member.send(signal.SIGTERM)
        assert member.popen is not None
        try:
            member.popen.wait(30)
        except subprocess.TimeoutExpired:
            self.problems.append(f"{member.name} did not end within 30 s of SIGTERM")
            member.expected.add(-signal.SIGKILL)
            member.send(signal.SIGKILL)
        with self._lock:
            self._judge_death(member)
            member.forget()
            self.excuses.append(Excuse("end", member.pid, begin, time.monotonic_ns(), durable))
            if restart_seconds is not None:
                member.next_failpoint, member.wanted = failpoint, True
                member.restart_at = time.monotonic() + restart_seconds

    def database_was_away(self, begin: int, durable: frozenset[str]) -> None:
        self.excuses.append(Excuse("outage", None, begin, time.monotonic_ns() + _ns(2 * LEASE_SECONDS), durable))
        self._back_at = time.monotonic()

    def durable(self) -> frozenset[str]:
        """What is committed now; while the database is away, what was when last seen: that excuses more."""
        try:
            self._durable = self._storage.durable()
        except Exception as exc:  # drivers say so in many ways
            if not self.outage.is_set():
                raise RuntimeError("the database does not answer") from exc
        return self._durable

    def _durable_at(self, moment: int) -> frozenset[str]:
        """What was durable at `moment`, or less: nobody has made lines again before a lease could lapse."""
        before = self._durable
        found = self.durable()
        return found if time.monotonic_ns() - moment < _ns(_LOOK_SECONDS) else before

    # --- the end ---

    def calm(self, seconds: float) -> None:
        """Wait until all run and none is frozen."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.whole():
                return
            time.sleep(0.05)
        self.problems.append(f"the fleet did not come up again within {seconds} s")

    def close(self) -> None:
        """SIGTERM to all; each must end well."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(20)
        running = [member for member in self.members if member.alive()]
        for member in running:
            member.send(signal.SIGCONT)
            member.send(signal.SIGTERM)
        for member in running:
            assert member.popen is not None
            try:
                code = member.popen.wait(30)
            except subprocess.TimeoutExpired:
                code = None
                member.send(signal.SIGKILL)
                member.popen.wait()
            if code != 0 and not (code == -signal.SIGTERM and not member.has_started()):
                self.problems.append(f"{member.name} ended with {code} after SIGTERM")

    # --- the supervisor ---

    def _supervise(self) -> None:
        try:
            while not self._end.wait(0.02):
                with self._lock:
                    looked_at = time.monotonic_ns()
                    for member in self.members:
                        self._mind(member)
                    self._looked_at = looked_at
        except Exception as exc:  # a thread's death must reach the report
            self.problems.append(f"the supervisor gave up: {exc!r}")

    def _mind(self, member: Member) -> None:
        now = time.monotonic()
        if not member.alive():
            if member.restart_at is None and member.wanted:
                self._judge_death(member)
                member.restart_at = now + RESTART_SECONDS
            if member.restart_at is not None and now >= member.restart_at and not self.outage.is_set():
                member.start()
        elif member.frozen_at is None and member.frozen():
            member.frozen_at, member.thaw_at = self._looked_at, now + FREEZE_SECONDS
            self._froze(member)
        elif member.thaw_at is not None and now >= member.thaw_at:
            self._thaw(member)

    def _froze(self, member: Member) -> None:
        """A process that froze inside a transaction may hold up everybody else's heartbeat as well."""
        assert member.frozen_at is not None
        member.durable = self._durable_at(member.frozen_at)
        member.freezes_all = self._storage.blocked()

    def _thaw(self, member: Member) -> None:
        assert member.frozen_at is not None
        pid, end = None if member.freezes_all else member.pid, time.monotonic_ns() + _ns(LEASE_SECONDS)
        self.excuses.append(Excuse("freeze", pid, member.frozen_at, end, member.durable))
        member.frozen_at = member.thaw_at = None
        member.send(signal.SIGCONT)

    def _judge_death(self, member: Member) -> None:
        assert member.popen is not None
        code = member.popen.returncode
        early = code == -signal.SIGTERM and not member.has_started()  # before it listened to signals
        if code in member.expected or (early and 0 in member.expected):
            return
        if code == -signal.SIGKILL and "=kill" in member.failpoint:
            self._excuse(member.failpoint, [member], self._looked_at)  # it lived then
        elif code == 1 and self._database_away_lately() and not member.has_started():
            pass  # it says so, and a supervisor tries again
        else:
            self.problems.append(f"{member.name} died with {code}")

    def _database_away_lately(self) -> bool:
        return self.outage.is_set() or time.monotonic() - self._back_at < 30

    def _excuse(self, what: str, members: list[Member], begin: int) -> None:
        end, durable = time.monotonic_ns(), self._durable_at(begin)
        self.excuses += [Excuse(what, member.pid, begin, end, durable) for member in members]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
