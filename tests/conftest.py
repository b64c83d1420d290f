"""Fixtures that several rooms share come from modules of their own."""

from __future__ import annotations

pytest_plugins = ["tests.collection", "tests.databases", "tests.buckets", "tests.faults"]
