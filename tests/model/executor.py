"""The operator's own executor on a state of the search.

Its coroutines run until they are done or ask the resolvers: what a write or an answer is, the search says.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from elasti.api.wire import ActivityReport
from elasti.operator.handover.execute import HandoverExecutor, combined_activity
from elasti.operator.handover.listing import SlicePublisher
from elasti.operator.model.facts import Decision, Facts, Verdict
from elasti.operator.model.state import Activity, ServiceState
from elasti.operator.scale_handler import ScaleHandler, TargetScale
from kubeloop.client.errors import RequestTimeout
from tests.model.records import (
    BY_PLACE,
    ES,
    NOW,
    SETTINGS,
    endpoints,
    memory_of,
    records_of,
    slices,
    target,
)
from tests.model.world import RESOLVERS, Memory

_CLOCK = SimpleNamespace(now=lambda: dt.datetime.fromtimestamp(NOW, dt.UTC))


class Seen(NamedTuple):
    """What a park meets: the target as it is, as the leader sees it, and whether triggers are still quiet."""

    replicas: int
    shown: int
    idle: bool


class Parked(NamedTuple):
    """How a park went; `asks`: the resolvers are asked once more."""

    memory: Memory
    wrote: bool
    asks: bool


class _Asks(Exception):
    """The executor asks the resolvers: the search goes on from there."""


@functools.cache
def activity(asked: int, up: int, held: int, arrived: int) -> Activity:
    """Return what resolvers answer together; those that are not up give no answer."""
    reports = [
        ActivityReport(
            held=0, open=int(bool(held & one)), last_arrival_age=0.0 if arrived & one else None
        )
        if up & one
        else None
        for one in RESOLVERS
        if asked & one
    ]
    return combined_activity(reports, since=1.0)


def ask(facts: Facts, state: ServiceState, answer: Activity) -> bool:
    """Ask the resolvers if the next step depends on it; returns whether they were asked."""
    asked = mock.Mock(side_effect=_resolved(answer))
    decisions = SimpleNamespace(clock=_CLOCK)
    stub: Any = SimpleNamespace(settings=SETTINGS, decisions=decisions, _activity=asked)
    _done(HandoverExecutor.ask(stub, facts, state))
    return bool(asked.called)


@functools.cache
def listing(memory: Memory, shown: int | None, listed: int, seen_up: int) -> Memory:
    """Return what is remembered of those that are being listed, and of whom to ask."""
    state, facts = records_of(memory), SimpleNamespace(slices=slices(shown))
    stub: Any = SimpleNamespace(_exists=lambda endpoint: bool(BY_PLACE[endpoint.place] & seen_up))
    some: Any = facts
    query = SlicePublisher._to_query(stub, some, state, endpoints(listed))
    state.listing.note_listing(endpoints(listed), query)
    return memory_of(state, memory)


@functools.cache
def published(memory: Memory) -> Memory:
    """Return what is remembered once the slice is written."""
    state = records_of(memory)
    state.listing.note_published(NOW)
    return memory_of(state, memory)


@functools.cache
def park(memory: Memory, seen: Seen, outcome: str) -> Parked:
    """Park, up to where the resolvers are asked once more."""
    state, scales = records_of(memory), _Scales(seen.replicas, outcome)
    try:
        _park(state, scales, seen, mock.AsyncMock(side_effect=_Asks))
    except _Asks:
        return Parked(memory_of(state, memory), scales.wrote, asks=True)
    return Parked(memory_of(state, memory), scales.wrote, asks=False)


@functools.cache
def wakes_again(memory: Memory, answer: Activity) -> bool:
    """Return whether a park that was made is undone by what the resolvers answer."""
    state = records_of(memory._replace(parked_here=False, decided_on=1, wake=False))
    _park(state, _Scales(1, "ok"), Seen(1, 1, idle=True), mock.AsyncMock(return_value=answer))
    return memory.wake or state.requests.wake


def _park(state: ServiceState, scales: _Scales, seen: Seen, asked: mock.AsyncMock) -> None:
    verdict = Verdict.SLEEP if seen.idle else Verdict.STAY
    facts: Any = SimpleNamespace(
        drained=False,
        autoscaler=None,
        es=ES,
        request=(ES.metadata.namespace, ES.metadata.name),
        target=target(seen.shown),
        decision=Decision(verdict, "model"),
        ready=frozenset(),
    )
    stub: Any = mock.Mock()
    stub.decisions.clock, stub.scales, stub._activity = _CLOCK, scales, asked
    stub.conflicts, stub.writer = mock.AsyncMock(), mock.AsyncMock()
    stub.decisions.together.return_value = facts.decision
    stub._scale_to_zero = functools.partial(HandoverExecutor._scale_to_zero, stub)
    asyncio.run(HandoverExecutor._park(stub, facts, state))


class _Scales(ScaleHandler):
    """The target of a world, whose next write has this outcome."""

    def __init__(self, replicas: int, outcome: str) -> None:
        self._replicas, self._outcome = replicas, outcome
        self.wrote = False

    async def _scales(self, _target: Any) -> Any:
        return SimpleNamespace(get=self._get, patch=self._patch)

    async def _get(self, name: str, *, namespace: str) -> TargetScale:
        del name, namespace
        view = target(self._replicas).view
        scale = TargetScale(mock.Mock(uid=view.uid, resource_version=view.version))
        scale.spec.replicas = view.replicas
        return scale

    async def _patch(self, name: str, *_args: Any, namespace: str, **_options: Any) -> TargetScale:
        if self._outcome != "failed":
            self._replicas, self.wrote = 0, True
        if self._outcome != "ok":
            raise RequestTimeout("the write was not answered")
        return await self._get(name, namespace=namespace)


async def _answered(answer: Activity) -> Activity:
    return answer


def _resolved(answer: Activity) -> Any:
    return lambda *_args, **_options: _answered(answer)


def _done(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")
