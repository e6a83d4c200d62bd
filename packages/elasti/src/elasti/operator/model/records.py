"""The leader's records beside the hand-over: the listing, the autoscalers, conflicts with other writers.

Each record is written by its own methods alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from elasti.api.types import is_object_name
from kubeloop.objects.core import EndpointSlice, ServiceEndpoint

# Entries of the annotation without a type were written before there was more than one.
_UNTYPED = "keda"
_FIRST_RETRY = 0.5
_LONGEST_RETRY = 60.0
_CONFLICT_WINDOW = 3600.0
_CONTESTED_AT = 3
_LONGEST_BACKOFF = 86400.0


@dataclasses.dataclass(slots=True)
class ListingState:
    """The resolvers in one Service's rotation. Written here alone."""

    listed: tuple[ServiceEndpoint, ...] = ()
    listed_since: Mapping[str, float] = dataclasses.field(default_factory=dict)  #: by place
    #: every resolver that may have seen traffic, by place
    to_query: Mapping[str, ServiceEndpoint] = dataclasses.field(default_factory=dict)
    verified: frozenset[tuple[str, int]] = frozenset()  #: confirmed pairs of place and port
    probe_failures: int = 0  #: in a row
    legacy_checked: bool = False  #: no slice of our name is hidden from the cache

    @property
    def query_targets(self) -> tuple[ServiceEndpoint, ...]:
        """Every resolver that may have seen traffic; empty if no resolver is listed now."""
        return tuple(self.to_query.values()) if self.listed else ()

    def long_listed(self, endpoint: ServiceEndpoint, now: float, settle: float) -> bool:
        """Whether a resolver has been listed for the whole engage settle."""
        since = self.listed_since.get(endpoint.place)
        return since is not None and now - since >= settle

    def note_answers(
        self, ready: Iterable[ServiceEndpoint], answers: Mapping[tuple[str, int], bool]
    ) -> None:
        """Keep which ready resolvers confirmed which ports."""
        places = {endpoint.place for endpoint in ready}
        confirmed = {pair for pair, answer in answers.items() if answer}
        self.verified = frozenset(p for p in self.verified if p[0] in places) | confirmed
        self.probe_failures = 0 if all(answers.values()) else self.probe_failures + 1

    def note_listing(
        self, listed: tuple[ServiceEndpoint, ...], to_query: Mapping[str, ServiceEndpoint]
    ) -> None:
        """These are being listed; those are to be asked about traffic."""
        self.listed, self.to_query = listed, to_query

    def note_published(self, now: float) -> None:
        """Keep when each listed resolver became listed."""
        self.listed_since = {e.place: self.listed_since.get(e.place, now) for e in self.listed}

    def note_unlabelled(self, found: Sequence[EndpointSlice] | None) -> None:
        """The server was asked for slices that no cache shows; None: it was not."""
        if found is not None:
            self.legacy_checked = not found

    def recall(self, *, legacy_checked: bool) -> None:
        """Take over whether an earlier leader found no such slices."""
        self.legacy_checked = legacy_checked

    def forget_queries(self) -> None:
        """An attempt to park begins: what was seen before it does not count."""
        self.to_query = {}

    def forget(self) -> None:
        """No resolver is listed now."""
        self.listed, self.listed_since, self.to_query = (), {}, {}


class AutoscalerRef(NamedTuple):
    """One autoscaler object, by the type that `spec.autoscaler` gives it, and its name."""

    type: str
    name: str

    def __str__(self) -> str:
        return self.name if self.type == _UNTYPED else f"{self.type}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> AutoscalerRef:
        """Read what `str` writes."""
        kind, _, name = text.rpartition("/")
        return cls(kind or _UNTYPED, name)


@dataclasses.dataclass(slots=True)
class AutoscalerState:
    """Which autoscalers of one ElastiService must be resumed. Written here alone.

    `resumed`: we do not pause the named autoscaler; unknown after a start.
    `retry_at` is the loop's time.
    """

    paused: frozenset[AutoscalerRef] = frozenset()
    resumed: bool = False
    failures: int = 0
    retry_at: float = -math.inf

    @property
    def annotation(self) -> str:
        """The autoscalers that may be paused, for the next leader."""
        return ",".join(sorted(map(str, self.paused)))

    def recall(self, annotation: str) -> None:
        """Take over the record of the previous leader."""
        refs = (AutoscalerRef.parse(text) for text in annotation.split(","))
        # Others may write annotations, too: what cannot be a name was never paused.
        self.paused = frozenset(ref for ref in refs if is_object_name(ref.name))

    def owed(self, named: AutoscalerRef | None) -> tuple[AutoscalerRef, ...]:
        """Return what must work again and may not do so yet, once the target is awake."""
        found = set(self.paused)
        if named is not None and not self.resumed:
            found.add(named)
        return tuple(sorted(found))

    def note_park(self, named: AutoscalerRef | None) -> None:
        """A park begins: what is named will be paused."""
        self.resumed = False
        if named is not None:
            self.paused |= {named}

    def note_resumed(self, ref: AutoscalerRef, named: AutoscalerRef | None) -> None:
        """One works again."""
        self.failures = 0
        self.resumed = self.resumed or ref == named
        self.paused -= {ref}

    def note_failure(self, now: float) -> None:
        """One could not be resumed; the next try comes ever later."""
        self.failures += 1
        self.retry_at = now + retry_delay(self.failures)


def retry_delay(failures: int) -> float:
    """Return how long to wait before the next try, after that many failures."""
    return min(_FIRST_RETRY * 2.0 ** min(failures - 1, 10), _LONGEST_RETRY)


@dataclasses.dataclass(slots=True)
class ScaleConflict:
    """Parks that another writer undid, and how long to leave the target alone for it.

    `stamp` is the `lastScaledUpTime` that the last park found: every replica of ours that wakes a
    target writes a new one. `unclear`: it was scaled up, and the server did not record the field manager.
    Times are seconds since 1970.
    """

    undone: tuple[float, ...] = ()
    until: float = -math.inf
    by: str = ""
    stamp: str | None = None
    unclear: bool = False

    @property
    def is_contested(self) -> bool:
        """Whether three parks within an hour were undone."""
        return len(self.undone) >= _CONTESTED_AT

    def record(self, now: float, by: str, cooldown: float) -> None:
        """Note that a park was undone; from the third within an hour on, wait ever longer."""
        self.undone = (*_recent(self.undone, now), now)
        self.by = by
        if self.is_contested:
            doublings = len(self.undone) - _CONTESTED_AT + 1
            self.until = now + min(max(cooldown, 60.0) * 2.0**doublings, _LONGEST_BACKOFF)

    def calm(self, now: float) -> None:
        """Forget what is long ago, once the wait is over."""
        if now >= self.until:
            self.undone = _recent(self.undone, now)

    def note_park(self, last_scaled_up: str | None) -> None:
        """A park was made; the ElastiService says that it was last scaled up then."""
        self.stamp = last_scaled_up

    def leave_unclear(self) -> None:
        """It was scaled up; the field manager is to be found out."""
        self.unclear = True

    def take_unclear(self) -> bool:
        """Return whether something is to be found out, and leave it at that."""
        unclear, self.unclear = self.unclear, False
        return unclear


def _recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - at < _CONFLICT_WINDOW)
