"""How a reflector behaves; the defaults are client-go's."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

from kubeloop.aio.backoff import Backoff
from kubeloop.informer.expectation import Expectation

if TYPE_CHECKING:
    from kubeloop.aio.backoff import Random

MIN_WATCH_TIMEOUT = 300.0
SOON_AGAIN = Backoff(duration=0.2, factor=2.0, jitter=0.5, cap=3.0)
"""For a program that somebody waits for: after an outage it is back within seconds, where client-go's
own pace may leave it blind for another minute. Fit for a handful of watches, not for every node's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorOptions:
    """What to ask a server for, and how to take its failures.

    page_size: objects for each page of every list; 0 lets the reflector choose.
    min_watch_timeout: a watch lives between this and twice as long; less than 300 s is raised.
    watch_list: stream the first objects instead of listing them, where the source can.
    internal_error_window: seconds during which a watch that ends with a 500 is reopened at once.
    skip_rejected: leave a list's poison objects out instead of failing the list.
    survive_defects: replace a reflector that a defect ended, instead of ending the informer with it.
    self_check: after a streamed list, list again at exactly its version and compare (for tests).
    """

    label_selector: str = ""
    field_selector: str = ""
    page_size: int = 0
    min_watch_timeout: float = MIN_WATCH_TIMEOUT
    watch_list: bool = True
    internal_error_window: float = 0.0
    skip_rejected: bool = False
    survive_defects: bool = False
    self_check: bool = False
    expected: Expectation = dataclasses.field(default_factory=Expectation)
    backoff: Backoff = dataclasses.field(
        default_factory=lambda: Backoff(duration=0.8, factor=2.0, jitter=1.0, cap=30.0)
    )
    backoff_reset: float = 120.0
    silence_grace: float = 5.0
    rand: Random = random.random

    def watch_timeout(self) -> int:
        """Choose the timeout of one watch, in whole seconds."""
        shortest = max(self.min_watch_timeout, MIN_WATCH_TIMEOUT)
        return int(shortest * (1.0 + self.rand()))
