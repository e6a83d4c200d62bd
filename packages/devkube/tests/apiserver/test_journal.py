"""Durability: what was acknowledged is there after any end of the process."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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
from devkube.apiserver.journal import Journal
from devkube.apiserver.storage import ObjectStore
from devkube.auth.jwt import SigningKey
from devkube.certificates import CertificateAuthority
from devkube.datadir import DamagedFile


def obj(name: str):
    return {"metadata": {"name": name, "labels": {"n": name}}}


def recover(directory: Path) -> ObjectStore:
    store = ObjectStore()
    journal = Journal(directory)
    journal.recover(store)
    journal._close()
    return store


def keys(store: ObjectStore) -> list[str]:
    return [record.key for record in store.collection("things").scan()]


async def write(directory: Path, *names: str, **options) -> ObjectStore:
    store = ObjectStore()
    journal = Journal(directory, **options)
    journal.recover(store)
    async with journal:
        for name in names:
            store.put(store.collection("things"), name, obj(name))
        await store.settled()
    return store


async def test_writes_and_deletions_come_back(tmp_path):
    store = ObjectStore()
    journal = Journal(tmp_path)
    journal.recover(store)
    async with journal:
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


async def test_nobody_sees_a_write_before_it_is_durable(tmp_path):
    store = ObjectStore()
    journal = Journal(tmp_path)
    journal.recover(store)
    async with journal:
        things = store.collection("things")
        cursor = things.log.cursor(store.version)
        store.put(things, "a", obj("a"))
        assert cursor.take() == []
        await store.settled()
        assert [change.record.key for change in cursor.take()] == ["a"]


async def test_versions_go_on_and_the_old_history_is_gone(tmp_path):
    first = await write(tmp_path, "a", "b")
    second = recover(tmp_path)
    record = second.put(second.collection("things"), "c", obj("c"))
    assert record.version == first.version + 1
    assert second.collection("things").log.compacted == first.version


async def test_a_torn_last_record_is_dropped_and_the_rest_kept(tmp_path):
    await write(tmp_path, "a", "b")
    (journal,) = tmp_path.glob("journal-*")
    data = journal.read_bytes()
    for cut in (1, 5, 9):
        journal.write_bytes(data[:-cut])
        copy = tmp_path / f"copy{cut}"
        copy.mkdir()
        (copy / "snapshot").write_bytes((tmp_path / "snapshot").read_bytes())
        (copy / journal.name).write_bytes(data[:-cut])
        assert keys(recover(copy)) == ["a"]


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(cut=st.integers(min_value=0, max_value=400), junk=st.binary(max_size=20))
async def test_any_cut_keeps_a_prefix_of_the_writes(tmp_path_factory, cut, junk):
    directory = tmp_path_factory.mktemp("cut")
    await write(directory, "a", "b", "c")
    (journal,) = directory.glob("journal-*")
    data = journal.read_bytes()
    journal.write_bytes(data[: max(len(data) - cut, 0)] + junk)
    assert keys(recover(directory)) in ([], ["a"], ["a", "b"], ["a", "b", "c"])


async def test_a_full_journal_becomes_a_snapshot(tmp_path):
    names = [f"n{number:03d}" for number in range(100)]
    await write(tmp_path, *names, limit=500)
    assert keys(recover(tmp_path)) == names
    assert len(list(tmp_path.glob("journal-*"))) == 1


@pytest.mark.parametrize("damage", [slice(0, 0), slice(0, 9), slice(0, -1), slice(3, None)])
async def test_a_damaged_snapshot_is_refused_and_left_alone(tmp_path, damage):
    await write(tmp_path, "a", "b")
    recover(tmp_path)
    snapshot = tmp_path / "snapshot"
    damaged = snapshot.read_bytes()[damage]
    snapshot.write_bytes(damaged)
    with pytest.raises(DamagedFile, match=r"snapshot is damaged .* bytes can be read"):
        recover(tmp_path)
    assert snapshot.read_bytes() == damaged


@pytest.mark.parametrize("name", ["ca.key", "ca.crt", "sa.key"])
def test_a_damaged_key_is_named(tmp_path, name):
    now = dt.datetime.now(dt.UTC)
    CertificateAuthority.kept_in(tmp_path, now=now)
    SigningKey.kept_in(tmp_path)
    (tmp_path / name).write_text("no key")
    with pytest.raises(DamagedFile, match=rf"{tmp_path}/{name[:2]}.key is damaged"):
        _ = CertificateAuthority.kept_in(tmp_path, now=now), SigningKey.kept_in(tmp_path)


async def test_a_disk_that_fails_fails_the_write(tmp_path, monkeypatch):
    def broken(descriptor):
        raise OSError(28, "No space left on device")

    store = ObjectStore()
    journal = Journal(tmp_path)
    journal.recover(store)
    async with journal:
        monkeypatch.setattr(os, "fsync", broken)
        store.put(store.collection("things"), "a", obj("a"))
        with pytest.raises(OSError, match="No space left"):
            await store.settled()
        monkeypatch.undo()


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


WRITER = """
import asyncio, sys
from pathlib import Path
from devkube.apiserver.journal import Journal
from devkube.apiserver.storage import Store
from devkube.auth.jwt import SigningKey
from devkube.certificates import Authority
from devkube.datadir import DamagedFile

async def main():
    store = Store()
    journal = Journal(Path(sys.argv[1]), limit=20_000)
    journal.recover(store)
    async with journal:
        number = len(store.collection("things"))
        while True:
            name = f"n{number:06d}"
            store.put(store.collection("things"), name, {"metadata": {"name": name}})
            await store.settled()
            print(name, flush=True)
            number += 1

asyncio.run(main())
"""


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
