"""The directory of a cluster that keeps nothing."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from devkube.datadir import scratch_directory


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make(parent: Path, name: str, *, age: float) -> Path:
    directory = parent / name
    (directory / "node-1").mkdir(parents=True)
    (directory / "held").touch()
    moment = time.time() - age
    os.utime(directory, (moment, moment))
    return directory


def test_it_goes_with_the_cluster(somewhere: Path) -> None:
    with scratch_directory() as directory:
        (directory / "file").touch()
        assert directory.parent == somewhere
    assert list(somewhere.iterdir()) == []


def test_an_abandoned_directory_is_removed(somewhere: Path) -> None:
    abandoned = make(somewhere, "devkube-abandoned", age=3600)
    young = make(somewhere, "devkube-young", age=1)
    foreign = make(somewhere, "something-else", age=3600)
    with scratch_directory() as mine:
        old = time.time() - 3600
        os.utime(mine, (old, old))
        with scratch_directory():
            assert mine.exists(), "it is held"
            assert young.exists(), "its owner may be about to hold it"
            assert foreign.exists()
            assert not abandoned.exists()
