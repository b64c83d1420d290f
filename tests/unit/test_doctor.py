"""Each broken set-up is found and explained; none makes the doctor fall over."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from typer.testing import CliRunner

from app import doctor
from app.cli import cli, process
from app.doctor import Finding, examine
from app.errors import SettingsInvalid
from app.settings import Settings, load
from app.store.db import Database
from tests.buckets import KEYS, TestBucket

ALL = {"python", "settings", "keys", "port", "data folder", "blob folder", "disk", "database", "engine"}


def examined(folder: Path, environ: dict[str, str] | None = None, **flags: Any) -> dict[str, Finding]:
    """Findings by subject, for an echo server on a free port in `folder` unless `flags` say else."""
    named = {"data_dir": folder, "server.port": 0, "engine.kind": "echo"}
    named |= {name.replace("__", "."): value for name, value in flags.items()}
    return {finding.subject: finding for finding in examine(lambda: load(named, environ=environ or {}))}


def wrong(findings: dict[str, Finding]) -> set[str]:
    return {subject for subject, finding in findings.items() if finding.wrong}


def test_examine_finds_nothing_wrong_with_an_empty_folder(tmp_path: Path) -> None:
    findings = examined(tmp_path)
    assert wrong(findings) == set()
    assert set(findings) == {
        "python",
        "settings",
        "keys",
        "port",
        "data folder",
        "blob folder",
        "disk",
        "database",
        "engine",
    }
    assert list(tmp_path.iterdir()) == [], "looking must not change anything"


def test_examine_stops_at_wrong_settings() -> None:
    def load_wrong() -> Any:
        raise SettingsInvalid("server.port is odd")

    findings = examine(load_wrong)
    assert [finding.subject for finding in findings] == ["python", "settings"]
    assert findings[-1].wrong
    assert "server.port is odd" in findings[-1].line()


def test_examine_says_who_cannot_have_the_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = examined(tmp_path, server__port=port)["port"]
    assert found.wrong
    assert f"127.0.0.1:{port}" in found.says
    assert "--port" in found.advice
    assert not examined(tmp_path, server__port=port)["port"].wrong


def test_examine_refuses_a_host_that_is_no_address(tmp_path: Path) -> None:
    findings = examined(tmp_path, server__host="no.such.host.invalid", server__port=1, server__api_keys="k" * 32)
    assert findings["port"].wrong
    assert "not an address" in findings["port"].says


@pytest.fixture
def nobody() -> Generator[None]:
    """Not root while the test runs: root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    yield
    os.seteuid(0)


@pytest.mark.usefixtures("nobody")
def test_examine_finds_a_folder_that_is_not_writable() -> None:
    findings = examined(Path("/usr/batchyard"))
    assert {"data folder", "blob folder"} <= wrong(findings)
    assert findings["data folder"].says == "/usr is not writable for this user"


@pytest.mark.usefixtures("nobody")
def test_examine_survives_a_folder_that_cannot_be_entered() -> None:
    with TemporaryDirectory() as name:
        Path(name).chmod(0o000)
        assert "data folder" in wrong(examined(Path(name) / "data" / "more"))
        Path(name).chmod(0o700)


def test_examine_finds_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    findings = examined(tmp_path / "file")
    assert {"data folder", "blob folder"} <= wrong(findings)
    assert "is a file" in findings["data folder"].says


def test_examine_finds_a_full_disk(tmp_path: Path) -> None:
    assert wrong(examined(tmp_path, blobs__min_free_bytes=1 << 60)) == {"disk"}


def migrated(folder: Path) -> sqlite3.Connection:
    process.migrate(Settings(data_dir=folder))
    return sqlite3.connect(folder / "batchyard.db")


def test_examine_accepts_a_database_of_this_release(tmp_path: Path) -> None:
    migrated(tmp_path).close()
    assert examined(tmp_path)["database"].says == f"answers, at revision {Database.head()}"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ("UPDATE alembic_version SET version_num = '0000'", "at revision 0000, this release needs"),
        ("UPDATE alembic_version SET version_num = 'ffff'", "at revision ffff, this release needs"),
    ],
    ids=["behind", "ahead"],
)
def test_examine_finds_a_database_of_another_release(tmp_path: Path, spoil: str, says: str) -> None:
    connection = migrated(tmp_path)
    with connection:
        connection.execute(spoil)
    connection.close()
    found = examined(tmp_path)["database"]
    assert found.wrong
    assert says in found.says
    assert "batchyard migrate" in found.advice


def test_examine_finds_a_database_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "batchyard.db").write_bytes(b"this is no database" * 100)
    assert wrong(examined(tmp_path)) == {"database"}


def test_examine_finds_a_database_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"postgresql+asyncpg://me:secret-word@127.0.0.1:{nobody.getsockname()[1]}/x"
        findings = examined(tmp_path, store__url=url)
    assert wrong(findings) == {"database"}
    assert "secret-word" not in findings["database"].line()


def test_examine_finds_a_database_url_of_an_unknown_kind(tmp_path: Path) -> None:
    assert wrong(examined(tmp_path, store__url="mysql://x")) == {"database"}


def test_examine_notes_short_keys_without_showing_them(tmp_path: Path) -> None:
    found = examined(tmp_path, server__api_keys="hunter2")["keys"]
    assert found.advice
    assert not found.wrong
    assert "hunter2" not in found.line()
    assert not examined(tmp_path, server__api_keys="k" * 32)["keys"].advice


def test_examine_finds_a_reachable_address_without_a_key(tmp_path: Path) -> None:
    found = examined(tmp_path, server__host="0.0.0.0", server__port=0)
    assert wrong(found) == {"keys"}
    assert "no API key is set" in found["keys"].line()


def test_examine_finds_keys_in_the_database(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["keys", "create", "--data-dir", str(tmp_path)]).exit_code == 0
    found = examined(tmp_path, server__host="0.0.0.0", server__port=0)
    assert not wrong(found)
    assert "in the database" in found["keys"].line()


def test_examine_notes_a_variable_that_means_nothing(tmp_path: Path) -> None:
    assert "BATCHYARD_PROT" in examined(tmp_path, {"BATCHYARD_PROT": "1"})["settings"].says


@pytest.mark.parametrize(
    ("model", "says"),
    [("{tmp}/nothing", "there is no folder"), ("{tmp}", "has no config.json"), ("org/name", "HF_HUB_OFFLINE is set")],
    ids=["no-folder", "no-config", "offline"],
)
def test_model_that_cannot_be_loaded_is_wrong(
    model: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    found = doctor._model(load({"engine.model": model.format(tmp=tmp_path)}, environ={}).settings)
    assert found.wrong
    assert says in found.says


def test_model_in_a_folder_or_the_local_cache_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "models--org--name").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for model in (str(tmp_path), "org/name"):
        found = doctor._model(load({"engine.model": model}, environ={}).settings)
        assert not found.wrong
        assert not found.advice


def test_model_that_will_be_downloaded_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    found = doctor._model(load({"engine.model": "org/name"}, environ={}).settings)
    assert found.advice
    assert not found.wrong


def test_embedded_model_that_is_missing_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_MODELS_DIR", str(tmp_path))
    monkeypatch.setattr("app.engine.embedded._PACKAGE", "no_such_package_here")
    found = doctor._model(Settings())
    assert found.wrong
    assert "make setup" in found.advice


def test_embedded_model_that_is_not_unpacked_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_MODELS_DIR", str(tmp_path))
    found = doctor._model(Settings())
    assert found.wrong
    assert "make model" in found.advice


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a module `vllm` with the given text in front of the real one, for this process and its children."""

    def put(text: str) -> None:
        package = tmp_path / "fake" / "vllm"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    return put


def test_vllm_that_cannot_be_imported_is_wrong_with_its_reason(interpreter: Callable[[str], None]) -> None:
    interpreter("raise ImportError('libcuda.so.1: cannot open shared object file')")
    assert doctor._import_failure() == "ImportError: libcuda.so.1: cannot open shared object file"


def test_vllm_that_is_not_installed_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.doctor._vllm_version", lambda: None)
    findings = examined(tmp_path, engine__kind="vllm")
    assert findings["engine"].wrong
    assert "--engine echo" in findings["engine"].advice


def test_vllm_of_another_release_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.doctor._vllm_version", lambda: "0.9.1")
    found = examined(tmp_path, engine__kind="vllm")["engine"]
    assert found.wrong
    assert "vllm>=0.32,<0.34" in found.advice


def test_role_api_needs_no_engine(tmp_path: Path) -> None:
    findings = examined(tmp_path, engine__kind="vllm", server__role="api")
    assert not findings["engine"].wrong
    assert "model" not in findings


def test_examine_makes_a_finding_of_a_check_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> Any:
        raise ZeroDivisionError("odd machine")

    monkeypatch.setattr("app.doctor.CHECKS", (("disk", broken),))
    assert (
        examined(tmp_path)["disk"].line()
        == "WRONG disk: the check failed: ZeroDivisionError: odd machine -> report this"
    )


def test_doctor_command_prints_a_line_a_check_and_exits_by_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "app", "doctor", "--engine", "echo", "--port", "0", "--data-dir", str(tmp_path)]
    fine = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert fine.returncode == 0, fine.stdout + fine.stderr
    assert all(line.startswith(("ok ", "note ")) for line in fine.stdout.splitlines())
    (tmp_path / "batchyard.db").write_bytes(b"no database" * 100)
    broken = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert broken.returncode == 1
    assert "WRONG database" in broken.stdout
    assert broken.stderr == ""


def test_bucket_is_tried(tmp_path: Path, bucket: TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    place: dict[str, Any] = {"blobs__s3_endpoint": bucket.endpoint, "blobs__s3_allow_http": True}
    good = examined(tmp_path, blobs__url=f"s3://{bucket.name}/a", **place)
    assert wrong(good) == set()
    assert good["bucket"].says == f"s3://{bucket.name}/a takes and gives bytes"
    assert "blob folder" not in good
    assert bucket.objects() == []
    bad = examined(tmp_path, blobs__url="s3://not-there", **place)
    assert wrong(bad) == {"bucket"}
    assert "NoSuchBucket" in bad["bucket"].says
    place["blobs__s3_endpoint"] = "http://127.0.0.1:1"
    away = examined(tmp_path, blobs__url="s3://not-there", **place)
    assert wrong(away) == {"bucket"}
    assert "does not answer" in away["bucket"].says


def test_bucket_without_static_keys_asks_for_a_lifecycle_rule(
    tmp_path: Path, bucket: TestBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    bucket.ask("PUT", "?acl", acl="public-read-write")
    place: dict[str, Any] = {"blobs__s3_endpoint": bucket.endpoint, "blobs__s3_allow_http": True}
    found = examined(tmp_path, blobs__url=f"s3://{bucket.name}", **place)
    assert "lifecycle rule" in found["bucket"].advice
