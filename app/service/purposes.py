"""What a purpose asks of a file, however the file comes in (openai-contract 1.1, 1.2, 3.3)."""

from __future__ import annotations

import msgspec

from app.domain.file import UPLOAD_PURPOSES, Purpose
from app.errors import InvalidRequest
from app.settings import RetentionSettings

_BOM = b"\xef\xbb\xbf"
_NOT_JSONL = "Invalid file format for Batch API. Must be .jsonl"


def parse_purpose(text: str) -> Purpose:
    """The upload purpose of this name. Raises InvalidRequest in OpenAI's words (openai-contract 3.3)."""
    for purpose in UPLOAD_PURPOSES:
        if text == purpose.value:
            return purpose
    names = ", ".join(f"'{purpose.value}'" for purpose in UPLOAD_PURPOSES)
    raise InvalidRequest(f"'{text[:64]}' is not one of [{names}] - 'purpose'", param="purpose")


def check_filename(filename: str, *, purpose: Purpose) -> None:
    """Raises InvalidRequest unless a file of this name may have this purpose.

    A name without an extension passes: the SDK calls raw bytes `upload` (openai-contract 3.3, 8.4).
    """
    if purpose is Purpose.BATCH and "." in filename and not filename.lower().endswith(".jsonl"):
        raise InvalidRequest(_NOT_JSONL)


def check_first_line(head: bytes, *, size_bytes: int) -> None:
    """Raises InvalidRequest unless a batch file of `size_bytes` that begins with `head` begins with a line of JSON.

    For a thread: a first line may be long.
    """
    if not size_bytes:
        raise InvalidRequest(f"{_NOT_JSONL}; the file is empty.")
    text = head.removeprefix(_BOM).lstrip(b" \t\r\n")
    line, ended, _ = text.partition(b"\n")
    # A line longer than what is kept of it: the batch's validation reads the rest.
    cut_off = not ended and size_bytes > len(head)
    fits = line[:1] in b'{["' if cut_off else _is_json(line)
    if line and not fits:
        raise InvalidRequest(f"{_NOT_JSONL}; the first line is not JSON.")


def life_seconds(purpose: Purpose, *, asked: int | None, retention: RetentionSettings) -> int | None:
    """How long a file lives; None until it is deleted. Batch files end by themselves (openai-contract 1.1)."""
    if asked is None and purpose is Purpose.BATCH:
        return retention.batch_file_seconds
    return asked


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
