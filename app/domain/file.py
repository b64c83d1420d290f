"""Files: what the client sees, and the manifest of segments that holds the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Purpose(StrEnum):
    """Purposes of a File (openai-contract 1.1). `evals` may be sent although the published enum lacks it."""

    ASSISTANTS = "assistants"
    ASSISTANTS_OUTPUT = "assistants_output"
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"
    FINE_TUNE = "fine-tune"
    FINE_TUNE_RESULTS = "fine-tune-results"
    VISION = "vision"
    USER_DATA = "user_data"
    EVALS = "evals"


#: In the order of OpenAI's refusal message (openai-contract 3.3).
UPLOAD_PURPOSES = (
    Purpose.FINE_TUNE,
    Purpose.ASSISTANTS,
    Purpose.BATCH,
    Purpose.USER_DATA,
    Purpose.VISION,
    Purpose.EVALS,
)

#: Purposes whose bytes may be downloaded (openai-contract 1.1).
DOWNLOADABLE_PURPOSES = frozenset(
    {Purpose.BATCH, Purpose.BATCH_OUTPUT, Purpose.FINE_TUNE, Purpose.FINE_TUNE_RESULTS, Purpose.EVALS, Purpose.VISION}
)


@dataclass(frozen=True, slots=True)
class File:
    """One File of a project. Times are Unix seconds; `bytes` is the exact stored size."""

    id: str
    project_id: str
    purpose: Purpose
    filename: str
    bytes: int
    sha256: str | None
    created_at: int
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of a file's bytes under one blob key. `start` is its offset in the file; segments are contiguous from 0."""

    key: str
    start: int
    bytes: int


def overlapping(segments: list[Segment], start: int, end: int) -> list[tuple[Segment, int, int]]:
    """The pieces of `segments` that cover file bytes [start, end): (segment, first byte in it, end byte in it)."""
    pieces = []
    for segment in segments:
        low = max(start, segment.start)
        high = min(end, segment.start + segment.bytes)
        if low < high:
            pieces.append((segment, low - segment.start, high - segment.start))
    return pieces
