"""The command line: flags become settings, refusals are one line, nothing shows a secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import app
from app.cli import cli, main
from app.cli.options import for_a_terminal, settings_from
from app.errors import SettingsInvalid
from app.settings import knobs

KEY = "sk-very-secret-value"


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for knob in knobs():
        monkeypatch.delenv(knob.variable, raising=False)


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `batchyard ARGUMENTS`."""
    monkeypatch.setattr("sys.argv", ["batchyard", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def rows(*arguments: str) -> dict[str, dict[str, str]]:
    result = CliRunner().invoke(cli, ["settings", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)}


def test_settings_as_json_has_every_knob_with_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BATCHYARD_SERVER_PORT", "9000")
    config = tmp_path / "c.toml"
    config.write_text("[worker]\npart_seconds = 2\n")
    found = rows("--config", str(config), "--set", "log.level=debug")
    assert set(found) == {knob.name for knob in knobs()}
    assert (found["server.port"]["value"], found["server.port"]["source"]) == ("9000", "BATCHYARD_SERVER_PORT")
    assert (found["worker.part_seconds"]["value"], found["worker.part_seconds"]["source"]) == ("2", "file")
    assert (found["log.level"]["value"], found["log.level"]["source"]) == ("debug", "flag")
    assert found["server.host"]["source"] == "default"
    assert all(row["meaning"] for row in found.values())


@pytest.mark.parametrize("how", ["--json", "--set=log.level=info"], ids=["json", "table"])
def test_settings_never_shows_a_secret(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_SERVER_API_KEYS", KEY)
    monkeypatch.setenv("BATCHYARD_STORE_URL", f"postgresql+asyncpg://me:{KEY}@host/db")
    result = CliRunner().invoke(cli, ["settings", how])
    assert result.exit_code == 0
    assert KEY not in result.output
    assert "********" in result.output


def test_settings_as_a_table_names_what_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_PROT", "1")
    result = CliRunner().invoke(cli, ["settings"])
    assert "BATCHYARD_PROT is set but means nothing here" in result.stdout


def test_settings_as_markdown_does_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CliRunner().invoke(cli, ["settings", "--markdown"]).stdout
    monkeypatch.setenv("BATCHYARD_SERVER_PORT", "9000")
    assert CliRunner().invoke(cli, ["settings", "--markdown"]).stdout == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("settings", "--set", "server.port"), "write NAME=VALUE"),
        (("settings", "--set", "server.prot=1"), "did you mean server.port?"),
        (("serve", "--port", "99999"), "server.port 99999 (from a flag)"),
        (("serve", "--engine", "magic"), "input should be 'vllm' or 'echo'"),
        (("serve", "--engine", "echo", "--max-model-len", "1"), "unknown argument --max-model-len"),
        (("serve", "--host", "0.0.0.0"), "no API key is set"),
        (("serve", "--config", "/no/such.toml"), "cannot be read"),
        (("worker", "--engine", "echo", "extra"), "unknown argument extra"),
        (("migrate", "--set", "store.url=mysql://x"), "mysql"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_settings_end_with_2_and_one_line(
    arguments: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = run(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert said.startswith("error: ")
    assert says in said
    assert said.count("\n") == 1


def test_version_and_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version", monkeypatch=monkeypatch, capsys=capsys) == (0, f"batchyard {app.version()}\n", "")
    code, said, _ = run("--help", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    for command in ("serve", "worker", "migrate", "settings", "doctor", "submit", "watch"):
        assert command in said


def test_migrate_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("migrate", "--data-dir", str(tmp_path / "new"))
    first = run(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert first[0] == 0
    assert first[1].endswith("it was empty\n")
    assert run(*arguments, monkeypatch=monkeypatch, capsys=capsys)[1].endswith("already\n")


def test_settings_from_hands_further_arguments_to_vllm_behind_configured_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_ENGINE_ARGUMENTS", "--seed,1")
    loaded = settings_from(None, None, further=["--seed", "2", "--enforce-eager"], engine__model="m")
    assert loaded.settings.engine.arguments == ["--seed", "1", "--seed", "2", "--enforce-eager"]
    assert loaded.sources["engine.arguments"] == "flag"
    assert loaded.sources["engine.model"] == "flag"


def test_serve_tells_its_flags_from_those_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def serve(loaded: Any, **options: Any) -> int:
        seen.update(loaded=loaded, **options)
        return 7

    monkeypatch.setattr("app.cli.process.serve", serve)
    flags = ["--max-model-len", "8192", "--port", "9001", "--enforce-eager", "--rope-scaling={}", "--model", "m"]
    result = CliRunner().invoke(cli, ["serve", *flags, "--no-migrate"])
    assert result.exit_code == 7
    engine = seen["loaded"].settings.engine
    assert engine.arguments == ["--max-model-len", "8192", "--enforce-eager", "--rope-scaling={}"]
    assert engine.model == "m"
    assert seen["loaded"].settings.server.port == 9001
    assert seen["migrate"] is False
    assert seen["announcer"] is None, "no terminal, no hints"


def test_every_usual_flag_reaches_its_setting() -> None:
    command = typer.main.get_command(cli)
    serve = {flag for parameter in command.commands["serve"].params for flag in parameter.opts}  # type: ignore[attr-defined]
    for flag in ("--host", "--port", "--data-dir", "--engine", "--model", "--role", "--config", "--set", "--hints"):
        assert flag in serve


def test_for_a_terminal_leaves_a_chosen_format_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert for_a_terminal(settings_from(None, None)).settings.log.format == "console"
    assert for_a_terminal(settings_from(None, ["log.format=json"])).settings.log.format == "json"


def test_submit_refuses_a_file_without_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    code, _, said = run("submit", str(path), monkeypatch=monkeypatch, capsys=capsys)
    assert code == 1
    assert "name the endpoint with --endpoint" in said


def test_submit_without_a_server_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"url": "/v1/chat/completions"}\n')
    arguments = ("submit", str(path), "--base-url", "http://127.0.0.1:9/v1")
    code, _, said = run(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 1
    assert said.startswith("error: no answer from http://127.0.0.1:9/v1: ")


def test_settings_from_refuses_a_set_without_a_value() -> None:
    with pytest.raises(SettingsInvalid, match="write NAME=VALUE"):
        settings_from(None, ["log.level"])
