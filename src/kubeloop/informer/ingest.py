"""What each event of one watch means: a change, a bookmark, an error, or nothing we can use.

This is the innermost loop of an informer; it runs once for each event, and everything that is the
same for a whole stream is looked up before it.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from kubeloop.client.errors import ApiError, error_from_object
from kubeloop.informer.intake import Change, Intake, Rejected
from kubeloop.objects.events import (
    ADDED,
    BOOKMARK,
    DELETED,
    ERROR,
    INITIAL_EVENTS_END,
    MODIFIED,
    WatchEvent,
)
from kubeloop.objects.meta import DICT_ACCESS, STRUCT_ACCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kubeloop.informer.metrics import InformerMetrics

T = TypeVar("T")

_log = logging.getLogger(__name__)
_IS_DELETE: Mapping[str, bool] = {ADDED: False, MODIFIED: False, DELETED: True}


@dataclasses.dataclass(frozen=True, slots=True)
class BookmarkSeen:
    """The stream is at `version`; `ends_initial` closes the initial events of a streaming list."""

    version: str
    ends_initial: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorSeen:
    """The server ended the watch with an error."""

    error: ApiError


Special: TypeAlias = BookmarkSeen | ErrorSeen


class Ingest(Generic[T]):
    """Reads the events of one watch.

    `version` is where the watch would resume: the version of the last accepted event. A watch that
    began at "" or "0" first replays existing objects in any order, whose versions are no place to
    resume at: until something else than ADDED comes, `version` stays what it was.
    """

    __slots__ = ("_intake", "_metrics", "_mismatch", "_replaying", "accepted", "version")

    def __init__(
        self,
        *,
        intake: Intake[T],
        version: str,
        metrics: InformerMetrics,
        mismatch: Callable[[Any], str] | None = None,
    ) -> None:
        self.version = version
        self.accepted = 0
        self._intake = intake
        self._metrics = metrics
        self._mismatch = mismatch
        self._replaying = version in {"", "0"}

    def read(self, events: Iterator[WatchEvent[T]]) -> tuple[list[Change[T]], Special | None]:
        """Read on to the next bookmark or error, or to the end of `events`.

        Returns the changes up to there, and what stopped the reading, None at the end.
        """
        changes: list[Change[T]] = []
        append, prepare = changes.append, self._intake.prepare
        version_of, mismatch = self._intake.access.version, self._mismatch
        version, accepted = self.version, 0
        special: Special | None = None
        for kind, obj in events:
            deleted = _IS_DELETE.get(kind)
            if deleted is None:
                special, found = self._special(kind, obj)
                if found:
                    version, accepted, self._replaying = found, accepted + 1, False
                if special is None:
                    continue
                break
            if mismatch is not None and (why := mismatch(obj)):
                self._drop("type", why)
                continue
            found = version_of(obj)
            if not found:
                self._drop("metadata", f"{kind} without metadata or resourceVersion")
                continue
            try:
                append(prepare(obj, found, deleted))
            except Rejected as error:
                self._drop(error.reason, f"{kind} at version {found}: {error}")
            accepted += 1
            if self._replaying:
                if kind == ADDED:
                    continue
                self._replaying = False
            version = found
        self.version = version
        self.accepted += accepted
        return changes, special

    def _special(self, kind: str, obj: Any) -> tuple[Special | None, str]:
        if kind == ERROR:
            return ErrorSeen(error_from_object(obj if isinstance(obj, dict) else {})), ""
        access = DICT_ACCESS if isinstance(obj, dict) else STRUCT_ACCESS
        version = access.version(obj)
        if kind != BOOKMARK:
            self._drop("event", f"unknown event type {kind!r}")
            return None, version
        if not version:
            self._drop("metadata", "BOOKMARK without a resourceVersion")
            return None, ""
        ends = access.annotations(obj).get(INITIAL_EVENTS_END) == "true"
        return BookmarkSeen(version, ends), version

    def _drop(self, reason: str, why: str) -> None:
        self._metrics.rejected(reason=reason)
        _log.warning("watch event dropped: %s", why)
