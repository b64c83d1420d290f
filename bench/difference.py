"""Where two rows of a result differ, ours and that of vLLM's own run-batch, and which differences are by design."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from app.domain.endpoint import BATCH_ENDPOINTS

# Made anew for each answer, on both sides.
_IDS = frozenset({"id", "request_id"})
_TIMES = frozenset({"created"})
_HEX = re.compile("[0-9a-f]{8,}")
_NOW_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two rows differ: a dotted path, and both values."""

    path: str
    ours: Any
    theirs: Any


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[Difference]:
    """Every place where two values differ; of ids and times only their form counts."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            mine, its = ours.get(key, "(absent)"), theirs.get(key, "(absent)")
            if key in _IDS or key in _TIMES:
                mine, its = _form(mine), _form(its)
            yield from differences(mine, its, f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for at, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{path}[{at}]")
    elif type(ours) is not type(theirs) or ours != theirs:
        yield Difference(path.removeprefix("."), ours, theirs)


def _form(value: Any) -> Any:
    """An id with its random digits left out; a time of these hours as a word."""
    if isinstance(value, str):
        return _HEX.sub("#", value)
    return "now" if isinstance(value, int) and abs(value - time.time()) < _NOW_SECONDS else value


@dataclass(frozen=True, slots=True)
class Explanation:
    """A difference by design: why, and whether two rows that differ (ours, theirs) differ in this way only."""

    reason: str
    holds: Callable[[dict[str, Any], dict[str, Any]], bool]


def _refusal(row: dict[str, Any]) -> str:
    """The sentence of a line that was refused before the model saw it; "" for any other row."""
    response = row["response"]
    error = row["error"]
    return error if response["status_code"] == 400 and response["body"] is None and isinstance(error, str) else ""


def _sentences(ours: str, theirs: str) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    """Both refuse the line before the model sees it, in these words (regular expressions), and nothing else differs."""

    def holds(mine: dict[str, Any], its: dict[str, Any]) -> bool:
        words = re.fullmatch(ours, _refusal(mine)) and re.fullmatch(theirs, _refusal(its))
        return bool(words) and [at.path for at in differences(mine, its)] == ["error"]

    return holds


def _answered_here_only(mine: dict[str, Any], its: dict[str, Any]) -> bool:
    """We answer; vLLM does not know the endpoint."""
    refused = re.fullmatch(r"URL \S+ was used\. Supported endpoints: .*", _refusal(its))
    return refused is not None and mine["error"] is None and mine["response"]["status_code"] == 200


#: custom_id of a line whose rows differ by design → why, and the check.
EXPLAINED = {
    "no-such-endpoint": Explanation(
        "each sentence lists the endpoints of its own",
        _sentences(
            f".*{re.escape(', '.join(BATCH_ENDPOINTS))}.", r"URL /v1/no/such was used\. Supported endpoints: .*"
        ),
    ),
    "unserved-endpoint": Explanation(
        "the sentence is ours",
        _sentences(r"The model does not support the endpoint '\S+'\.", r"Model does not support endpoint: \S+"),
    ),
    "streamed": Explanation(
        "the sentence is ours; the line counts as malformed",
        _sentences(r"Line \d+: .* Streaming is not supported .*", "Request must not be sent in stream mode"),
    ),
    "response": Explanation("an endpoint of ours only", _answered_here_only),
    "message": Explanation("an endpoint of ours only", _answered_here_only),
}
#: Lines that are malformed here, and not for vLLM: they make the exit code 1.
MALFORMED_HERE = frozenset({"streamed"})
