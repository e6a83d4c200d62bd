"""Reads all triggers, again and again, and keeps what each has shown.

A round asks everything concurrently, but by a fixed number of workers: thousands of triggers are never
thousands of tasks, and others have the loop in between. Identical queries go out once. Each
trigger's `Evidence` outlives the rounds for as long as the trigger stays what it is: a changed query
or threshold has shown nothing yet.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import aiohttp
import structlog

from elasti.api.triggers import PrometheusMetadata, threshold_of, trigger_metadata
from elasti.scaling.decide import Evidence, Reading
from elasti.scaling.triggers.pods import PodsReader
from elasti.scaling.triggers.prometheus import QueryRound
from kubeloop.aio.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from elasti.api.triggers import TriggerMetadata
    from elasti.api.types import ScaleTrigger
    from elasti.scaling.triggers.pods import PodEndpoint
    from kubeloop.aio.clock import Clock

_AT_ONCE = 64

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One ElastiService whose triggers are to be read."""

    key: Hashable
    triggers: Sequence[ScaleTrigger]
    cooldown: float
    pods: Sequence[PodEndpoint] = ()
    asleep: bool = False


@dataclasses.dataclass(slots=True)
class _Case:
    triggers: tuple[ScaleTrigger, ...]
    evidence: list[Evidence]


class Evaluator:
    """Reads triggers. Used as an `async with` block, which owns the connections."""

    def __init__(
        self,
        *,
        clock: Clock,
        stale_after: float,
        prometheus_address: str = "",
        prometheus_authorization: str = "",
    ) -> None:
        self._clock = clock
        self._stale_after = stale_after
        self._address = prometheus_address
        self._authorization = prometheus_authorization
        self._cases: dict[Hashable, _Case] = {}
        self._session: aiohttp.ClientSession | None = None
        self._pods: PodsReader | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_AT_ONCE), trust_env=False
        )
        self._pods = PodsReader(self._session)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    def evidence(
        self, key: Hashable, triggers: Sequence[ScaleTrigger] | None = None
    ) -> Sequence[Evidence]:
        """Return what the triggers have shown; nothing where they were never read.

        `triggers`: those that it must be about.
        """
        case = self._cases.get(key)
        if case is None or (triggers is not None and case.triggers != tuple(triggers)):
            return ()
        return tuple(case.evidence)

    def forget(self, key: Hashable) -> None:
        """The ElastiService is gone."""
        case = self._cases.pop(key, None)
        if case is not None and self._pods is not None:
            for index in range(len(case.triggers)):
                self._pods.forget((key, index))

    async def poll(self, subjects: Iterable[Subject]) -> None:
        """Read the triggers of all subjects once."""
        assert self._session is not None
        queries = QueryRound(
            self._session,
            clock=self._clock,
            default_address=self._address,
            authorization=self._authorization,
        )
        jobs = self._jobs(subjects)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(self._work(jobs, queries))
        finally:
            await queries.close()

    def _jobs(self, subjects: Iterable[Subject]) -> Iterator[tuple[Subject, _Case, int]]:
        for subject in subjects:
            case = self._case(subject)
            for index in range(len(case.triggers)):
                yield subject, case, index

    async def _work(self, jobs: Iterator[tuple[Subject, _Case, int]], queries: QueryRound) -> None:
        budget = Budget()
        for subject, case, index in jobs:
            await self._read(subject, case, index, queries)
            if budget.spent():
                await budget.rest()

    def _case(self, subject: Subject) -> _Case:
        triggers = tuple(subject.triggers)
        case = self._cases.get(subject.key)
        if case is None or case.triggers != triggers:
            self.forget(subject.key)
            evidence = [Evidence(_threshold(trigger)) for trigger in triggers]
            case = self._cases[subject.key] = _Case(triggers, evidence)
        return case

    async def _read(self, subject: Subject, case: _Case, index: int, queries: QueryRound) -> None:
        try:
            reading = await self._reading(subject, case.triggers[index], index, queries)
        except Exception as error:  # noqa: BLE001 -- whoever answers is not ours, and must stop nobody else
            # Its words may hold a credential; its class does not.
            kind = type(error).__name__
            _log.error("a trigger cannot be read", of=str(subject.key), index=index, error=kind)
            reading = Reading(error=f"it could not be read ({kind})")
        now = self._clock.now().timestamp()
        case.evidence[index] = case.evidence[index].after(
            reading, now, stale_after=self._stale_after
        )

    async def _reading(
        self, subject: Subject, trigger: ScaleTrigger, index: int, queries: QueryRound
    ) -> Reading:
        try:
            metadata: TriggerMetadata = trigger_metadata(trigger)
        except ValueError as error:
            return Reading(error=str(error))
        if isinstance(metadata, PrometheusMetadata):
            return await queries.read(metadata, subject.cooldown)
        assert self._pods is not None
        key = (subject.key, index)
        return await self._pods.read(key, metadata, subject.pods, asleep=subject.asleep)


def _threshold(trigger: ScaleTrigger) -> float:
    try:
        return threshold_of(trigger_metadata(trigger))
    except ValueError:
        return 0.0
