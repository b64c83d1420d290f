"""What a test needs of the machine it runs on."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def without(reason: str) -> NoReturn:
    """Skip the test, for `reason`; in CI, where nothing may be missing, fail it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
