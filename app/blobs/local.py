"""Blobs as files in one folder (the contract: app/blobs/base.py).

A key is a path below the root. A blob is written under a random name in `.tmp` of the same file system, fsynced, and
renamed to its key; the folders that gained a name are fsynced. So a key names the whole blob or nothing, whatever
crashed. No key begins with a dot, so unfinished writes are never mistaken for blobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import aiofiles
from aiofiles.threadpool.binary import AsyncFileIO

from app.blobs.base import BLOCK_BYTES, BlobInfo, BlobWriter
from app.blobs.key import is_key
from app.errors import BlobMissing, StorageFull, Unavailable

_T = TypeVar("_T")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNFINISHED = ".tmp"


class LocalBlobs:
    """A blob store in the folder `path`, made on first use. `check` complains below `min_free_bytes` of free disk."""

    def __init__(self, path: Path, *, min_free_bytes: int = 0) -> None:
        self._root = path.absolute()
        self._unfinished = self._root / _UNFINISHED
        self._min_free_bytes = min_free_bytes

    @asynccontextmanager
    async def writer(self, key: str) -> AsyncGenerator[BlobWriter]:
        draft = _Draft(self._unfinished / secrets.token_hex(16), self._path(key), self._root)
        committed = False
        try:
            await _to_the_end(_in_thread(draft.create))
            writer = _Writer(draft)
            yield writer
            await writer.flush()
            await _to_the_end(_in_thread(draft.commit))
            committed = True
        finally:
            # Also when the commit went through, and this task was cancelled meanwhile.
            if not committed:
                await _to_the_end(_in_thread(draft.discard))

    async def put(self, key: str, data: bytes) -> None:
        async with self.writer(key) as writer:
            await writer.write(data)

    async def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes]:
        path = self._path(key)
        left = None if end is None else end - start
        with _translated(key):
            file = await _opened(path)
            try:
                await _to_the_end(file.seek(start))
                while left is None or left > 0:
                    block = await _to_the_end(file.read(BLOCK_BYTES if left is None else min(left, BLOCK_BYTES)))
                    if not block:
                        break
                    left = None if left is None else left - len(block)
                    yield block
            finally:
                await _to_the_end(file.close())
        _check_whole(key, left)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        path = self._path(key)
        with _translated(key):
            data = await asyncio.to_thread(_read_range, path, start, end)
        _check_whole(key, None if end is None else end - start - len(data))
        return data

    async def delete(self, key: str) -> None:
        await _in_thread(partial(_remove, self._path(key), self._root))

    async def scan(self, prefix: str = "") -> AsyncGenerator[BlobInfo]:
        folder, _, _ = prefix.rpartition("/")
        waiting = [folder]
        while waiting:
            found, folders = await _in_thread(partial(_listing, self._root, waiting.pop()))
            waiting.extend(name for name in folders if name.startswith(prefix) or prefix.startswith(f"{name}/"))
            for info in found:
                if info.key.startswith(prefix):
                    yield info

    async def sweep_unfinished(self, *, older_than_seconds: float) -> int:
        return await _in_thread(partial(_sweep, self._unfinished, older_than_seconds))

    async def check(self) -> None:
        key = f"check/{secrets.token_hex(16)}"
        data = secrets.token_bytes(16)
        await self.put(key, data)
        try:
            if await self.get(key) != data:
                raise Unavailable("The blob folder does not give back what was written.")
        finally:
            await self.delete(key)
        free = await self.free_bytes()
        if free < self._min_free_bytes:
            raise StorageFull(f"{free >> 20} MiB of disk are free; {self._min_free_bytes >> 20} MiB are asked for.")

    async def free_bytes(self) -> int:
        return await _in_thread(partial(_free_bytes, self._root))

    def _path(self, key: str) -> Path:
        if not is_key(key):
            raise ValueError(f"not a blob key: {key!r}")
        return self._root / key


class _Writer:
    """Gathers small writes, so that a trip to a thread carries at least BLOCK_BYTES."""

    def __init__(self, draft: _Draft) -> None:
        self._draft = draft
        self._waiting: list[bytes | bytearray | memoryview] = []
        self._waiting_bytes = 0

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        if len(data) == 0:
            return
        # A mutable buffer may change before it is written.
        self._waiting.append(data if isinstance(data, bytes) or len(data) >= BLOCK_BYTES else bytes(data))
        self._waiting_bytes += memoryview(data).nbytes
        if self._waiting_bytes >= BLOCK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if waiting:
            await _in_thread(partial(self._draft.append, waiting))


class _Draft:
    """A blob that is being written. Every method runs in a thread."""

    def __init__(self, temporary: Path, final: Path, root: Path) -> None:
        self._temporary = temporary
        self._final = final
        self._root = root
        self._file: BinaryIO | None = None
        self._renamed = False

    def create(self) -> None:
        self._temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = open(self._temporary, "xb", opener=partial(os.open, mode=0o600))  # noqa: SIM115  # commit or discard closes it

    def append(self, blocks: list[bytes | bytearray | memoryview]) -> None:
        assert self._file is not None
        self._file.writelines(blocks)

    def commit(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._rename()
        _fsync_folder(self._final.parent)

    def _rename(self) -> None:
        for attempt in range(8):
            try:
                _make_folders(self._final.parent, self._root)
                self._temporary.rename(self._final)
            except FileNotFoundError:
                # A delete at the same moment found the folder empty and removed it.
                if attempt == 7 or not self._temporary.exists():
                    raise
            else:
                self._renamed = True
                return

    def discard(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()
        if self._renamed:
            _remove(self._final, self._root)


def _make_folders(folder: Path, root: Path) -> None:
    if folder.is_dir():
        return
    if folder != root:
        _make_folders(folder.parent, root)
    folder.mkdir(mode=0o700, parents=folder == root, exist_ok=True)
    _fsync_folder(folder.parent)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_range(path: Path, start: int, end: int | None) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read() if end is None else file.read(end - start)


def _remove(path: Path, root: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    for folder in path.parents:
        if folder == root:
            return
        try:
            folder.rmdir()
        except OSError:  # not empty, or gone
            return


def _listing(root: Path, folder: str) -> tuple[list[BlobInfo], list[str]]:
    found: list[BlobInfo] = []
    folders: list[str] = []
    try:
        entries = os.scandir(root / folder)
    except (FileNotFoundError, NotADirectoryError):
        return found, folders
    with entries:
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
                continue
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat(follow_symlinks=False)
                if is_key(name):
                    found.append(BlobInfo(name, stat.st_size, stat.st_mtime))
    return found, folders


def _sweep(unfinished: Path, older_than_seconds: float) -> int:
    removed = 0
    if not unfinished.is_dir():
        return removed
    before = _file_system_time(unfinished) - older_than_seconds
    for path in unfinished.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                path.unlink()
                removed += 1
    return removed


def _file_system_time(folder: Path) -> float:
    """What a file written now would be dated: this machine's clock may be another, and wrong."""
    with tempfile.TemporaryFile(dir=folder) as file:  # stays empty: the disk may be full, and this makes room
        return os.fstat(file.fileno()).st_mtime


def _free_bytes(root: Path) -> int:
    existing = next(path for path in (root, *root.parents) if path.exists())
    return shutil.disk_usage(existing).free


@contextlib.contextmanager
def _translated(key: str | None = None) -> Generator[None]:
    """OSError as this service's errors. Neither path nor key reaches the client."""
    try:
        yield
    except FileNotFoundError as exc:
        if key is None:
            raise Unavailable("The blob folder is not usable.") from exc
        raise BlobMissing(f"no blob {key}") from exc
    except OSError as exc:
        if exc.errno in _FULL:
            raise StorageFull("There is no room left for files.") from exc
        raise Unavailable("The blob folder is not usable.") from exc


async def _in_thread(work: Callable[[], _T]) -> _T:
    with _translated():
        return await asyncio.to_thread(work)


async def _to_the_end(work: Awaitable[_T]) -> _T:
    """Wait for `work` also when this task is cancelled meanwhile; then the cancel goes on.

    A thread cannot be cancelled: who goes on without it closes a file under it, or loses the file that it opens.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _ended(running)
        raise


async def _ended(running: asyncio.Future[_T]) -> None:
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    if not running.cancelled():
        running.exception()  # seen; the cancel is what the caller must know


async def _opened(path: Path) -> AsyncFileIO:
    opening = asyncio.ensure_future(_open(path))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await _ended(opening)
        if not opening.cancelled() and opening.exception() is None:
            await _to_the_end(opening.result().close())
        raise


async def _open(path: Path) -> AsyncFileIO:
    return await aiofiles.open(path, "rb", buffering=0)


def _check_whole(key: str, missing_bytes: int | None) -> None:
    if missing_bytes:
        raise BlobMissing(f"blob {key} ends {missing_bytes} bytes early")
