"""Metrics of an informer. The library only reports; the program decides what to do with them.

Nothing here is called for a single event: figures come once for each batch, so that counting costs
nothing that a profile would show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class InformerMetrics(Protocol):
    """Receives the figures of one informer."""

    def listed(self, *, items: int, seconds: float) -> None:
        """A list, or the initial phase of a streaming list, was complete."""

    def observe(self, *, doubt: Callable[[], str]) -> None:
        """Whenever the figures are shown, `doubt` returns why the store may be behind, or nothing."""

    def watch_opened(self) -> None:
        """The server accepted a watch."""

    def watch_ended(self, *, reason: str) -> None:
        """A watch ended: `closed`, `short`, `silent`, `expired`, `throttled`, `error`, ..."""

    def backed_off(self, *, seconds: float) -> None:
        """The reflector waits before its next request."""

    def rejected(self, *, reason: str) -> None:
        """An object was dropped: the store is knowingly incomplete for its key."""

    def queued(self, *, changes: int) -> None:
        """How many changes wait to be applied."""

    def applied(self, *, changes: int, seconds: float) -> None:
        """A queue entry went into the store and to the handlers' buffers."""

    def apply_failed(self) -> None:
        """An entry could not be applied; the reflector lists again."""

    def stored(self, *, objects: int, version: str) -> None:
        """The store's size, and the resourceVersion up to which it is complete."""

    def pending(self, *, handler: str, notifications: int) -> None:
        """How many notifications wait for a handler."""

    def handled(self, *, handler: str, notifications: int, seconds: float) -> None:
        """A handler took some notifications; `seconds` is the time of all its calls together."""

    def handler_failed(self, *, handler: str) -> None:
        """A handler raised."""


class MetricsProvider(Protocol):
    """Gives each informer its metrics."""

    def informer(self, name: str) -> InformerMetrics:
        """Return the metrics of the informer of that name."""


class NoMetrics:
    """Counts nothing; both an `InformerMetrics` and its own provider."""

    def informer(self, name: str) -> InformerMetrics:
        return self

    def listed(self, *, items: int, seconds: float) -> None: ...
    def observe(self, *, doubt: Callable[[], str]) -> None: ...
    def watch_opened(self) -> None: ...
    def watch_ended(self, *, reason: str) -> None: ...
    def backed_off(self, *, seconds: float) -> None: ...
    def rejected(self, *, reason: str) -> None: ...
    def queued(self, *, changes: int) -> None: ...
    def applied(self, *, changes: int, seconds: float) -> None: ...
    def apply_failed(self) -> None: ...
    def stored(self, *, objects: int, version: str) -> None: ...
    def pending(self, *, handler: str, notifications: int) -> None: ...
    def handled(self, *, handler: str, notifications: int, seconds: float) -> None: ...
    def handler_failed(self, *, handler: str) -> None: ...
