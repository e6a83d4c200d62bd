"""The tools of the chart, and the control plane that judges what it renders."""

from __future__ import annotations

import pytest

from tests.chart.rendering import tool
from tests.controlplane.binaries import Settings
from tests.controlplane.plugin import give_up


@pytest.fixture(scope="session", autouse=True)
def charttools(controlplane_settings: Settings) -> None:
    try:
        tool("helm")
    except FileNotFoundError as error:
        give_up(controlplane_settings, str(error))
