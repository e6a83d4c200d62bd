"""What all end-to-end tests share: the settings, one report of a run, and who shares a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.e2e import report, settings
from tests.e2e.settings import Settings

CLUSTERS = (
    "our proxy", "kube-proxy", "dev cluster", "control plane", "devcluster", "controlplane",
    "first half", "second half",
)  # fmt: skip
"""The parameters by which a module has several clusters, as they are in the names of tests."""


@pytest.fixture(scope="session")
def e2e_settings(testrun_uid: str) -> Settings:
    """How long scenarios are, and where the report goes; an earlier run's report is removed."""
    found = settings.current()
    report.begin(found.output, testrun_uid)
    return found


class ByCluster(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Keeps what shares a cluster on one worker: a module, or its part with one of `CLUSTERS`."""

    def _split_scope(self, nodeid: str) -> str:
        module, _, test = nodeid.partition("::")
        return " ".join((module, *(name for name in CLUSTERS if name in test)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCluster:
    """Share the tests out, where there are workers."""
    return ByCluster(config, log)
