from __future__ import annotations

from tests.controlplane.plugin import (
    controlplane,
    controlplane_binaries,
    controlplane_settings,
    namespaces,
    pytest_runtest_makereport,
)

__all__ = [
    "controlplane",
    "controlplane_binaries",
    "controlplane_settings",
    "namespaces",
    "pytest_runtest_makereport",
]
