from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.errors import SettingsInvalid
from app.offline.place import Kind, place_of


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("-", Kind.PIPE),
        ("a.jsonl", Kind.FILE),
        ("http://host/a", Kind.HTTP),
        ("HTTPS://host:8443/a?b", Kind.HTTP),
        ("s3://bucket/a/b.jsonl", Kind.S3),
        ("/dev/null", Kind.PIPE),
        ("s3:/odd", Kind.FILE),
    ],
)
def test_text_names_a_kind(text: str, kind: Kind) -> None:
    assert place_of(text).kind is kind


@pytest.mark.parametrize(
    "text", ["ftp://host/a", "http://", "s3://bucket", "s3://bucket/", "http://h:x/a", "", "s3:///a"]
)
def test_text_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(SettingsInvalid):
        place_of(text)


def test_shown_leaves_out_what_may_be_secret() -> None:
    assert place_of("https://me:key@host:1/a?sig=key#key").shown == "https://host:1/a"


def test_link_is_resolved_and_a_named_pipe_is_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    assert place_of(str(tmp_path / "link")).path == tmp_path / "real"
    assert place_of(str(tmp_path / "pipe")).kind is Kind.PIPE
