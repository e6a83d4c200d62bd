"""Triggers that read metrics from the target's own pods, without a Prometheus server.

Every pod's `/metrics` is read, one metric summed. A counter is compared by its rate: by how much it
grew since the last reading, pod by pod, so that a restart (the counter begins at zero) or a pod that came
meanwhile counts for what it has. A pod that cannot be read, or that went away since and took with it
what it knew, leaves the rate unknown: an error, which never lets a target sleep. The next rate is over all
the time since the last reading without one.

Clients create a labelled series at its first use. So a counter without any is at zero if its family is
declared, or if a pod of this target has shown it; else its name is taken for a mistake.

An answer is summed as it arrives, a little at a time, and never kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Hashable, Mapping

from elasti.api.triggers.cluster import PodsMetadata
from elasti.triggers.reader import ReadContext, ReaderSettings, TriggerReader, TriggerReading
from elasti.triggers.responses import (
    PodQueries,
    UnusableResponse,
    destinations_of,
    guarded_client,
    refuse_packed,
)
from kubeloop.aio.tasks import TimeBudget
from kubeloop.http.client import Answer
from kubeloop.metrics.reader import MetricSum, NotExposition

_MAX_BYTES = 16 << 20
_CHUNK = 32 * 1024
_REDIRECTS = 3
_AT_A_STRETCH = 0.005


@dataclasses.dataclass(frozen=True, slots=True)
class CounterState:
    """The counter of each pod at a time."""

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

        async def summed(answer: Answer) -> MetricSum:
            return await _summed(answer, metadata)

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


async def _summed(answer: Answer, metadata: PodsMetadata) -> MetricSum:
    """Read an answer to its end, letting others have their turn in between."""
    if answer.status >= 400:
        raise UnusableResponse(f"its answer at {metadata.path} is {answer.status}, not 200")
    refuse_packed(answer)
    summed, budget = MetricSum(metadata.metric, metadata.accepts), TimeBudget(_AT_A_STRETCH)
    try:
        async for piece in answer.pieces(limit=_MAX_BYTES):
            for first in range(0, len(piece), _CHUNK):
                summed.feed(piece[first : first + _CHUNK])
                if budget.spent():
                    await budget.rest()
        summed.end()
    except NotExposition as error:
        raise UnusableResponse(str(error)) from None
    return summed


def make_reader(settings: ReaderSettings) -> PodsReader:
    """Make the reader."""
    return PodsReader(PodQueries(guarded_client(destinations_of(settings))))
