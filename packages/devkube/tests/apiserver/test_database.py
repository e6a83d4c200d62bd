"""Durability: what was acknowledged is there after any end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime as dt
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.apiserver.harness import (
    CONFIG_MAPS,
    DEFINITIONS,
    WIDGETS,
    config_map,
    connected,
    definition,
    widget,
)

from devkube.apiserver import ApiServer
from devkube.apiserver.database import Database
from devkube.apiserver.storage import ObjectStore, StorageFailed
from devkube.auth.jwt import SigningKey
from devkube.certificates import CertificateAuthority
from devkube.datadir import DamagedFile
from kubeloop.objects.meta import JsonObject

WRITER = """
import asyncio, sys
from pathlib import Path
from devkube.apiserver.database import Database
from devkube.apiserver.storage import ObjectStore

async def main():
    store = ObjectStore()
    database = Database(Path(sys.argv[1]))
    database.recover(store)
    async with database:
        number = len(store.collection("things"))
        while True:
            name = f"n{number:06d}"
            store.put(store.collection("things"), name, {"metadata": {"name": name}})
            await store.settled()
            print(name, flush=True)
            number += 1

asyncio.run(main())
"""
FLIPS = 150


def obj(name: str):
    return {"metadata": {"name": name, "labels": {"n": name}}}


def recover(directory: Path) -> ObjectStore:
    store = ObjectStore()
    database = Database(directory)
    database.recover(store)
    database._close()
    return store


def keys(store: ObjectStore) -> list[str]:
    return [record.key for record in store.collection("things").scan()]


@contextlib.asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[ObjectStore, Database]]:
    store = ObjectStore()
    database = Database(directory)
    database.recover(store)
    async with database:
        yield store, database


async def write(directory: Path, *names: str) -> ObjectStore:
    async with opened(directory) as (store, _):
        for name in names:
            store.put(store.collection("things"), name, obj(name))
            await store.settled()
    return store


async def test_writes_and_deletions_come_back(tmp_path):
    async with opened(tmp_path) as (store, _):
        things = store.collection("things")
        for name in ("a", "b", "c"):
            store.put(things, name, obj(name), fields={"spec.x": name})
        store.delete(things, "b", obj("b"))
        await store.settled()
    back = recover(tmp_path)
    assert keys(back) == ["a", "c"]
    assert back.version == store.version
    record = back.collection("things").get("a")
    assert record is not None
    assert (record.labels, record.fields) == ({"n": "a"}, {"spec.x": "a"})


async def test_a_write_is_visible_once_it_is_durable(tmp_path):
    async with opened(tmp_path) as (store, _):
        things = store.collection("things")
        cursor = things.log.cursor(store.version)
        store.put(things, "a", obj("a"))
        assert cursor.take() == []
        await store.settled()
        assert [change.record.key for change in cursor.take()] == ["a"]


async def test_versions_go_on_and_the_old_history_is_gone(tmp_path):
    first = await write(tmp_path, "a", "b")
    async with opened(tmp_path) as (second, _):
        record = second.put(second.collection("things"), "c", obj("c"))
        assert record.version == first.version + 1
        assert second.collection("things").log.compacted == first.version


def content(store: ObjectStore) -> list[tuple[str, int, bytes]]:
    return [(r.key, r.version, r.data) for r in store.collection("things").scan()]


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """A directory as `kill -9` leaves it, with writes in the database file and in its log."""
    directory = tmp_path_factory.mktemp("killed")
    asyncio.run(write(directory, *(f"early{number}" for number in range(40))))
    code = (
        WRITER.replace("while True:", "while number < 60:")
        .replace("asyncio.run(main())", "")
        .replace("            number += 1\n", "            number += 1\n        os._exit(9)\n")
    )
    subprocess.run(
        [sys.executable, "-c", f"import os\n{code}\nasyncio.run(main())", str(directory)],
        check=False,
        stdout=subprocess.DEVNULL,
    )
    assert {path.name for path in directory.iterdir()} == {
        "cluster.db",
        "cluster.db-wal",
        "acknowledged",
    }
    return directory


@pytest.mark.parametrize("name", ["cluster.db", "cluster.db-wal", "acknowledged"])
def test_a_flipped_byte_is_refused_or_without_effect(tmp_path, killed, name):
    """It lies where nothing is stored any more, or the directory is refused with a reason."""
    whole = tmp_path / "whole"
    shutil.copytree(killed, whole)
    expected = content(recover(whole))
    assert len(expected) == 60
    data = (killed / name).read_bytes()
    chance = random.Random(5)
    sentences = set()
    for number in range(FLIPS):
        position = chance.randrange(len(data))
        copy = tmp_path / f"{number}"
        shutil.copytree(killed, copy)
        flipped = bytes([data[position] ^ 1 << chance.randrange(8)])
        (copy / name).write_bytes(data[:position] + flipped + data[position + 1 :])
        try:
            found = content(recover(copy))
        except DamagedFile as error:
            sentences.add(str(error))
        else:
            assert found == expected, f"byte {position} of {name} was flipped without a word"
        shutil.rmtree(copy)
    assert sentences
    for sentence in sentences:
        assert "cluster.db is damaged (" in sentence
        assert "put a copy of the directory back" in sentence


def test_a_directory_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / "snapshot").write_bytes(b"x")
    with pytest.raises(DamagedFile, match="an earlier version wrote it"):
        recover(tmp_path)
    assert not (tmp_path / "cluster.db").exists()


async def test_a_torn_transaction_is_not_missed(tmp_path, killed):
    """What was not acknowledged may be cut off."""
    copy = tmp_path / "copy"
    shutil.copytree(killed, copy)
    with (copy / "cluster.db-wal").open("ab") as log:
        log.write(b"\x00" * 3000)
    assert len(content(recover(copy))) == 60


async def test_a_truncated_log_is_refused(tmp_path, killed):
    copy = tmp_path / "copy"
    shutil.copytree(killed, copy)
    (copy / "cluster.db-wal").write_bytes(b"")
    with pytest.raises(DamagedFile, match=r"ends at version \d+, and 0*\d+ was acknowledged"):
        recover(copy)


async def test_a_full_disk_refuses_writes_and_takes_them_back(tmp_path):
    async with opened(tmp_path) as (store, database):
        things = store.collection("things")
        store.put(things, "a", obj("a"))
        await store.settled()
        cursor = things.log.cursor(store.version)
        fill(database)
        store.put(things, "a", {**obj("a"), "data": "x" * 100_000})
        store.put(things, "b", obj("b"))
        with pytest.raises(
            StorageFailed, match=r"cluster.db cannot be written: .* full; make room"
        ):
            await store.settled()
        assert keys(store) == ["a"]
        record = things.get("a")
        assert record is not None
        assert "data" not in record.decode()
        await store.settled()
        make_room(database)
        store.put(things, "c", obj("c"))
        await store.settled()
        assert [change.record.key for change in cursor.take()] == ["c"]
    assert keys(recover(tmp_path)) == ["a", "c"]


def fill(database: Database) -> None:
    """Let the database have no page more than it has: SQLite says the same of a full disk."""
    (pages,) = database._connection.execute("PRAGMA page_count").fetchone()
    database._connection.execute(f"PRAGMA max_page_count={pages}")


def make_room(database: Database) -> None:
    database._connection.execute("PRAGMA max_page_count=1000000")


@pytest.fixture
def databases(monkeypatch) -> list[Database]:
    """The databases that servers open."""
    found: list[Database] = []
    recover_plainly = Database.recover

    def remember(database, store):
        found.append(database)
        recover_plainly(database, store)

    monkeypatch.setattr(Database, "recover", remember)
    return found


async def test_a_full_disk_leaves_reads_alone(tmp_path, databases):
    async with ApiServer(data_dir=tmp_path) as server, connected(server) as kube:
        await kube.create(CONFIG_MAPS, config_map("a"))
        fill(databases[0])
        large = {**config_map("b"), "data": {"x": "x" * 200_000}}
        refused, listed = await asyncio.gather(
            kube.create(CONFIG_MAPS, large), kube.get(CONFIG_MAPS)
        )
        assert (refused.code, refused["reason"]) == (500, "InternalError")
        assert "full; make room" in refused["message"]
        assert (listed.code, len(listed["items"])) == (200, 1)
        assert (await kube.get(f"{CONFIG_MAPS}/b")).code == 404
        make_room(databases[0])
        assert (await kube.create(CONFIG_MAPS, large)).code == 201


def described(made: JsonObject, **properties: JsonObject) -> JsonObject:
    """Return a definition that takes more than a page, with more properties of `spec`."""
    made = copy.deepcopy(made)
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["description"] = "x" * 100_000
    schema["properties"]["spec"]["properties"] |= properties
    return made


async def test_a_definition_that_a_full_disk_refuses_is_not_served(tmp_path, databases):
    async with ApiServer(data_dir=tmp_path) as server, connected(server) as kube:
        fill(databases[0])
        assert (await kube.create(DEFINITIONS, described(definition()))).code == 500
        assert (await kube.get(WIDGETS)).code == 404
        assert (await kube.get("/apis/example.com/v1")).code == 404
        make_room(databases[0])
        assert (await kube.create(DEFINITIONS, described(definition()))).code == 201
        assert (await kube.get(WIDGETS)).code == 200


async def test_a_schema_that_a_full_disk_refuses_has_no_effect(tmp_path, databases):
    color = {"type": "string", "default": "red"}
    async with ApiServer(data_dir=tmp_path) as server, connected(server) as kube:
        await kube.create(DEFINITIONS, definition())
        await kube.create(WIDGETS, widget())
        fill(databases[0])
        path = f"{DEFINITIONS}/widgets.example.com"
        wanted = described((await kube.get(path)).body, color=color)
        assert (await kube.update(path, wanted)).code == 500
        assert "color" not in (await kube.get(f"{WIDGETS}/w"))["spec"]


@pytest.mark.parametrize("name", ["ca.key", "ca.crt", "sa.key"])
def test_a_damaged_key_is_named(tmp_path, name):
    now = dt.datetime.now(dt.UTC)
    CertificateAuthority.kept_in(tmp_path, now=now)
    SigningKey.kept_in(tmp_path)
    (tmp_path / name).write_text("no key")
    with pytest.raises(DamagedFile, match=rf"{tmp_path}/{name[:2]}.key is damaged"):
        _ = CertificateAuthority.kept_in(tmp_path, now=now), SigningKey.kept_in(tmp_path)


async def test_a_server_comes_back_with_objects_definitions_and_its_authority(tmp_path):
    async with ApiServer(data_dir=tmp_path) as server, connected(server) as kube:
        await kube.create(DEFINITIONS, definition())
        old = await kube.create(WIDGETS, widget())
        made = await kube.create(CONFIG_MAPS, config_map("a"))
    async with ApiServer(data_dir=tmp_path) as again, connected(again) as kube:
        assert again.ca_pem == server.ca_pem
        assert (await kube.get(f"{CONFIG_MAPS}/a")).body == made.body
        assert (await kube.get(f"{WIDGETS}/w"))["spec"]["size"] == "small"
        async with kube.watch(
            CONFIG_MAPS, resourceVersion=old["metadata"]["resourceVersion"]
        ) as events:
            assert (await events.next())["object"]["code"] == 410


@pytest.mark.slow
async def test_a_killed_process_keeps_every_acknowledged_write(tmp_path):
    for round_number in range(5):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(40 + round_number * 37)]
        process.kill()
        rest = await process.stdout.read()
        await process.wait()
        lines += rest.splitlines(keepends=True)
        whole = {line.decode().strip() for line in lines if line.endswith(b"\n")}
        assert len(whole) >= 40
        assert whole <= set(keys(recover(tmp_path)))
