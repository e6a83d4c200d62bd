from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.component import Component, ComponentError
from tests.controlplane.keeper import Keeper
from tests.controlplane.sandbox import Sandbox
from tests.waiting import eventually_blocking

pytestmark = pytest.mark.controlplane


@pytest.fixture
def component(tmp_path: Path, namespaces: None) -> Iterator[Component]:
    sandbox = Sandbox(local_ranges=[], relays={})
    argv = ["sh", "-c", f"echo >>{tmp_path}/lives; exec sleep 600"]
    try:
        yield Component("sleeper", argv, sandbox=sandbox, log=tmp_path / "log", ready=lambda: True)
    finally:
        sandbox.close()


def has_begun(lives: Path, life: int) -> bool:
    return lives.exists() and len(lives.read_bytes()) == life


def test_what_ended_by_itself_is_started_again(component: Component, tmp_path: Path):
    lives = tmp_path / "lives"
    component.start()
    with Keeper([component]) as keeper:
        for life in (1, 2, 3):
            eventually_blocking(functools.partial(has_begun, lives, life), f"life {life}")
            if life < 3:
                component.kill()
        assert keeper.restarts == 2
    component.kill()
    assert not component.running


def test_who_waits_for_one_that_left_waits_until_it_is_back(component: Component, tmp_path: Path):
    component.start()
    with Keeper([component]) as keeper:
        component.kill()
        keeper.wait_ready(30)
        assert component.running
        assert keeper.restarts == 1
    component.kill()


def test_one_that_never_serves_is_named(component: Component):
    with Keeper([component]) as keeper, pytest.raises(ComponentError, match="sleeper"):
        keeper.wait_ready(0.1)
