"""Reads all triggers, again and again, and keeps what each has shown.

A round reads everything concurrently, but by a fixed number of workers: thousands of triggers
are never thousands of tasks, and other tasks get the loop in between. Each trigger's `Evidence`
outlives the rounds until the trigger changes: a new query or threshold has shown nothing yet.

Which server a trigger asks is its author's choice, and may be slow. So no tenant (a
namespace) has more than half of the workers, and a round ends in time for no other tenant's
evidence to grow stale; what was read longest ago is read first, so whatever a round leaves out
begins the next.

Evidence is kept under an `EvidenceKey`: one ElastiService with one Service and one target.
If the spec names another target, Service or trigger, its evidence is empty as soon as the directory
knows: not only from the next round on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, Self

from elasti.api.triggers.registry import Role, TriggerMetadata, read_metadata
from elasti.api.types import ElastiServiceSpec, ScaleTrigger
from elasti.logger import get_logger
from elasti.operator.idleness.decide import Evidence
from elasti.operator.watch.directory import Directory
from elasti.triggers.reader import (
    ReadContext,
    ReaderSettings,
    TriggerReader,
    TriggerReading,
    open_reader,
)
from kubeloop.aio.fairness import FairQueue
from kubeloop.aio.tasks import TimeBudget
from kubeloop.controller.reconcile import Request

_AT_ONCE = 64
_PER_TENANT = 32

_log = get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One ElastiService whose triggers are to be read; its namespace is the tenant, which shares workers.

    `inherited`: when the previous leader first found each trigger quiet.
    """

    triggers: Sequence[ScaleTrigger]
    context: ReadContext
    """The same for all of them, except the key: that of a trigger has its place too."""
    inherited: Sequence[float | None] = ()

    @property
    def key(self) -> Hashable:
        """What its evidence is kept under."""
        return self.context.key


@dataclasses.dataclass(slots=True)
class _EvidenceRecord:
    triggers: tuple[ScaleTrigger, ...]
    metadata: list[TriggerMetadata | ValueError]
    evidence: list[Evidence]


class _ReadJob(NamedTuple):
    subject: Subject
    record: _EvidenceRecord
    trigger: int


@dataclasses.dataclass(eq=False, kw_only=True)
class Evaluator:
    """Reads triggers. Used as an `async with` block, which owns the connections.

    `former_at`: when the previous leader last read them, in seconds since 1970.
    """

    settings: ReaderSettings
    stale_after: float
    former_at: float = -math.inf

    def __post_init__(self) -> None:
        self._records: dict[Hashable, _EvidenceRecord] = {}
        self._readers: dict[str, TriggerReader] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for key in tuple(self._records):
            self.forget(key)
        for reader in self._readers.values():
            await reader.close()

    def evidence(
        self, key: Hashable, triggers: Sequence[ScaleTrigger] | None = None
    ) -> Sequence[Evidence]:
        """Return the evidence of the triggers; empty if they were never read.

        `triggers`: those that it must be about.
        """
        record = self._records.get(key)
        if record is None or (triggers is not None and record.triggers != tuple(triggers)):
            return ()
        return tuple(record.evidence)

    def forget(self, key: Hashable) -> None:
        """The ElastiService is gone."""
        record = self._records.pop(key, None)
        for index, trigger in enumerate(record.triggers if record is not None else ()):
            if (reader := self._readers.get(trigger.type)) is not None:
                reader.forget((key, index))

    async def poll(
        self, subjects: Iterable[Subject], on_read: Callable[[Hashable], None] | None = None
    ) -> None:
        """Read the triggers of all subjects once; `on_read` is called with each key once it is read."""
        jobs = await self._queue_jobs(subjects)
        try:
            async with asyncio.timeout(self.stale_after / 3), asyncio.TaskGroup() as group:
                for _ in range(min(_AT_ONCE, len(jobs))):
                    group.create_task(self._work(jobs, on_read))
        except TimeoutError:
            _log.warning("round ended with triggers left to read", left=len(jobs))
        finally:
            for reader in self._readers.values():
                await reader.end_round()

    async def _queue_jobs(self, subjects: Iterable[Subject]) -> FairQueue[_ReadJob]:
        """Return all that is to be read, by tenant, what was read longest ago first."""
        found, budget = [], TimeBudget()
        for subject in subjects:
            record = self._record(subject)
            found += [_ReadJob(subject, record, index) for index in range(len(record.triggers))]
            if budget.spent():
                await budget.rest()
        found.sort(key=lambda job: job.record.evidence[job.trigger].read_at)
        jobs: FairQueue[_ReadJob] = FairQueue(per_group=_PER_TENANT)
        for job in found:
            jobs.add(job.subject.context.namespace, job)
        return jobs

    async def _work(
        self, jobs: FairQueue[_ReadJob], on_read: Callable[[Hashable], None] | None
    ) -> None:
        budget = TimeBudget()
        while (taken := jobs.take()) is not None:
            tenant, job = taken
            try:
                await self._read(*job)
            finally:
                jobs.done(tenant)
            if on_read is not None:
                on_read(job.subject.key)
            if budget.spent():
                await budget.rest()

    def _record(self, subject: Subject) -> _EvidenceRecord:
        triggers = tuple(subject.triggers)
        record = self._records.get(subject.key)
        if record is None or record.triggers != triggers:
            self.forget(subject.key)
            # Metadata is read once, not in every round.
            metadata = [_metadata(trigger) for trigger in triggers]
            inherited = subject.inherited or [None] * len(triggers)
            evidence = [
                Evidence(
                    item.limit() if isinstance(item, TriggerMetadata) else 0.0,
                    quiet_since=since,
                    known_at=self.former_at,
                    veto=trigger.effective_role is Role.VETO,
                )
                for item, since, trigger in zip(metadata, inherited, triggers, strict=True)
            ]
            record = self._records[subject.key] = _EvidenceRecord(triggers, metadata, evidence)
        return record

    async def _read(self, subject: Subject, record: _EvidenceRecord, index: int) -> None:
        try:
            reading = await self._reading(subject, record, index)
        except Exception as error:  # noqa: BLE001 -- one tenant's trigger must not end the round of all
            # Its message may hold a credential; its class does not.
            kind = type(error).__name__
            _log.error("trigger cannot be read", service=str(subject.key), index=index, error=kind)
            reading = TriggerReading(error=f"it could not be read ({kind})")
        now = self.settings.clock.now().timestamp()
        record.evidence[index] = record.evidence[index].after(
            reading, now, stale_after=self.stale_after, asleep=subject.context.asleep
        )

    async def _reading(
        self, subject: Subject, record: _EvidenceRecord, index: int
    ) -> TriggerReading:
        kind, metadata = record.triggers[index].type, record.metadata[index]
        if isinstance(metadata, ValueError):
            return TriggerReading(error=str(metadata))
        if kind not in self._readers:
            self._readers[kind] = open_reader(kind, self.settings)
        context = dataclasses.replace(subject.context, key=(subject.key, index))
        return await self._readers[kind].read(metadata, context)


def _metadata(trigger: ScaleTrigger) -> TriggerMetadata | ValueError:
    try:
        return read_metadata(trigger.type, trigger.metadata)
    except ValueError as error:
        return error


class EvidenceKey(NamedTuple):
    """One ElastiService and what it names; prints as the ElastiService."""

    request: Request
    uid: str
    service: str
    api_version: str
    kind: str
    target: str

    def __str__(self) -> str:
        return str(self.request)


def evidence_key(request: Request, uid: str, spec: ElastiServiceSpec) -> EvidenceKey:
    """Return what evidence is kept under."""
    ref = spec.scale_target_ref
    return EvidenceKey(request, uid, spec.service, ref.api_version, ref.kind, ref.name)


def evidence_lookup(
    directory: Directory, evaluator: Evaluator
) -> Callable[[Request], Sequence[Evidence]]:
    """Return a function that finds the present evidence for an ElastiService."""

    def evidence(request: Request) -> Sequence[Evidence]:
        details = directory.get(request)
        if details is None:
            return ()
        key = evidence_key(request, details.uid, details.spec)
        return evaluator.evidence(key, details.spec.triggers)

    return evidence
