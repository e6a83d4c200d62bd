"""The objects of one list while it arrives: in pages, or as the initial events of a stream.

Nothing of it is visible before it is complete. Objects are prepared as they come, so a page can be
forgotten once it is taken in.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.aio.budget import Budget
from kubeloop.informer.intake import Change, Intake, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kubeloop.informer.metrics import InformerMetrics
    from kubeloop.objects.names import Key

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Snapshot(Generic[T]):
    """Objects by key; of two with one key the later wins.

    An object that cannot be prepared fails the whole list (`Rejected`), because a list without it
    would delete it; with `skip_rejected` it is left out, logged and counted.
    """

    def __init__(
        self, intake: Intake[T], *, metrics: InformerMetrics, skip_rejected: bool = False
    ) -> None:
        self.items: dict[Key, T] = {}
        self._intake = intake
        self._metrics = metrics
        self._skip_rejected = skip_rejected

    async def take(self, objects: Iterable[T]) -> None:
        """Take in the objects of a page, resting now and then."""
        budget = Budget(items=250)
        for obj in objects:
            self._take_one(obj)
            if budget.spent():
                await budget.rest()

    def apply(self, changes: Iterable[Change[T]]) -> None:
        """Take in changes of a stream."""
        for change in changes:
            if change.deleted:
                self.items.pop(change.key, None)
            else:
                self.items[change.key] = change.obj

    def empty_copy(self) -> Snapshot[T]:
        """Return a snapshot of the same kind without objects."""
        return Snapshot(self._intake, metrics=self._metrics, skip_rejected=self._skip_rejected)

    def clear(self) -> None:
        """Forget everything; the list begins anew."""
        self.items = {}

    def _take_one(self, obj: T) -> None:
        try:
            change = self._intake.add(obj)
        except Rejected as error:
            self._metrics.rejected(reason=error.reason)
            if not self._skip_rejected:
                raise
            _log.warning("list item left out: %s", error)
        else:
            self.items[change.key] = change.obj
