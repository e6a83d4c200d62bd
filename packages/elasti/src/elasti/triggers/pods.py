"""Triggers that ask the target's own pods: no Prometheus needed.

Every pod's `/metrics` is read, one metric summed. A counter is compared by its rate: by how much it
grew since the last reading, pod by pod, so that a restart (the counter begins at zero) or a pod that came
meanwhile counts for what it has. A pod that cannot be read, or that went away since and took with it
what it knew, leaves the rate unknown: an error, which never lets a target sleep. The next rate is over all
the time since the last reading without one.

Clients create a labelled series at its first use. So a counter without any is at zero where its family is
declared, or where a pod of this target has shown it; else its name is taken for a mistake.

What pods serve is summed as it comes, a little at a time, and never held.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from elasti.triggers.registry import (
    ReadContext,
    ReaderSettings,
    TriggerMetadata,
    TriggerReader,
    TriggerReading,
    TriggerType,
)
from elasti.triggers.responses import (
    PodQueries,
    UnusableResponse,
    body_chunks,
    pod_session,
    refuse_packed,
)
from kubeloop.aio.tasks import TimeBudget
from kubeloop.metrics.reader import MetricSum, NotExposition

if TYPE_CHECKING:
    import aiohttp

_MAX_BYTES = 16 << 20
_REDIRECTS = 3
_AT_A_STRETCH = 0.005


class PodsMetadata(TriggerMetadata, frozen=True):
    """A metric that the target's own pods serve, summed over all of them.

    A counter is compared by its rate per second, a gauge by its value. `kind` left out means
    counter for names that end in `_total` and gauge otherwise. `port` left out is the Service's
    first target port. `labels` are what a sample must have, or `match` with these and `notMatch`
    with a value, or a list of values, whose samples do not count.
    """

    metric: Annotated[
        str, Meta(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", description="Its name, of type pods.")
    ]
    port: Annotated[
        int | str, Meta(description="Where pods serve it: a name or number of the Service's port.")
    ] = 0
    path: Annotated[str, Meta(pattern="^/", description="Where pods serve it.")] = "/metrics"
    kind: Annotated[
        Literal["", "counter", "gauge"], Meta(description="Compared by its rate, or by its value.")
    ] = ""
    labels: Annotated[
        dict[str, str | dict[str, str | list[str]]],
        Meta(description="Which samples count: label values, or match and notMatch with such."),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.port, int) and not 0 <= self.port < 65536:
            raise ValueError(f"port {self.port} is none; write a name, or a number up to 65535")
        nested = [key for key, value in self.labels.items() if isinstance(value, dict)]
        if nested and not (len(nested) == len(self.labels) and {*nested} <= {"match", "notMatch"}):
            raise ValueError(
                "labels is either {handler: /api} or {match: {...}, notMatch: {...}}, not both"
            )

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Whether a sample with these labels counts."""
        found: Mapping[str, Any] = self.labels
        if not any(isinstance(value, dict) for value in found.values()):
            found = {"match": found}
        return all(
            labels.get(name) in _choices(wanted) for name, wanted in found.get("match", {}).items()
        ) and not any(
            labels.get(name) in _choices(unwanted)
            for name, unwanted in found.get("notMatch", {}).items()
        )

    @property
    def is_counter(self) -> bool:
        """Whether the metric is compared by its rate."""
        return self.kind == "counter" or (not self.kind and self.metric.endswith("_total"))


def _choices(wanted: str | list[str]) -> list[str]:
    return wanted if isinstance(wanted, list) else [wanted]


@dataclasses.dataclass(frozen=True, slots=True)
class CounterState:
    """What each pod's counter was, and when."""

    at: float
    values: Mapping[str, float]


def rate(before: CounterState | None, now: float, values: Mapping[str, float]) -> TriggerReading:
    """Return by how much counters grew a second since they were read before."""
    if before is None or now <= before.at:
        return TriggerReading(error="this is the first reading; a rate needs two", pending=True)
    if gone := before.values.keys() - values.keys():
        return TriggerReading(error=f"{len(gone)} pods went away since the last reading")
    grown = sum(_grown(before.values.get(pod), value) for pod, value in values.items())
    return TriggerReading(grown / (now - before.at), span=now - before.at)


def _grown(before: float | None, now: float) -> float:
    return now if before is None or now < before else now - before


class PodsReader(TriggerReader):
    """Reads pods; remembers counters between readings, by trigger."""

    def __init__(self, queries: PodQueries) -> None:
        self._queries = queries
        self._counters: dict[Hashable, CounterState] = {}
        self._shown: set[Hashable] = set()

    async def read(self, metadata: PodsMetadata, context: ReadContext) -> TriggerReading:
        """Return the metric's sum or rate; a target that sleeps needs no pods to be idle."""
        key, pods = context.key, context.pods()
        if not pods:
            self._counters.pop(key, None)
            none = TriggerReading(error="there is no pod to ask", pending=True)
            return TriggerReading(0.0) if context.asleep else none
        now = asyncio.get_running_loop().time()

        async def summed(response: aiohttp.ClientResponse) -> MetricSum:
            return await _summed(response, metadata)

        answers = await self._queries.ask(
            pods, metadata.port, metadata.path, summed, redirects=_REDIRECTS
        )
        if isinstance(answers, str):
            return TriggerReading(error=answers)
        sums = {pod.identity: answer for pod, answer in zip(pods, answers, strict=True)}
        if metadata.is_counter and any(answer.is_declared for answer in sums.values()):
            self._shown.add(key)
        absent = 0.0 if key in self._shown else None
        values: dict[str, float] = {}
        for pod in pods:
            value = sums[pod.identity].result()
            if value is None and (value := absent) is None:
                labels = " with these labels" if metadata.labels else ""
                return TriggerReading(
                    error=f"pod {pod.address} has no metric {metadata.metric}{labels}"
                )
            values[pod.identity] = value
        if not metadata.is_counter:
            return TriggerReading(sum(values.values()))
        before, self._counters[key] = self._counters.get(key), CounterState(now, values)
        return rate(before, now, values)

    def forget(self, key: Hashable) -> None:
        """Drop the counters of a trigger."""
        self._counters.pop(key, None)
        self._shown.discard(key)

    async def close(self) -> None:
        """Close connections."""
        await self._queries.close()


async def _summed(response: aiohttp.ClientResponse, metadata: PodsMetadata) -> MetricSum:
    """Read an answer to its end, letting others have their turn in between."""
    if not response.ok:
        raise UnusableResponse(f"its answer at {metadata.path} is {response.status}, and not 200")
    refuse_packed(response)
    summed, budget = MetricSum(metadata.metric, metadata.accepts), TimeBudget(_AT_A_STRETCH)
    try:
        async for piece in body_chunks(response, limit=_MAX_BYTES):
            summed.feed(piece)
            if budget.spent():
                await budget.rest()
        summed.end()
    except NotExposition as error:
        raise UnusableResponse(str(error)) from None
    return summed


def _make_reader(_settings: ReaderSettings) -> PodsReader:
    return PodsReader(PodQueries(pod_session()))


TRIGGER = TriggerType(name="pods", metadata=PodsMetadata, reader=_make_reader)
