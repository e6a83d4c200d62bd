"""Probes pods while connections are held for them.

Each probed pod has a task, which follows `plan.next_step`: it connects every 5 to 25 ms until the port accepts, then
runs the pod's probes one at a time until all have passed. Meanwhile it reads the pod once. No pod is probed while
no connection is held, nor if its Ready condition is true, unless it is a database that may still load.

A probe's initialDelaySeconds counts from the first accepted connection, since the pod's status shows only later
when its container started. The kubelet knows that earlier, and may report Ready first.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

from elasti.logger import get_logger
from elasti.resolver.projections import DatabaseKind, PodName
from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from elasti.resolver.readiness.checks import PodChecks, Reachability
from elasti.resolver.readiness.plan import (
    PlannedProbe,
    ProbePlan,
    ReadinessFacts,
    ReadinessPolicy,
    ReadinessStep,
    StartEnded,
    is_doubtful,
    next_step,
)
from kubeloop.aio.tasks import finish
from kubeloop.metrics.text import Histogram

INTERVAL = 0.025
# Connecting begins faster, and slows to the interval as the pod takes longer: by half a percent of its start.
FIRST_INTERVAL = 0.005
_PART_OF_START = 0.005
CONNECT_TIMEOUT = 1.0
# For how long a database that says it starts is believed, and not its pod's Ready condition.
LONGEST_DOUBT = 60.0
# An attempt whose first packet was dropped gets no answer for a second: another begins beside it.
OVERLAP = 0.1
_AT_ONCE = 2
# The first of hundreds of starting pods serves the Service; probing them all would not help.
MOST_AT_ONCE = 16

_log = get_logger(__name__)


class PodReader(Protocol):
    """Reads pods."""

    async def plan(self, pod: PodName) -> ProbePlan:
        """Return a pod's probe plan; for an unreadable pod only its Ready condition counts."""

    async def owns(self, pod: PodName, address: str) -> bool:
        """Whether an address is a pod's own; True if unknown."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A pod that connections wait for."""

    policy: ReadinessPolicy
    pod: PodName | None = None
    ready: bool = False
    #: It must accept a connection before anything else counts.
    has_refused: bool = False
    #: Whether the first waiting client speaks HTTP or gRPC.
    is_http: bool = True
    #: The port's database protocol.
    database: DatabaseKind | None = None

    @property
    def is_doubtful(self) -> bool:
        """Whether it may still start though its pod is Ready."""
        return is_doubtful(self.policy, self.database, is_http=self.is_http)


@dataclasses.dataclass(eq=False, kw_only=True, repr=False)
class Prober:
    """Probes the pods of one port. Calls `serves` for each pod that serves."""

    checks: PodChecks
    pods: PodReader
    serves: Callable[[UpstreamAddress], None]
    stages: Mapping[str, Histogram] | None = None

    def __post_init__(self) -> None:
        self._tasks: dict[UpstreamAddress, tuple[ProbeTarget, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Prober {len(self._tasks)} pods>"

    def set_targets(self, wanted: Mapping[UpstreamAddress, ProbeTarget]) -> None:
        """Probe exactly these pods; running probes continue."""
        for address in [a for a, (target, _) in self._tasks.items() if wanted.get(a) != target]:
            self._stop(address)
        for address, target in wanted.items():
            if len(self._tasks) >= MOST_AT_ONCE:
                return
            if address not in self._tasks:
                task = asyncio.get_running_loop().create_task(self._follow(address, target))
                self._tasks[address] = (target, task)
                task.add_done_callback(self._ended)

    async def aclose(self) -> None:
        """Stop probing."""
        for address in list(self._tasks):
            self._stop(address)
        await finish(self._ending)

    def _stop(self, address: UpstreamAddress) -> None:
        _, task = self._tasks.pop(address)
        if not task.done():
            self._ending.add(task)
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("probing a pod failed", exc_info=error)

    async def _follow(self, address: UpstreamAddress, target: ProbeTarget) -> None:
        reading: asyncio.Task[ProbePlan] | None = None
        asks_database = target.policy == "Protocol" and target.database is not None
        asks_pod = target.policy in ("Auto", "Protocol") and not asks_database
        if asks_pod and target.pod is not None and not target.ready:
            reading = asyncio.get_running_loop().create_task(self.pods.plan(target.pod))
        try:
            if await self._until_it_serves(address, target, reading):
                self.serves(address)
        finally:
            if reading is not None:
                await finish([reading])

    async def _until_it_serves(
        self, address: UpstreamAddress, target: ProbeTarget, reading: asyncio.Task[ProbePlan] | None
    ) -> bool:
        """Return True once it serves; False if only the Ready condition can tell."""
        # A change of Ready does not arrive here: it replaces the probe target.
        facts = ReadinessFacts(
            policy=target.policy,
            ready=target.ready,
            has_refused=target.has_refused,
            is_http=target.is_http,
        )
        if target.policy == "Protocol" and target.database is not None:
            asks = PlannedProbe(target.database, address.port)
            facts = dataclasses.replace(facts, plan=ProbePlan((asks,)))
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            match next_step(facts):
                case ReadinessStep.RELEASE:
                    if facts.ready and target.is_doubtful:
                        await self._until_start_ends(address, target)
                    if facts.accepts and self.stages is not None:
                        self.stages["probe"].add(loop.time() - began)
                    return True
                case ReadinessStep.AWAIT_READY:
                    return False
                case ReadinessStep.CONNECT:
                    await self._until_it_accepts(address)
                    facts = dataclasses.replace(facts, accepts=True)
                    if self.stages is not None:
                        self.stages["start"].add(loop.time() - began)
                    began = loop.time()
                case ReadinessStep.LEARN:
                    plan = await reading if reading is not None else ProbePlan(only_ready="no pod")
                    facts = dataclasses.replace(facts, plan=plan)
                case ReadinessStep.PROBE:
                    assert facts.plan is not None
                    await self._until_all_pass(address.host, facts.plan, accepted=began)
                    facts = dataclasses.replace(facts, passed=True)

    async def _until_it_accepts(self, address: UpstreamAddress) -> None:
        loop = asyncio.get_running_loop()
        begun, attempts = loop.time(), set[asyncio.Task[Reachability]]()
        try:
            while True:
                began = loop.time()
                if len(attempts) < _AT_ONCE:
                    connecting = self.checks.connect(address, timeout=CONNECT_TIMEOUT)
                    attempts.add(loop.create_task(connecting))
                done, attempts = await asyncio.wait(
                    attempts, timeout=OVERLAP, return_when=asyncio.FIRST_COMPLETED
                )
                if any(attempt.result() is Reachability.ACCEPTED for attempt in done):
                    return
                pause = max(FIRST_INTERVAL, min(_PART_OF_START * (began - begun), INTERVAL))
                await asyncio.sleep(max(pause - (loop.time() - began), 0.001))
        finally:
            await finish(attempts)

    async def _until_start_ends(self, address: UpstreamAddress, target: ProbeTarget) -> None:
        """Wait while a database says that it starts, for a while: its pod is Ready."""
        assert target.database is not None
        asks = PlannedProbe(StartEnded(target.database), address.port)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_DOUBT):
                await self._until_all_pass(address.host, ProbePlan((asks,)), accepted=0.0)

    async def _until_all_pass(self, host: str, plan: ProbePlan, *, accepted: float) -> None:
        loop = asyncio.get_running_loop()
        for question in plan.questions:
            await asyncio.sleep(max(accepted + question.delay - loop.time(), 0.0))
            passed = 0
            while passed < question.successes:
                if passed:
                    # Successes count once a period, as the kubelet counts them.
                    await asyncio.sleep(question.period)
                if await self.checks.ask(host, question):
                    passed += 1
                else:
                    passed = 0
                    await asyncio.sleep(INTERVAL)
