"""Which engine stands behind which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.engine.base import Health
from app.engine.echo import EchoEngine
from app.engine.factory import engine_builder
from app.engine.vllm import VllmEngine
from app.errors import EngineDead, SettingsInvalid

CRASH_ONCE = b'{"model":"echo","messages":[{"role":"user","content":"x"}],"echo":{"crash":1}}'


def test_build_engine_echo_takes_its_knobs() -> None:
    engine = engine_builder("echo", echo_concurrent=3)()
    assert isinstance(engine, EchoEngine)
    assert engine.capacity().concurrent == 3


async def test_engine_builder_echo_remembers_across_rebuilds() -> None:
    build = engine_builder("echo")
    first, second = build(), build()
    assert first is not second
    await first.start()
    await second.start()
    with pytest.raises(EngineDead):
        await first.call("/v1/chat/completions", CRASH_ONCE)
    assert (await second.call("/v1/chat/completions", CRASH_ONCE)).status == 200


def test_build_engine_vllm_loads_nothing_yet() -> None:
    engine = engine_builder("vllm", model="some/model")()
    assert isinstance(engine, VllmEngine)
    assert engine.health() is Health.LOADING


async def test_build_engine_vllm_of_a_missing_folder_is_refused_at_start(tmp_path: Path) -> None:
    engine = engine_builder("vllm", model=str(tmp_path / "none"))()
    with pytest.raises(SettingsInvalid, match="no model"):
        await engine.start()
    await engine.stop()
    assert engine.health() is Health.STOPPED


def test_engine_builder_vllm_without_the_embedded_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATCHYARD_MODELS_DIR", str(tmp_path))
    with pytest.raises(SettingsInvalid, match="make model"):
        engine_builder("vllm")
