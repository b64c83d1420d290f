"""A program from PyPI in an environment of its own, pinned by `requirements-NAME.txt`, kept in the user's cache.

Nothing of it reaches .venv: what it needs may contradict what the service needs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
#: What of this process's environment a program may see; the rest might point it elsewhere.
_INHERITED = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_STAMP = "installed"


def cache() -> Path:
    """Where the environments are kept: the user's cache folder, as the XDG specification has it."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "batchyard" / "clients"


def pinned() -> list[str]:
    """The programs that have a lock, by distribution name."""
    return sorted(path.stem.removeprefix("requirements-") for path in FOLDER.glob("requirements-*.txt"))


@dataclass(frozen=True, slots=True)
class Program:
    """One distribution by name; `environment` is its virtual environment."""

    name: str
    environment: Path

    @classmethod
    def named(cls, name: str) -> Program:
        """The program as its lock has it, installed or not. Another lock or Python is another environment."""
        digest = hashlib.sha256(f"{sys.version_info[:2]}".encode() + _lock(name).read_bytes()).hexdigest()
        return cls(name, cache() / f"{name}-{digest[:12]}")

    @property
    def installed(self) -> bool:
        return (self.environment / _STAMP).exists()

    @property
    def version(self) -> str:
        """As its lock pins it."""
        start = f"{self.name}=="
        (line,) = [line for line in _lock(self.name).read_text().splitlines() if line.startswith(start)]
        return line.removeprefix(start).split()[0].rstrip("\\")

    def install(self) -> Program:
        """Make the environment unless it stands. Two at once: one waits for the other."""
        self.environment.parent.mkdir(parents=True, exist_ok=True)
        with _alone(self.environment.with_suffix(".lock")):
            if not self.installed:
                _run([sys.executable, "-m", "venv", "--clear", str(self.environment)])
                options = ["--disable-pip-version-check", "--quiet", "--no-deps", "--require-hashes"]
                _run([self.script("python"), "-m", "pip", "install", *options, "-r", str(_lock(self.name))])
                (self.environment / _STAMP).touch()
        return self

    def script(self, name: str) -> str:
        """The path of an executable in the environment."""
        return str(self.environment / "bin" / name)

    def run(self, *command: str, cwd: Path, environment: Mapping[str, str], seconds: float = 120) -> str:
        """Run an executable of the environment with `environment` and little else; its standard output.

        Fails the test when it ends with another code than 0. Its home is `cwd`: what it keeps is kept there.
        """
        given = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        given |= {"HOME": str(cwd), "XDG_CONFIG_HOME": str(cwd / ".config"), "NO_COLOR": "1", "COLUMNS": "200"}
        ended = subprocess.run(
            [self.script(command[0]), *command[1:]],
            cwd=cwd,
            env=given | dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert ended.returncode == 0, f"{' '.join(command)} ended with {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended.stdout


def _lock(name: str) -> Path:
    return FOLDER / f"requirements-{name}.txt"


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(command)} ended with {ended.returncode}\n{ended.stdout}{ended.stderr}"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
