"""What must hold of the collected tests as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises UsageError where tests share an id: of those, a run on several processes runs one and reports no loss."""
    shared = doubled(item.nodeid for item in items)
    if shared:
        raise pytest.UsageError("several tests have one id: " + ", ".join(shared))


def doubled(ids: Iterable[str]) -> list[str]:
    """The ids that stand more than once, in the order of their first place."""
    return [name for name, count in Counter(ids).items() if count > 1]
