"""The parts of the GPU script that need no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gpu
from bench.engine import CASES
from bench.report import Row

WHERE = {"cpu": "c", "cores": 2, "memory_gib": 1.0, "system": "s", "load_before": 0.0, "device": "a GPU"}


@pytest.mark.parametrize(("shape", "billions"), [*zip(gpu.SHAPES, (1, 8), strict=True)], ids=["1b", "8b"])
def test_dummy_models_are_as_large_as_their_names(shape: gpu.Shape, billions: int) -> None:
    assert shape.parameters(vocabulary=49152) / 1e9 == pytest.approx(billions, rel=0.1)
    assert shape.hidden % shape.heads == shape.heads % shape.kv_heads == 0


def test_model_folder_has_a_tokenizer_and_no_weights(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (source / name).write_text("{}", encoding="utf-8")
    (source / "config.json").write_text('{"vocab_size": 7, "eos_token_id": 2, "hidden_size": 9}', encoding="utf-8")
    made = gpu.write_model(gpu.TINY[0], tmp_path / "made", tokenizer=source)
    assert sorted(path.name for path in made.iterdir()) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    assert (config["vocab_size"], config["eos_token_id"], config["hidden_size"]) == (7, 2, 128)


def test_gpu_section_without_time_or_with_a_failure_says_so() -> None:
    def fails() -> list[Row]:
        raise RuntimeError("the engine did not load")

    measured = [Row("x", "s", (1.0,))]
    assert gpu.run("a", lambda: measured, seconds_left=1000) == (measured, False)
    late, missed = gpu.run("a", lambda: measured, seconds_left=1)
    assert (late[0].runs, late[0].note, missed) == ((), "no time was left", True)
    broken, missed = gpu.run("a", fails, seconds_left=1000)
    assert (broken[0].note, missed) == ("failed: RuntimeError: the engine did not load", True)
    assert "| a | not measured |" in gpu.markdown(broken, where=WHERE)


def test_every_file_of_the_gpu_script_has_its_share() -> None:
    assert set(gpu.SHARES) == {case.name for case in CASES}
