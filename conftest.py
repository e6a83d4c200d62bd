"""What holds for every test: it leaves nothing behind, and does not pay for the other thousands."""

from __future__ import annotations

import gc
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from tests.operator import kinds

from elasti.api.crd import custom_resource_definition
from kubeloop.informer.gc_pause import PROCESS_GC

if TYPE_CHECKING:
    from collections.abc import Iterator

# The real control plane, for every test that asks for it, and what finds leaks.
pytest_plugins = ["tests.controlplane.plugin", "tests.leaks"]

# Examples are the same in every run, so that a failure is everybody's and not one run's luck.
settings.register_profile("elasti", derandomize=True, deadline=None)
# Once in a while, and with other examples each time: pytest --hypothesis-profile=thorough
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("elasti")


class Unfrozen:
    """The garbage collector for informers under test: all but the freezing, which is the suite's here.

    There is one freeze for the whole process. An informer that ends takes it back, and would show the
    collector thousands of tests again, which cost a third of the time that tests took.
    """

    isenabled = staticmethod(gc.isenabled)
    enable = staticmethod(gc.enable)
    disable = staticmethod(gc.disable)
    collect = staticmethod(gc.collect)

    def freeze(self) -> None:
        """Leave it to the suite."""

    def unfreeze(self) -> None:
        """Leave it to the suite."""


PROCESS_GC._control = Unfrozen()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hide from the garbage collector what was there before the test."""
    if item.get_closest_marker("needs_root") and os.geteuid() != 0:
        pytest.skip("needs root")
    gc.freeze()


@pytest.fixture(autouse=True)
def leak_guard(leak_guards: None) -> Iterator[None]:
    """Every test is guarded; `@pytest.mark.allow_leaks` lets one off."""
    yield
    undo_logging()
    is_on = collector_comes_back()
    gc.enable()
    gc.collect()  # all that the test made: what complains when it is freed does so here
    assert is_on, "the test left the process without a garbage collector"


def undo_logging() -> None:
    """Take back the logging of a program that a test ran in this process: later tests capture their own lines."""
    root = logging.getLogger()
    if any(type(one) is logging.StreamHandler for one in root.handlers):
        root.handlers[:] = [one for one in root.handlers if type(one) is not logging.StreamHandler]
        root.setLevel(logging.WARNING)


def collector_comes_back() -> bool:
    """Whether it is on; a cluster in a thread beside the tests pauses it for ten seconds at most."""
    given_up = time.monotonic() + 20
    while not gc.isenabled() and time.monotonic() < given_up:
        time.sleep(0.01)
    return gc.isenabled()


@pytest.fixture(scope="session")
def controlplane_definitions() -> tuple[dict[str, Any], ...]:
    """What tests on the shared control plane would otherwise wait for."""
    return custom_resource_definition(), kinds.scaled_object(), kinds.rollout(), kinds.farm()
