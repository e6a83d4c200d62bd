from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.controlplane.component import Component
from tests.controlplane.keeper import Keeper
from tests.controlplane.sandbox import Sandbox

pytestmark = pytest.mark.controlplane


@pytest.fixture
def component(tmp_path: Path, namespaces: None) -> Iterator[Component]:
    sandbox = Sandbox(local_ranges=[], relays={})
    argv = ["sh", "-c", f"echo >>{tmp_path}/lives; exec sleep 600"]
    try:
        yield Component("sleeper", argv, sandbox=sandbox, log=tmp_path / "log", ready=lambda: True)
    finally:
        sandbox.close()


def test_what_ended_by_itself_is_started_again(component: Component, tmp_path: Path):
    lives = tmp_path / "lives"
    component.start()
    with Keeper([component]) as keeper:
        for life in (1, 2):
            wait_until(lambda life=life: lives.exists() and len(lives.read_bytes()) == life)
            component.kill()
        wait_until(lambda: len(lives.read_bytes()) == 3)
        assert keeper.restarts == 2
    component.kill()
    assert not component.running


def wait_until(holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
