"""The command line of `run-batch`: flags become a plan, refusals are one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app import telemetry
from app.cli import main
from app.cli.commands import cli
from app.errors import SettingsInvalid
from tests.unit.offline.scenes import line, rows, write


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `batchyard run-batch ARGUMENTS`."""
    monkeypatch.setattr("sys.argv", ["batchyard", "run-batch", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_command_is_there() -> None:
    assert "run-batch" in {command.name for command in cli.registered_commands}


@pytest.mark.parametrize(("content", "code"), [(line("a"), 0), (b"{", 1)], ids=["good", "malformed"])
def test_exit_code_says_whether_every_line_was_well_formed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, code: int
) -> None:
    write(tmp_path / "in", [content])
    given = ("-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--engine", "echo")
    found, out, err = run(*given, monkeypatch=monkeypatch, capsys=capsys)
    assert (found, out) == (code, "")
    assert "1 lines: " in err
    assert len(rows(tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("-i", "missing", "-o", "out"), "error: the input missing cannot be read: No such file or directory\n"),
        (("-i", "in", "-o", "in"), "error: the output in is the input: it would be overwritten\n"),
        (("-i", "in", "-o", "no/out"), "error: the folder of the output no/out does not exist\n"),
        (("-i", "in", "-o", "out", "--format", "x"), "error: --format x: it is vllm or openai\n"),
        (("-i", "bad", "-o", "out", "--strict"), "error: --strict: 1 of 1 lines are malformed. Line 1: "),
        (("-i", "in", "-o", "out", "--max-model-len", "9"), "error: unknown argument --max-model-len: "),
    ],
    ids=str,
)
def test_refusal_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in", [line("a")])
    write(tmp_path / "bad", [b"{"])
    code, out, err = run(*given, "--engine", "echo", monkeypatch=monkeypatch, capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(message)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "bad"}


def test_missing_flag_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-i", "x", monkeypatch=monkeypatch, capsys=capsys)[0] == 2


def test_metrics_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    url = telemetry.serve_metrics("127.0.0.1", 0)
    families = {family.name for family in text_string_to_metric_families(httpx2.get(url).text)}
    assert "batch_lines" in families
    taken = int(url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(SettingsInvalid, match="metrics cannot be served on"):
        telemetry.serve_metrics("127.0.0.1", taken)


def test_data_folder_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in", [line("a")])
    assert run("-i", "in", "-o", "out", "--engine", "echo", monkeypatch=monkeypatch, capsys=capsys)[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}
    assert json.loads((tmp_path / "out").read_bytes())["custom_id"] == "a"
