"""Where a knob's value comes from, and what is said when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.errors import SettingsInvalid
from app.settings import PREFIX, Settings, knobs, load

KEY = "sk-very-secret-value"


def file_with(folder: Path, text: str) -> Path:
    path = folder / "batchyard.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(
    flags: dict[str, Any] | None = None, config: Path | None = None, *, environ: dict[str, str] | None = None
) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        load(flags, config, environ=environ or {})
    return caught.value.message


def test_load_without_anything_gives_defaults_and_says_so() -> None:
    loaded = load(environ={})
    assert loaded.settings == Settings()
    assert set(loaded.sources) == {knob.name for knob in knobs()}
    assert set(loaded.sources.values()) == {"default"}


def test_load_prefers_flag_then_environment_then_file(tmp_path: Path) -> None:
    config = file_with(tmp_path, 'data_dir = "/from/file"\n[server]\nport = 1\nhost = "::1"\nstop_seconds = 7\n')
    environ = {"BATCHYARD_SERVER_PORT": "2", "BATCHYARD_SERVER_HOST": "localhost"}
    loaded = load({"server.port": 3}, config, environ=environ)
    assert loaded.settings.server.port == 3
    assert loaded.settings.server.host == "localhost"
    assert loaded.settings.server.stop_seconds == 7
    assert loaded.settings.data_dir == Path("/from/file")
    assert loaded.sources["server.port"] == "flag"
    assert loaded.sources["server.host"] == "BATCHYARD_SERVER_HOST"
    assert loaded.sources["server.stop_seconds"] == "file"
    assert loaded.sources["data_dir"] == "file"
    assert loaded.sources["log.level"] == "default"


def test_load_takes_the_file_that_the_environment_names(tmp_path: Path) -> None:
    config = file_with(tmp_path, "[limits]\nbatch_max_lines = 5\n")
    assert load(environ={"BATCHYARD_CONFIG": str(config)}).settings.limits.batch_max_lines == 5


@pytest.mark.parametrize("knob", knobs(), ids=lambda knob: knob.name)
def test_load_reaches_every_knob_by_each_way(knob: Any, tmp_path: Path) -> None:
    settings = Settings()
    shaped = {
        "server.api_keys": KEY,
        "engine.arguments": "--a,--b",
        "limits.completion_windows": "1h,any",
        "blobs.url": "s3://bucket/prefix",
        "blobs.s3_endpoint": "https://s3.lan:9000",
        "worker.port": "9000",
    }
    usual = "something" if knob.value(settings) is None else str(knob.value(settings))
    text = shaped.get(knob.name, usual)
    room, _, leaf = knob.name.rpartition(".")
    table = f"[{room}]\n" if room else ""
    config = file_with(tmp_path, f'{table}{leaf} = "{text}"\n')
    for source, loaded in {
        "flag": load({knob.name: text}, environ={}),
        knob.variable: load(environ={knob.variable: text}),
        "file": load(config=config, environ={}),
    }.items():
        assert loaded.sources[knob.name] == source
        assert knob.value(loaded.settings) == knob.value(load({knob.name: text}, environ={}).settings)


def test_every_knob_says_what_it_means_and_defaults_fit_their_own_rules() -> None:
    Settings.model_validate(Settings().model_dump())
    for knob in knobs():
        assert len(knob.meaning) > 10, knob.name
        assert knob.variable.startswith(PREFIX)
    assert [knob.name for knob in knobs() if knob.secret] == ["server.api_keys"]


@pytest.mark.parametrize(
    ("text", "items"),
    [("a,b", ["a", "b"]), ('["a", "b,c"]', ["a", "b,c"]), (" a , ", ["a"]), ("", [])],
    ids=["commas", "json", "blanks", "empty"],
)
def test_load_reads_lists_as_commas_or_json(text: str, items: list[str]) -> None:
    assert load(environ={"BATCHYARD_ENGINE_ARGUMENTS": text}).settings.engine.arguments == items


def test_load_reports_every_wrong_knob_with_its_source() -> None:
    message = refusal({"engine.kind": "magic"}, environ={"BATCHYARD_SERVER_PORT": "http"})
    assert "server.port 'http' (from BATCHYARD_SERVER_PORT): input should be a valid integer" in message
    assert "engine.kind 'magic' (from a flag): input should be 'vllm' or 'echo'" in message


@pytest.mark.parametrize(
    "environ",
    [
        {"BATCHYARD_SERVER_API_KEYS": f'["{KEY}", 1]'},
        {"BATCHYARD_SERVER_API_KEYS": f'["{KEY}"'},
        {"BATCHYARD_SERVER_API_KEYS": f'["{KEY}", " "]'},
        {"BATCHYARD_SERVER_API_KEYS": KEY, "BATCHYARD_SERVER_PORT": "x"},
        {"BATCHYARD_ENGINE_ARGUMENTS": f'["--hf-token", "{KEY}"'},
    ],
    ids=["wrong-type", "half-json", "blank-key", "other-knob", "arguments"],
)
def test_load_never_shows_a_secret_in_a_refusal(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load(environ=environ)
    assert KEY not in caught.value.message
    assert caught.value.__cause__ is None
    assert PREFIX in caught.value.message


def test_load_refuses_a_blank_key_because_it_would_open_the_door() -> None:
    assert "an API key is blank" in refusal(environ={"BATCHYARD_SERVER_API_KEYS": '[""]'})


def test_load_suggests_the_knob_that_was_meant(tmp_path: Path) -> None:
    assert "did you mean server.port?" in refusal({"server.prot": 1})
    message = refusal(config=file_with(tmp_path, "[server]\nhots = 'x'\n"))
    assert message == "there is no setting server.hots (from the settings file); did you mean server.host?"
    assert "batchyard settings" in refusal({"qqqq": 1})


def test_load_names_variables_that_mean_nothing_without_refusing_them() -> None:
    # Kubernetes sets such names for a service called batchyard.
    environ = {"BATCHYARD_SERVICE_HOST": "10.0.0.1", "BATCHYARD_PORT": "tcp://10.0.0.1:8000", "OTHER": "x"}
    assert load(environ=environ).unknown == ("BATCHYARD_PORT", "BATCHYARD_SERVICE_HOST")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server\n", "not valid TOML"),
        ("server = 1\n", "server must be a table: [server]"),
        ("[nosuch]\na = 1\n", "there is no setting nosuch.a"),
    ],
    ids=["broken", "not-a-table", "unknown-table"],
)
def test_load_explains_a_wrong_file(text: str, says: str, tmp_path: Path) -> None:
    assert says in refusal(config=file_with(tmp_path, text))


def test_load_explains_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(config=tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refusal(config=tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("host", "only"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)],
)
def test_loopback_only_says_whether_others_can_connect(host: str, only: bool) -> None:
    assert load({"server.host": host}, environ={}).settings.loopback_only is only


def test_load_refuses_a_heartbeat_too_slow_for_the_lease() -> None:
    message = refusal({"worker.heartbeat_seconds": 8})
    assert "worker.heartbeat_seconds must be at most half of worker.lease_seconds" in message


def test_settings_cannot_be_changed_and_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHYARD_SERVER_PORT", "1")
    settings = Settings()
    assert settings.server.port == 8000
    with pytest.raises(ValidationError):
        settings.server.port = 1  # type: ignore[misc]


def test_store_and_blobs_live_in_the_data_directory_unless_told(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.store_url == f"sqlite+aiosqlite:///{tmp_path}/batchyard.db"
    assert settings.blob_path == tmp_path / "blobs"
    told = load({"store.url": "postgresql+asyncpg://h/d", "blobs.path": "/b"}, environ={}).settings
    assert told.store_url == "postgresql+asyncpg://h/d"
    assert told.blob_path == Path("/b")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("server.api_keys", [KEY, KEY], "********, ********"),
        ("server.api_keys", [], ""),
        ("store.url", "postgresql+asyncpg://me:p@ss@db/x", "postgresql+asyncpg://me:********@db/x"),
        ("store.url", "sqlite+aiosqlite:////d/b.db", "sqlite+aiosqlite:////d/b.db"),
        ("store.url", None, ""),
        (
            "engine.arguments",
            ["--hf-token", KEY, "--api-key=" + KEY, "--seed", "1"],
            '["--hf-token", "********", "--api-key=********", "--seed", "1"]',
        ),
        ("limits.mixed_models", True, "true"),
    ],
    ids=["keys", "no-keys", "url", "file-url", "unset", "arguments", "bool"],
)
def test_shown_hides_secrets(name: str, value: Any, shown: str) -> None:
    knob = next(knob for knob in knobs() if knob.name == name)
    assert knob.shown(value) == shown
