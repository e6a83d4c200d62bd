"""Durability: the store's objects in an SQLite database, for a cluster that survives `kill -9`.

A write is acknowledged after its transaction is on the disk (WAL, synchronous=FULL). Writes that arrive
while one is being written are the next transaction: one writer thread, in the order of versions.

SQLite does not notice a flipped byte by itself. So every row has a checksum, and the last acknowledged
version stands in a file of its own, written after the transaction: a database that ends before it has
lost something, and is refused. What cannot be written (the disk is full) is taken back in memory too,
and its writer gets an error; reads go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from devkube.apiserver.storage import (
    Collection,
    ObjectStore,
    StorageFailed,
    StoredChange,
    StoredObject,
)
from devkube.datadir import DamagedFile

_TABLES = """
PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;
CREATE TABLE IF NOT EXISTS objects(collection TEXT, key TEXT, version INTEGER, data BLOB, fields BLOB,
    checksum INTEGER, PRIMARY KEY(collection, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state(id INTEGER PRIMARY KEY CHECK(id = 1), version INTEGER);
"""


class Database:
    """The durability of one store. Open it with `recover`, use it inside `async with`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "cluster.db"
        self._acknowledged_path = directory / "acknowledged"
        self._changes: list[tuple[Collection, StoredChange]] = []
        self._work = asyncio.Event()
        self._next: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._failed = False
        self._task: asyncio.Task[None] | None = None

    def recover(self, store: ObjectStore) -> None:
        """Fill an empty store with what the directory holds, and begin to record its writes.

        Raises DamagedFile.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if (journal := self._path.with_name("snapshot")).exists():
            raise DamagedFile(journal, "an earlier version wrote it, in a format that is not read")
        for path in (self._path, self._acknowledged_path):
            path.touch(mode=0o600)
        self._acknowledged = os.open(self._acknowledged_path, os.O_RDWR | os.O_CLOEXEC)
        self._connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False
        )
        try:
            version = self._load(store)
        except BaseException as error:
            self._close()
            # A damaged row may have values of any type.
            if isinstance(error, sqlite3.Error | ValueError | TypeError):
                raise DamagedFile(self._path, str(error)) from error
            raise
        store.restore(version=version, database=self)
        self._store = store

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="database")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            with contextlib.suppress(StorageFailed):
                await self.flushed()
            self._task.cancel()
            await asyncio.wait([self._task])
        self._close()

    def check(self) -> None:
        """Raise StorageFailed while the disk takes no writes, before another is made in memory."""
        if self._failed and self._writing is None:
            self._commit(())

    def append(self, collection: Collection, change: StoredChange) -> None:
        """Queue one write."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._changes.append((collection, change))
        self._work.set()

    async def flushed(self) -> None:
        """Return when every write so far is on the disk; raises StorageFailed if it cannot be."""
        batch = self._next or self._writing
        if batch is not None:
            await asyncio.shield(batch)

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            changes, self._changes = self._changes, []
            batch = self._writing = self._next
            self._next = None
            assert batch is not None
            try:
                await asyncio.shield(asyncio.to_thread(self._commit, changes))
            except StorageFailed as error:
                self._take_back(changes, error)
            else:
                self._store.published(changes[-1][1].record.version)
                batch.set_result(None)
            self._writing = None

    def _take_back(
        self, changes: Sequence[tuple[Collection, StoredChange]], error: StorageFailed
    ) -> None:
        """Undo what was not written, and what was made on top of it meanwhile."""
        for collection, change in reversed([*changes, *self._changes]):
            collection.undo(change)
        self._changes.clear()
        self._work.clear()
        # A definition that was undone may have given objects defaults: they are as stored again.
        self._load_objects(self._store)
        self._store.taken_back()
        for batch in (self._writing, self._next):
            if batch is not None:
                batch.set_exception(error)
                batch.exception()  # mark it as retrieved: there may be no waiter
        self._next = None

    def _commit(self, changes: Sequence[tuple[Collection, StoredChange]]) -> None:
        """Write one transaction; raises StorageFailed."""
        run = self._connection.execute
        try:
            run("BEGIN")
            for collection, change in changes:
                where = (collection.name, change.record.key)
                if change.deleted:
                    run("DELETE FROM objects WHERE collection = ? AND key = ?", where)
                else:
                    run(
                        "REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)",
                        _row(*where, change.record),
                    )
            version = changes[-1][1].record.version if changes else self._store.version
            run("REPLACE INTO state VALUES (1, ?)", (version,))
            run("COMMIT")
        except sqlite3.Error as error:
            self._failed = True
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise StorageFailed(f"{self._path} cannot be written: {error}; make room") from error
        self._failed = False
        os.pwrite(self._acknowledged, b"%020d" % version, 0)

    def _load(self, store: ObjectStore) -> int:
        self._connection.executescript(_TABLES)
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise DamagedFile(self._path, verdict)
        self._load_objects(store)
        (last,) = self._connection.execute("SELECT max(version) FROM state").fetchone()
        acknowledged = os.pread(self._acknowledged, 20, 0) or b"0"
        if not acknowledged.isdigit() or int(acknowledged) > (last or 0):
            why = f"it ends at version {last}, and {acknowledged.decode(errors='replace')} was acknowledged"
            raise DamagedFile(self._path, why)
        return int(last or 0)

    def _load_objects(self, store: ObjectStore) -> None:
        for row in self._connection.execute("SELECT * FROM objects"):
            name, key, version, data, fields, checksum = row
            if _checksum(*row[:-1]) != checksum:
                raise DamagedFile(self._path, f"the checksum of {name} {key} is wrong")
            metadata = msgspec.json.decode(data)["metadata"]
            labels = metadata.get("labels") or {}
            loaded = StoredObject(key, version, data, labels, msgspec.json.decode(fields))
            store.collection(name).load(loaded)

    def _close(self) -> None:
        self._connection.close()
        os.close(self._acknowledged)


def _row(collection: str, key: str, record: StoredObject) -> tuple[Any, ...]:
    row = (collection, key, record.version, record.data, msgspec.json.encode(record.fields))
    return (*row, _checksum(*row))


def _checksum(collection: str, key: str, version: int, data: bytes, fields: bytes) -> int:
    return zlib.crc32(b"\0".join((f"{collection}\0{key}\0{version}".encode(), fields, data)))
