"""Which engine to run, from plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from app.engine import embedded
from app.engine.base import Engine
from app.engine.echo import EchoEngine
from app.engine.media import MediaRules
from app.engine.vllm import VllmEngine
from app.errors import SettingsInvalid

Kind = Literal["vllm", "echo"]

#: What makes the embedded model start fast on two cores, in 1 GiB of cache; flags that follow them win.
EMBEDDED_ARGUMENTS = (
    *("--served-model-name", embedded.MODEL_NAME),
    *("--max-model-len", "2048"),
    *("--kv-cache-memory-bytes", str(1 << 30)),
    "--enforce-eager",
)
#: For an engine that batches share with clients who wait.
PRIORITY_ARGUMENTS = ("--scheduling-policy", "priority")


def engine_builder(
    kind: Kind,
    *,
    model: str | None = None,
    arguments: Sequence[str] = (),
    prioritise: bool = False,
    yielding: bool = False,
    media: MediaRules | None = None,
    echo_delay_seconds: float = 0,
    echo_concurrent: int = 256,
    echo_load_seconds: float = 0,
    echo_journal: Path | None = None,
) -> Callable[[], Engine]:
    """What builds the engine named by `kind`, as often as it is called: SupervisedEngine calls it after each death.

    Without `model`, vLLM runs the embedded one. `prioritise`: clients who wait go before batches, unless `arguments`
    choose another scheduling policy. `yielding`: batches also stand aside inside the engine meanwhile. `media` rules
    what is downloaded for a request. Raises SettingsInvalid when the embedded model has not been prepared.
    """
    if kind == "echo":
        seen: Counter[bytes] = Counter()
        return partial(
            EchoEngine,
            delay_seconds=echo_delay_seconds,
            concurrent=echo_concurrent,
            load_seconds=echo_load_seconds,
            journal=echo_journal,
            media=media,
            seen=seen,
        )
    if prioritise:
        arguments = (*PRIORITY_ARGUMENTS, *arguments)
    if model is None:
        folder = embedded.locate()
        if folder is None:
            raise SettingsInvalid("the embedded model is not prepared: run `make model`, or name a model with --model")
        return partial(
            VllmEngine, model=str(folder), arguments=(*EMBEDDED_ARGUMENTS, *arguments), media=media, yielding=yielding
        )
    return partial(VllmEngine, model=model, arguments=arguments, media=media, yielding=yielding)
