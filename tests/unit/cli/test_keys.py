"""`batchyard keys` on a database of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.domain.key import is_plausible
from tests.acceptance.keys import batchyard, listed, make_key
from tests.unit.cli.test_commands import run


def test_create_prints_the_key_alone_and_once(tmp_path: Path) -> None:
    ended = batchyard("create", "--project", "team", "--name", "nightly", data_dir=tmp_path / "new")
    key, rest = ended.stdout.strip(), ended.stderr
    assert is_plausible(key)
    (row,) = listed(tmp_path / "new")
    assert (row["project"], row["name"], row["revoked_at"], row["quotas"]) == ("team", "nightly", None, {})
    assert row["id"] in rest
    assert key not in rest
    shown = batchyard("list", data_dir=tmp_path / "new").stdout
    assert row["id"] in shown
    assert row["hint"] in shown
    assert key not in shown


def test_create_takes_quotas(tmp_path: Path) -> None:
    make_key(tmp_path, "--open-batches", "3", "--queued-requests", "0", "--requests-per-minute", "60")
    make_key(tmp_path, "--enqueued-tokens", "5000", "--stored-bytes", "1000000000000")
    assert [row["quotas"] for row in listed(tmp_path)] == [
        {"open_batches": 3, "queued_requests": 0, "requests_per_minute": 60},
        {"enqueued_tokens": 5000, "stored_bytes": 1_000_000_000_000},
    ]


def test_list_may_be_of_one_project(tmp_path: Path) -> None:
    for project in ("one", "two"):
        make_key(tmp_path, "--project", project)
    found = json.loads(batchyard("list", "--json", "--project", "two", data_dir=tmp_path).stdout)
    assert [row["project"] for row in found] == ["two"]


def test_revoke_ends_a_key(tmp_path: Path) -> None:
    make_key(tmp_path)
    (row,) = listed(tmp_path)
    assert "is revoked" in batchyard("revoke", row["id"], data_dir=tmp_path).stdout
    assert listed(tmp_path)[0]["revoked_at"] >= row["created_at"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "--project", "a b"), "A project's name has"),
        (("create", "--open-batches", "-1"), "The quota open_batches cannot be -1"),
        (("revoke", "key_none"), "No key with id 'key_none'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals_are_one_line(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_key(tmp_path)
    code, _, said = run("keys", *arguments, "--data-dir", str(tmp_path), monkeypatch=monkeypatch, capsys=capsys)
    assert code == 1
    assert said.startswith(f"error: {says}")
    assert said.count("\n") == 1
    assert len(listed(tmp_path)) == 1


def test_list_of_a_database_that_is_not_there_makes_none(tmp_path: Path) -> None:
    ended = batchyard("list", data_dir=tmp_path / "none")
    assert ended.exit_code == 1
    assert not (tmp_path / "none").exists()
