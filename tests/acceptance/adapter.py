"""A LoRA adapter of the test's own: small and by chance, strong enough that the model says other things with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
from safetensors.numpy import save_file

_RANK = 8
_SCALE = 2.0


def make_adapter(folder: Path, *, model: Path) -> Path:
    """Write an adapter for two projections of every layer of `model` (a folder) to `folder`."""
    config = json.loads((model / "config.json").read_text())
    hidden = config["hidden_size"]
    width = hidden // config["num_attention_heads"]
    outputs = {"q_proj": hidden, "v_proj": width * config["num_key_value_heads"]}
    chance = numpy.random.default_rng(7)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, output in outputs.items():
            base = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("lora_A", (_RANK, hidden)), ("lora_B", (output, _RANK))):
                values = chance.normal(0, _SCALE / shape[1] ** 0.5, shape)
                weights[f"{base}.{part}.weight"] = values.astype(numpy.float32)
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": _RANK,
        "lora_alpha": _RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(outputs),
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    return folder
