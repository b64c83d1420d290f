from __future__ import annotations

import pytest

from app.domain.file import UPLOAD_PURPOSES, Purpose
from app.domain.upload import MIME_TYPES, takes_mime_type


@pytest.mark.parametrize("purpose", UPLOAD_PURPOSES)
def test_purpose_takes_what_its_table_says(purpose: Purpose) -> None:
    for others in MIME_TYPES.values():
        for mime_type in others:
            assert takes_mime_type(purpose, mime_type) is (mime_type in MIME_TYPES.get(purpose, others))


@pytest.mark.parametrize("text", ["TEXT/PLAIN", " text/plain ", "text/plain; charset=utf-8", "text/plain;a=b;c=d"])
def test_case_and_parameters_do_not_matter(text: str) -> None:
    assert takes_mime_type(Purpose.BATCH, text)


@pytest.mark.parametrize("text", ["", "jsonl", "text/", "/plain", "text/pl ain", "text/plain/x", "a" * 200 + "/b"])
def test_what_is_no_mime_type_is_none_for_any_purpose(text: str) -> None:
    for purpose in UPLOAD_PURPOSES:
        assert not takes_mime_type(purpose, text)
