"""The check of all tests' ids, on a suite in which two share one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import collection

SUITE = """
import pytest

class Twin(pytest.Item):
    def runtest(self):
        pass

def pytest_collect_file(file_path, parent):
    return Pair.from_parent(parent, path=file_path) if file_path.name == "test_pair.py" else None

class Pair(pytest.File):
    def collect(self):
        return [Twin.from_parent(self, name=name) for name in NAMES]
"""


def collect(folder: Path, names: list[str]) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(f"NAMES = {names!r}\n{SUITE}")
    (folder / "test_pair.py").touch()
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", collection.__name__, str(folder)]
    root = Path(collection.__file__).parents[1]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=50)


def test_collect_tests_that_share_an_id(tmp_path: Path) -> None:
    ended = collect(tmp_path, ["one", "twin", "twin"])
    assert ended.returncode != 0
    assert "several tests have one id" in ended.stderr
    assert "::twin" in ended.stderr
    assert "::one" not in ended.stderr


def test_collect_tests_with_ids_of_their_own(tmp_path: Path) -> None:
    ended = collect(tmp_path, ["one", "two"])
    assert ended.returncode == 0, ended.stderr
