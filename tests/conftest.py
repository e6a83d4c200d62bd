"""What holds for every test: it leaves nothing behind, and does not pay for the other thousands."""

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


# The garbage that is hidden with everything else is looked for after so many full collections: each
# stands for a cluster's worth, some twenty megabytes.
SWEEP_EVERY = 5
SWEPT = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hide from the garbage collector what was there before the test.

    An informer begins with a full collection, and its end brings everything back into sight. In a
    process that holds thousands of tests, visiting them all was a third of what tests cost.
    """
    swept = item.config.stash.get(SWEPT, 0)
    if full_collections() - swept >= SWEEP_EVERY:
        gc.unfreeze()
        gc.collect()
        item.config.stash[SWEPT] = full_collections()
    gc.freeze()


def full_collections() -> int:
    return gc.get_stats()[-1]["collections"]


def pytest_sessionfinish() -> None:
    """Show everything to the collection with which pytest looks for errors that nobody saw."""
    gc.unfreeze()


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
