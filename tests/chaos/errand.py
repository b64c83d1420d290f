"""What is submitted, all of it decided by a seed."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from app.engine.echo import journal_digest

Kind = Literal["plain", "cancel", "bad", "expire", "cut", "loose"]

MAX_LINES = 2000
_KINDS: dict[Kind, int] = {"plain": 10, "cancel": 4, "bad": 2, "expire": 2, "cut": 1, "loose": 1}


@dataclass(frozen=True)
class Errand:
    """One thing that a customer does. `tag` names it within a round and stands in the batch's metadata.

    `share` of the lines have ended when a cancel or an early deadline comes; 0 means at once. The file is sent as so
    many `pieces`, by an Upload where they are more than one; a `keyed` create has an Idempotency-Key.
    """

    tag: str
    kind: Kind
    lines: int
    failing: frozenset[int] = field(repr=False)
    share: float
    delete_input: bool
    pieces: int = 1
    keyed: bool = False

    def custom_id(self, number: int) -> str:
        return f"{self.tag}-{number}"

    def text(self, number: int) -> str:
        """What line `number` says, and what its answer repeats."""
        return f"{self.tag} says {number}"

    def body(self, number: int) -> dict[str, Any]:
        refused = {"temperature": -5} if number in self.failing else {}
        return {"model": "echo", "messages": [{"role": "user", "content": self.text(number)}], **refused}

    @cached_property
    def content(self) -> bytes:
        """The input file."""
        rows = [
            json.dumps({"custom_id": self.custom_id(n), "method": "POST", "url": "/v1/chat/completions"})[:-1]
            + f', "body": {json.dumps(self.body(n))}}}\n'
            for n in range(self.lines)
        ]
        if self.kind == "bad":
            rows.insert(max(1, len(rows) // 2), "{broken\n")  # a broken first line is refused at the upload
        return "".join(rows).encode()

    @cached_property
    def digests(self) -> dict[str, str]:
        """How the engine's journal names each line → its custom_id."""
        return {
            journal_digest(json.dumps(self.body(n)).encode()).decode(): self.custom_id(n) for n in range(self.lines)
        }


def errand(seed: str, number: int) -> Errand:
    """The errand `number` of a round."""
    rng = random.Random(f"{seed}/errand/{number}")
    [kind] = rng.choices(list(_KINDS), weights=list(_KINDS.values()))
    lines = round(math.exp(rng.uniform(0, math.log(MAX_LINES)))) if rng.random() < 0.6 else rng.randint(300, MAX_LINES)
    failing = frozenset(n for n in range(lines) if rng.random() < 0.05) if rng.random() < 0.5 else frozenset()
    return Errand(
        tag=f"e{number}",
        kind=kind,
        lines=lines,
        failing=failing,
        share=rng.choice([0.0, rng.random()]),
        delete_input=rng.random() < 0.25,
        pieces=rng.choice([1, 1, 2, 3]),
        keyed=rng.random() < 0.5,
    )
