"""Release beside a real kubelet: from the app's listening to the first held answer."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.realcluster.report import Report, summary
from tests.realcluster.waking import Sleeper

if TYPE_CHECKING:
    from tests.e2e.settings import Settings
    from tests.realcluster.report import WakeUp
    from tests.realcluster.rig import Rig

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(1800)]

WAKE_UPS = {"short": 10, "full": 30}
PERIODS = (1, 10)
# The goal's is 30 ms on a quiet machine; a busy one is no reason to fail, waiting for the kubelet is.
MOST = 0.2


def test_held_requests_do_not_wait_for_the_kubelet(
    installed: Rig, report: Report, lengths: Settings, tmp_path: Path
) -> None:
    def measure(period: int) -> list[WakeUp]:
        directory = tmp_path / str(period)
        directory.mkdir()
        sleeper = Sleeper(installed, installed.namespace(f"every-{period}"), directory, period)
        sleeper.apply()
        measured = []
        for number in range(WAKE_UPS[lengths.length.name]):
            sleeper.sleep()
            measured.append(sleeper.wake(f"wake-{number}"))
        return measured

    with ThreadPoolExecutor() as pool:
        report.wake_ups.update(zip(PERIODS, pool.map(measure, PERIODS), strict=True))
    for period, measured in report.wake_ups.items():
        middle = statistics.median(wake_up.release for wake_up in measured)
        assert middle < MOST, f"period {period} s: {summary(measured)}"
