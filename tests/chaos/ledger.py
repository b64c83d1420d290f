"""What must be true of every batch when all is over: each accepted line once, counts, sums, the right end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.chaos.customer import TERMINAL, Record
from tests.chaos.errand import Errand

#: Gives the text of a file.
Read = Callable[[str], str]
_UNRUN = {"batch_cancelled": "cancelled", "batch_expired": "expired"}


def audit(batch: dict[str, Any], record: Record | None, read: Read) -> list[str]:
    """What is wrong with a batch, in plain sentences."""
    if record is None:
        return [f"{batch['id']} belongs to no errand"]
    name = f"{record.errand.tag} ({batch['id']})"
    if batch["status"] not in TERMINAL:
        return [f"{name} is stuck in {batch['status']}: {batch['request_counts']}"]
    wrong = [*_end(batch, record)]
    if batch["in_progress_at"] is None:
        empty = batch["output_file_id"] is batch["error_file_id"] is None and batch["request_counts"]["total"] == 0
        wrong += [] if empty else ["it was never accepted, and has lines or files"]
    else:
        rows = {kind: _rows(batch[f"{kind}_file_id"], read) for kind in ("output", "error")}
        wrong += [*_lines(record.errand, rows), *_counts(batch, record.errand, rows), *_usage(batch, rows["output"])]
        wrong += _unrun(batch, rows["error"])
    return [f"{name}: {sentence}" for sentence in wrong]


def _end(batch: dict[str, Any], record: Record) -> list[str]:
    status, kind = batch["status"], record.errand.kind
    allowed = {"completed"}
    if kind == "bad":
        allowed = {"failed"}
    elif record.cancelled:
        allowed = {"cancelled"}
    elif record.asked:
        allowed = {"completed", "cancelled"}
    elif record.aged:
        allowed = {"completed", "expired"}
    return [] if status in allowed else [f"ended as {status} instead of {' or '.join(sorted(allowed))}"]


def _rows(file_id: str | None, read: Read) -> list[dict[str, Any]]:
    return [] if file_id is None else [json.loads(line) for line in read(file_id).splitlines()]


def _lines(errand: Errand, rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    found = Counter(row["custom_id"] for side in rows.values() for row in side)
    expected = {errand.custom_id(number): number for number in range(errand.lines)}
    wrong = []
    if lost := expected.keys() - found.keys():
        wrong.append(f"{len(lost)} lines lost, such as {min(lost)}")
    if doubled := [name for name, count in found.items() if count > 1]:
        wrong.append(f"{len(doubled)} lines doubled, such as {min(doubled)}")
    if strange := found.keys() - expected.keys():
        wrong.append(f"{len(strange)} lines that were never sent, such as {min(strange)}")
    for kind, side in rows.items():
        numbers = [expected[row["custom_id"]] for row in side if row["custom_id"] in expected]
        if numbers != sorted(numbers):
            wrong.append(f"the {kind} file is not in input order")
    for row in rows["output"]:
        said = row["response"]["body"]["choices"][0]["message"]["content"]
        number = expected.get(row["custom_id"])
        if number is not None and (said != errand.text(number) or number in errand.failing):
            wrong.append(f"{row['custom_id']} got another line's answer: {said}")
    return wrong


def _counts(batch: dict[str, Any], errand: Errand, rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    counts = batch["request_counts"]
    failed = [row for row in rows["error"] if row["response"] is not None]
    ran = {row["custom_id"] for row in failed}
    refused = {errand.custom_id(number) for number in errand.failing}
    whole = batch["status"] == "completed"
    stated = {"total": errand.lines, "completed": len(rows["output"]), "failed": len(failed)}
    wrong = []
    if counts != stated:
        wrong.append(f"the counts are {counts}, the files say {stated}")
    if not ran <= refused or (whole and ran != refused):
        wrong.append(f"{len(ran ^ refused)} of the lines that must fail did not, or others did")
    return wrong


def _usage(batch: dict[str, Any], output: list[dict[str, Any]]) -> list[str]:
    sums = {
        name: sum(row["response"]["body"]["usage"][theirs] for row in output)
        for name, theirs in (
            ("input_tokens", "prompt_tokens"),
            ("output_tokens", "completion_tokens"),
            ("total_tokens", "total_tokens"),
        )
    }
    stated = {name: (batch["usage"] or {}).get(name, 0) for name in sums}
    return [] if stated == sums else [f"the usage is {stated}, the rows sum up to {sums}"]


def _unrun(batch: dict[str, Any], error: list[dict[str, Any]]) -> list[str]:
    codes = {row["error"]["code"] for row in error if row["error"] is not None}
    strange = {code for code in codes if _UNRUN.get(code) != batch["status"]}
    return [f"a {batch['status']} batch has rows with {sorted(strange)}"] if strange else []
