"""A customer: submits errands, cancels some, and looks on. What it sees of a batch may only go forward."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.acceptance.wire import MULTIPART, connect, head, multipart
from tests.chaos.errand import Errand, errand

PATIENCE_SECONDS = 90.0
_FIXED = ("id", "created_at", "input_file_id", "endpoint", "completion_window", "metadata")
_AFTER: dict[str, frozenset[str]] = {
    "validating": frozenset({"failed", "in_progress", "finalizing", "cancelling"}),
    "in_progress": frozenset({"finalizing", "expired", "cancelling"}),
    "finalizing": frozenset({"completed"}),
    "cancelling": frozenset({"cancelled"}),
}
TERMINAL = frozenset({"completed", "failed", "expired", "cancelled"})


def reachable(status: str) -> frozenset[str]:
    """What may be seen after `status`, also when something between was not seen."""
    found = {status}
    for following in _AFTER.get(status, frozenset()):
        found |= reachable(following)
    return frozenset(found)


def step_back(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """What went backwards between two sights of a batch; None when nothing did."""
    if after["status"] not in reachable(before["status"]):
        return f"status went from {before['status']} to {after['status']}"
    old, new = before["request_counts"], after["request_counts"]
    if any(new[name] < old[name] for name in ("total", "completed", "failed")) or (
        old["total"] and old["total"] != new["total"]
    ):
        return f"counts went from {old} to {new}"
    for name, value in before.items():
        settled = name in _FIXED or (name.endswith("_at") and name != "expires_at") or before["status"] in TERMINAL
        if settled and value is not None and after[name] != value:
            return f"{name} changed from {value!r} to {after[name]!r}"
    return None


@dataclass
class Record:
    """What the customer knows of one errand. `cancelled`: the service has said `cancelling`; `asked`: it may have."""

    errand: Errand
    asked: bool = False
    cancelled: bool = False
    aged: bool = False
    acted: bool = False
    file_id: str | None = None


@dataclass
class Customer:
    """Runs in threads of its own from `start` on. `url` gives the address of an API that lives, or None."""

    seed: str
    key: str
    url: Callable[[], str | None]
    age: Callable[[str], None]
    at_once: int = 4
    records: dict[str, Record] = field(default_factory=dict)
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unavailable: int = 0

    def __post_init__(self) -> None:
        self._closing = threading.Event()
        self._leaving = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._submit, self._look_on)]
        self._http = httpx2.Client(headers={"authorization": f"Bearer {self.key}"}, timeout=8)
        self._rng = random.Random(f"{self.seed}/customer")

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Submit nothing more; go on looking."""
        self._closing.set()
        self._threads[0].join(PATIENCE_SECONDS * 2)

    def leave(self) -> None:
        """Look no more."""
        self._closing.set()
        self._leaving.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(PATIENCE_SECONDS)
        self._http.close()

    def running(self) -> list[str]:
        """Ids of batches that were not over when last seen."""
        return [name for name, batch in list(self.seen.items()) if batch["status"] not in TERMINAL]

    # --- HTTP ---

    def call(self, method: str, path: str, **options: Any) -> httpx2.Response | None:
        """The answer, None where there was none or a 503; any other answer of 500 and above is a fault."""
        url = self.url()
        if url is None:
            return None
        try:
            reply = self._http.request(method, url + path, **options)
        except httpx2.TransportError:
            return None
        if reply.status_code == 503:
            self.unavailable += 1
            if "retry-after" not in reply.headers:
                self.problems.append(f"{method} {path} answered 503 without Retry-After")
            return None
        if reply.status_code >= 500:
            self.problems.append(f"{method} {path} answered {reply.status_code}: {reply.text[:300]}")
        return reply

    def insist(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Ask until there is an answer."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            reply = self.call(method, path, **options)
            if reply is not None:
                return reply
            time.sleep(0.1)
        raise RuntimeError(f"no answer to {method} {path} for {PATIENCE_SECONDS} s")

    def batches(self) -> list[dict[str, Any]]:
        """All of them, page by page; empty when the service does not answer."""
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            reply = self.call("GET", f"/v1/batches?limit=100{after}")
            if reply is None:
                return []
            page = reply.json()
            found += page["data"]
            if not page["has_more"]:
                return found
            after = f"&after={page['last_id']}"

    # --- submitting ---

    def _submit(self) -> None:
        number = 0
        try:
            while not self._closing.is_set():
                if len(self.running()) >= self.at_once:
                    self._closing.wait(0.05)
                    continue
                self._run(errand(self.seed, number))
                number += 1
                self._closing.wait(self._rng.uniform(0, 0.3))
        except Exception as exc:  # a thread's death must reach the report
            self.problems.append(f"the customer gave up: {exc!r}")

    def _run(self, task: Errand) -> None:
        record = self.records[task.tag] = Record(task)
        if task.kind == "cut":
            self._cut_upload(task)
            return
        record.file_id = self._upload(task) if task.pieces == 1 else self._upload_in_parts(task)
        if task.kind == "loose":
            self.insist("DELETE", f"/v1/files/{record.file_id}")
            return
        batch = self._create(task, record.file_id)
        self.seen.setdefault(batch["id"], batch)
        if task.delete_input:
            self.insist("DELETE", f"/v1/files/{record.file_id}")

    def _upload(self, task: Errand) -> str:
        body = multipart(("purpose", None, b"batch"), ("file", "input.jsonl", task.content))
        return str(self.insist("POST", "/v1/files", content=body, headers=MULTIPART).raise_for_status().json()["id"])

    def _upload_in_parts(self, task: Errand) -> str:
        """A part whose answer got lost is sent again, and stands twice; which one counts is ours to say."""
        content, key = task.content, {"idempotency-key": f"{task.tag}-upload"}
        asked = {"filename": "input.jsonl", "purpose": "batch", "bytes": len(content), "mime_type": "application/jsonl"}
        upload = self.insist("POST", "/v1/uploads", json=asked, headers=key).raise_for_status().json()
        size = -(-len(content) // task.pieces)
        parts = []
        for start in range(0, len(content), size):
            body = multipart(("data", "part", content[start : start + size]))
            reply = self.insist("POST", f"/v1/uploads/{upload['id']}/parts", content=body, headers=MULTIPART)
            parts.append(reply.raise_for_status().json()["id"])
        done = self.insist("POST", f"/v1/uploads/{upload['id']}/complete", json={"part_ids": parts}, headers=key)
        return str(done.raise_for_status().json()["file"]["id"])

    def listen(self, url: str) -> None:
        """Have the end of every batch told to `url`."""
        types = [f"batch.{status}" for status in sorted(TERMINAL)]
        asked = {"name": "chaos", "url": url, "event_types": types}
        key = {"idempotency-key": "listen"}
        self.insist("POST", "/v1/webhook_endpoints", json=asked, headers=key).raise_for_status()

    def _create(self, task: Errand, file_id: str | None) -> dict[str, Any]:
        """Once: an attempt without an answer may have made it. With a key, only the service must see to that."""
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        headers = {"idempotency-key": task.tag} if task.keyed else {}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            reply = self.call("POST", "/v1/batches", json=body | {"metadata": {"tag": task.tag}}, headers=headers)
            if reply is not None:
                made: dict[str, Any] = reply.raise_for_status().json()
                return made
            time.sleep(0.3)
            if task.keyed:
                continue
            for batch in self.batches():
                if batch["metadata"] == {"tag": task.tag}:
                    return batch
        raise RuntimeError(f"{task.tag} could not be created for {PATIENCE_SECONDS} s")

    def _cut_upload(self, task: Errand) -> None:
        url = self.url()
        body = multipart(("purpose", None, b"batch"), ("file", "input.jsonl", task.content * 3))
        fields = {"Authorization": f"Bearer {self.key}", "Content_Length": str(len(body))}
        if url is not None:
            try:
                with connect(url) as stream:
                    stream.sendall(head("POST", "/v1/files", **fields, Content_Type=MULTIPART["content-type"]))
                    stream.sendall(body[: len(body) // 2])
            except OSError:
                return

    # --- looking on ---

    def _look_on(self) -> None:
        try:
            while not self._leaving.is_set():
                for batch in self.batches():
                    self._look_at(batch)
                self._leaving.wait(0.1)
        except Exception as exc:  # a thread's death must reach the report
            self.problems.append(f"the onlooker gave up: {exc!r}")

    def _look_at(self, batch: dict[str, Any]) -> None:
        before = self.seen.get(batch["id"], batch)
        back = step_back(before, batch)
        if back is not None:
            self.problems.append(f"{batch['id']}: {back}")
        self.seen[batch["id"]] = batch
        record = self.records.get((batch["metadata"] or {}).get("tag", ""))
        if record is None or record.acted or record.errand.kind not in ("cancel", "expire"):
            return
        counts = batch["request_counts"]
        ended = counts["completed"] + counts["failed"]
        if batch["status"] in TERMINAL or ended < record.errand.share * counts["total"]:
            return
        if record.errand.kind == "cancel":
            self._cancel(batch["id"], record)
        elif batch["status"] == "in_progress":
            self.age(batch["id"])
            record.acted = record.aged = True

    def _cancel(self, batch_id: str, record: Record) -> None:
        record.asked = True
        reply = self.call("POST", f"/v1/batches/{batch_id}/cancel")
        if reply is not None:
            record.acted = True
            record.cancelled = reply.status_code == 200
