"""Durability: an append-only journal and snapshots, for a store that survives `kill -9`.

A write is acknowledged after the journal's `fsync`. Writes that arrive while one is running are
written together by the next: one file descriptor, one writer thread at a time, in the order of
versions. A record is a length, a checksum and a MessagePack array; the first torn or damaged record
ends the journal when it is read back, and since the crash that tore it came before its `fsync`
returned, nothing that was acknowledged is lost.

When the journal has grown past its limit, the state is written as a snapshot beside it and renamed
into place, then a fresh journal is begun. A snapshot names the journal that follows it, so a crash
between the two leaves a pair that belongs together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any, Self

import msgspec

from devkube.apiserver.storage import StoredObject
from devkube.datadir import DamagedFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from devkube.apiserver.storage import ObjectStore

_FRAME = struct.Struct("<II")
_LIMIT = 64 * 1024 * 1024
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Journal:
    """The durability of one store. Open it with `recover`, use it inside `async with`."""

    def __init__(self, directory: Path, *, limit: int = _LIMIT) -> None:
        self._directory = directory
        self._limit = limit
        self._store: ObjectStore | None = None
        self._sequence = 0
        self._file: int | None = None
        self._size = 0
        self._pending: list[bytes] = []
        self._pending_version = 0
        self._durable = 0
        self._work = asyncio.Event()
        self._progress = asyncio.Event()
        self._failure: OSError | None = None
        self._task: asyncio.Task[None] | None = None

    def recover(self, store: ObjectStore) -> None:
        """Fill an empty store with what the directory holds, and begin to record its writes.

        Raises DamagedFile.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        version = self._read_snapshot(store)
        version = max(version, self._replay(store))
        store.restore(version=version, durability=self)
        self._durable = store.version
        self._store = store
        self._rotate()
        for stale in self._directory.glob("journal-*"):
            if stale != self._journal(self._sequence):
                stale.unlink()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="journal")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            if not self._failure:
                await self._drain()
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._close()

    def append(self, collection: str, record: StoredObject, *, deleted: bool) -> None:
        """Queue one write."""
        payload = _encode(
            [
                collection,
                record.key,
                record.version,
                None if deleted else record.data,
                record.fields,
            ]
        )
        self._pending.append(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
        self._pending_version = record.version
        self._work.set()

    async def flushed(self, version: int) -> None:
        """Return when everything up to `version` is on the disk; raises OSError when it cannot be."""
        while self._durable < min(version, max(self._pending_version, self._durable)):
            if self._failure is not None:
                raise self._failure
            await self._progress.wait()

    async def _drain(self) -> None:
        with contextlib.suppress(OSError):
            await self.flushed(self._pending_version)

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            batch, self._pending = self._pending, []
            version = self._pending_version
            if not batch:
                continue
            try:
                await asyncio.shield(asyncio.to_thread(self._write, b"".join(batch)))
            except OSError as error:
                self._failure = error
                self._announce()
                return
            self._durable = version
            assert self._store is not None
            self._store.published(version)
            self._announce()
            if self._size > self._limit:
                self._rotate()

    def _announce(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fsync(self._file)
        self._size += len(data)

    def _rotate(self) -> None:
        """Write a snapshot of what is durable, then begin a new journal.

        Everything queued but not written stays queued for the new journal. The snapshot may hold
        writes that are not durable yet; that only makes them so.
        """
        assert self._store is not None
        self._close()
        following = self._sequence + 1
        self._create(self._journal(following))
        self._write_snapshot(self._store, following)
        old = self._sequence
        self._sequence = following
        self._size = 0
        self._journal(old).unlink(missing_ok=True)
        self._sync_directory()

    def _create(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        os.fsync(self._file)

    def _journal(self, sequence: int) -> Path:
        return self._directory / f"journal-{sequence:08d}"

    @property
    def _snapshot(self) -> Path:
        return self._directory / "snapshot"

    def _write_snapshot(self, store: ObjectStore, following: int) -> None:
        draft = self._directory / "snapshot.new"
        with draft.open("wb") as file:
            file.write(_framed([following, store.version]))
            for collection in store.collections():
                for record in collection.scan():
                    row = [collection.name, record.key, record.version, record.data, record.fields]
                    file.write(_framed(row))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._snapshot)
        self._sync_directory()

    def _read_snapshot(self, store: ObjectStore) -> int:
        if not self._snapshot.exists():
            return 0
        data = self._snapshot.read_bytes()
        frames = _frames(data)
        head, end = next(frames, (None, 0))
        for row, end in frames:  # noqa: B007 -- the last one counts
            _load(store, row)
        # It was renamed into place when it was whole: whatever is missing now was there.
        if head is None or end != len(data):
            raise DamagedFile(self._snapshot, f"only {end} of {len(data)} bytes can be read")
        self._sequence, version = head
        return int(version)

    def _replay(self, store: ObjectStore) -> int:
        path, version = self._journal(self._sequence), 0
        if path.exists():
            for row, _ in _frames(path.read_bytes()):
                _load(store, row)
                version = row[2]
        return version

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _framed(row: list[Any]) -> bytes:
    payload = _encode(row)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _frames(data: bytes) -> Iterator[tuple[Any, int]]:
    """Yield the rows of a file, and where each ends, up to the first that is torn or damaged."""
    position = 0
    while position + _FRAME.size <= len(data):
        size, checksum = _FRAME.unpack_from(data, position)
        start = position + _FRAME.size
        payload = data[start : start + size]
        if len(payload) < size or zlib.crc32(payload) != checksum:
            return
        position = start + size
        yield _decode(payload), position


def _load(store: ObjectStore, row: list[Any]) -> None:
    name, key, version, data, fields = row
    collection = store.collection(name)
    if data is None:
        collection.drop(key)
        return
    metadata = msgspec.json.decode(data)["metadata"]
    collection.load(StoredObject(key, version, data, metadata.get("labels") or {}, fields))
