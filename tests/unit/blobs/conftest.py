from __future__ import annotations

from pathlib import Path

import pytest

from app.blobs.base import Blobs
from app.blobs.local import LocalBlobs
from tests.buckets import KEYS, TestBucket
from tests.unit.blobs.stores import Store, files, s3_blobs


@pytest.fixture
def aws_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials, as the environment of the service has them."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A blob store, once of each kind."""
    if request.param == "local":
        root = tmp_path / "blobs"
        return Store(LocalBlobs(root), lambda: files(root))
    request.getfixturevalue("aws_keys")
    bucket: TestBucket = request.getfixturevalue("bucket")
    prefix = "yard/one/"
    return Store(
        s3_blobs(bucket), lambda: [name.removeprefix(prefix) for name in (*bucket.objects(), *bucket.uploads())]
    )


@pytest.fixture
def blobs(store: Store) -> Blobs:
    """The store alone."""
    return store.blobs
