from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.builders import Objects, facts

from devkube.addresses import AddressPool, NoAddressLeft
from devkube.kubelet import volumes
from devkube.kubelet.environment import ConfigurationError
from devkube.kubelet.pod_types import TokenProjection, Volume
from devkube.kubelet.volume_sources import VolumeFile, payload

CONTENT = Objects(cm={"a": b"1", "b": b"2"}, s={"k": b"\x00"})


def files(volume: dict[str, Any], tokens: dict[TokenProjection, str] | None = None) -> Any:
    made = msgspec.convert({"name": "v", **volume}, Volume)
    return payload(made, facts(labels={"app": "web"}), CONTENT, tokens or {})


def test_a_config_map_is_a_file_per_key():
    found = files({"configMap": {"name": "cm", "defaultMode": 0o600}})
    assert found == {"a": VolumeFile(b"1", 0o600), "b": VolumeFile(b"2", 0o600)}


def test_items_choose_keys_paths_and_modes():
    items = [{"key": "a", "path": "x/y", "mode": 0o400}]
    assert files({"configMap": {"name": "cm", "items": items}}) == {"x/y": VolumeFile(b"1", 0o400)}
    missing = [{"key": "z", "path": "z"}]
    with pytest.raises(ConfigurationError, match="non-existent config key: z"):
        files({"configMap": {"name": "cm", "items": missing}})
    assert files({"configMap": {"name": "cm", "items": missing, "optional": True}}) == {}


def test_missing_objects_are_errors_unless_optional():
    with pytest.raises(ConfigurationError, match="not found"):
        files({"secret": {"secretName": "gone"}})
    assert files({"secret": {"secretName": "gone", "optional": True}}) == {}
    assert files({"secret": {"secretName": "s"}}) == {"k": VolumeFile(b"\x00", 0o644)}


def test_projections_come_together():
    token = TokenProjection("token", "aud", 600)
    sources = [
        {"serviceAccountToken": {"path": "token", "audience": "aud", "expirationSeconds": 600}},
        {"configMap": {"name": "cm", "items": [{"key": "a", "path": "ca.crt"}]}},
        {"secret": {"name": "s"}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
            }
        },
    ]
    found = files({"projected": {"sources": sources}}, {token: "jwt"})
    assert {name: file.data for name, file in found.items()} == {
        "token": b"jwt",
        "ca.crt": b"1",
        "k": b"\x00",
        "namespace": b"default",
    }


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "..data"])
def test_no_path_leads_out_of_a_volume(path):
    with pytest.raises(ConfigurationError, match="must stay inside"):
        files({"configMap": {"name": "cm", "items": [{"key": "a", "path": path}]}})


def test_volumes_of_others_have_no_files_of_ours():
    assert files({"emptyDir": {}}) is None
    assert files({}) is None


def read_all(directory: Path) -> dict[str, bytes]:
    names = [entry.name for entry in directory.iterdir() if not entry.name.startswith("..")]
    found = {}
    for name in names:
        path = directory / name
        inner = path.rglob("*") if path.is_dir() else [path]
        found.update({str(p.relative_to(directory)): p.read_bytes() for p in inner if p.is_file()})
    return found


def test_files_change_all_at_once_by_one_rename(tmp_path):
    first = {"a": VolumeFile(b"1", 0o644), "d/b": VolumeFile(b"2", 0o600)}
    assert volumes.write_atomically(tmp_path, first, stamp="t")
    assert read_all(tmp_path) == {"a": b"1", "d/b": b"2"}
    assert (tmp_path / "d/b").stat().st_mode & 0o777 == 0o600
    held = os.open(tmp_path / "a", os.O_RDONLY)
    assert not volumes.write_atomically(tmp_path, first, stamp="t")
    assert volumes.write_atomically(
        tmp_path, {"a": VolumeFile(b"3", 0o644), "c": VolumeFile(b"4", 0o644)}, stamp="t"
    )
    assert read_all(tmp_path) == {"a": b"3", "c": b"4"}
    assert os.read(held, 9) == b"1"
    os.close(held)
    assert len([e for e in tmp_path.iterdir() if e.name.startswith("..t.")]) == 1


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.binary(max_size=3), max_size=3), max_size=4)
)
def test_a_directory_has_the_last_files_written(tmp_path_factory, versions):
    directory = tmp_path_factory.mktemp("volume")
    for version in versions:
        volumes.write_atomically(
            directory, {k: VolumeFile(v, 0o644) for k, v in version.items()}, stamp="t"
        )
        assert read_all(directory) == version


# Addresses.


def test_addresses_are_used_again_as_late_as_possible():
    pool = AddressPool("127.20.0.0/29", reserved=["127.20.0.2"])
    first = [pool.take() for _ in range(3)]
    assert first == ["127.20.0.1", "127.20.0.3", "127.20.0.4"]
    pool.free("127.20.0.3")
    pool.free("127.20.0.1")
    assert [pool.take() for _ in range(4)] == [
        "127.20.0.5",
        "127.20.0.6",
        "127.20.0.3",
        "127.20.0.1",
    ]
    with pytest.raises(NoAddressLeft, match=r"127\.20\.0\.0/29"):
        pool.take()


def test_addresses_of_an_earlier_kubelet_come_last():
    pool = AddressPool("127.20.0.0/30")
    pool.remember("127.20.0.1")
    pool.remember("10.0.0.1")
    assert [pool.take(), pool.take()] == ["127.20.0.2", "127.20.0.1"]


@given(st.lists(st.booleans(), max_size=60))
def test_no_address_is_given_twice(steps):
    pool = AddressPool("127.20.0.0/28")
    taken: list[str] = []
    for take in steps:
        if take and len(taken) < 14:
            address = pool.take()
            assert address not in taken
            taken.append(address)
        elif taken:
            pool.free(taken.pop(0))
