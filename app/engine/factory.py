"""Which engine to run, from plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from app.engine import embedded
from app.engine.base import Engine
from app.engine.echo import EchoEngine
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


def engine_builder(
    kind: Kind,
    *,
    model: str | None = None,
    arguments: Sequence[str] = (),
    echo_delay_seconds: float = 0,
    echo_concurrent: int = 256,
    echo_load_seconds: float = 0,
) -> Callable[[], Engine]:
    """What builds the engine named by `kind`, as often as it is called: SupervisedEngine calls it after each death.

    Without `model`, vLLM runs the embedded one. Raises SettingsInvalid when that has not been prepared.
    """
    if kind == "echo":
        seen: Counter[bytes] = Counter()
        return partial(
            EchoEngine,
            delay_seconds=echo_delay_seconds,
            concurrent=echo_concurrent,
            load_seconds=echo_load_seconds,
            seen=seen,
        )
    if model is None:
        folder = embedded.locate()
        if folder is None:
            raise SettingsInvalid("the embedded model is not prepared: run `make model`, or name a model with --model")
        return partial(VllmEngine, model=str(folder), arguments=(*EMBEDDED_ARGUMENTS, *arguments))
    return partial(VllmEngine, model=model, arguments=arguments)


def build_engine(
    kind: Kind,
    *,
    model: str | None = None,
    arguments: Sequence[str] = (),
    echo_delay_seconds: float = 0,
    echo_concurrent: int = 256,
    echo_load_seconds: float = 0,
) -> Engine:
    """One engine of `engine_builder`, for who needs no second: not started, not watched."""
    return engine_builder(
        kind,
        model=model,
        arguments=arguments,
        echo_delay_seconds=echo_delay_seconds,
        echo_concurrent=echo_concurrent,
        echo_load_seconds=echo_load_seconds,
    )()
