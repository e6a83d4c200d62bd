"""What holds for every test: it leaves nothing behind."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from tests.elasti.operator import kinds

from elasti.api.crd import custom_resource_definition

if TYPE_CHECKING:
    from collections.abc import Iterator

# The real control plane, for every test that asks for it.
pytest_plugins = ["tests.controlplane.plugin"]

# Examples are the same in every run, so that a failure is everybody's and not one run's luck.
settings.register_profile("elasti", derandomize=True, deadline=None)
settings.load_profile("elasti")


@pytest.fixture(autouse=True)
def leak_guard(kubeloop_leak_guard: None) -> Iterator[None]:
    """Every test is guarded; `@pytest.mark.allow_leaks` lets one off."""
    yield
    was_on = gc.isenabled()
    gc.enable()
    assert was_on, "the test left the process without a garbage collector"


@pytest.fixture(scope="session")
def controlplane_definitions() -> tuple[dict[str, Any], ...]:
    """What tests on the shared control plane would otherwise wait for."""
    return custom_resource_definition(), kinds.scaled_object(), kinds.rollout(), kinds.farm()
