"""Tells, once, when a new leader has looked at everything that was there.

Until then an old leader's unfinished work may still be waiting; from then on only changes count. It is
what to look for in the log after a restart, and what the benchmark of a restart waits for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kubeloop.controller.reconcile import Request

_log = structlog.get_logger(__name__)


class FirstLooks:
    """The ElastiServices that were there at the start and have not been looked at."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._left = set(requests)
        self._count = len(self._left)
        self._failed = 0
        self._began = time.monotonic()
        if not self._left:
            self._tell()

    def looked(self, request: Request, *, failed: bool) -> None:
        """One was looked at, for the first time or again; what failed will be tried again."""
        if request not in self._left:
            return
        self._left.discard(request)
        self._failed += failed
        if not self._left:
            self._tell()

    def _tell(self) -> None:
        _log.info(
            "every ElastiService was looked at",
            elastiservices=self._count,
            failed=self._failed,
            seconds=round(time.monotonic() - self._began, 3),
        )
