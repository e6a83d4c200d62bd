"""Finds out when pods begin to serve, for as long as connections are held for them.

Each pod that is probed has a task of its own, which does what `policy.next_step` says: connect every 25 ms
until the port accepts, then run the pod's probes one at a time until all have passed. The pod is read once,
while its port is still being tried. Nothing is probed while no connection is held, and no pod whose Ready
condition is true.

A probe's initialDelaySeconds is counted from the connection that the port accepted first, since a pod says
only later when its container started; the kubelet, which knows, may find it Ready before.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Protocol

import structlog

from elasti.resolver.readiness.checks import PodChecks, Reachability
from elasti.resolver.readiness.plan import (
    DatabaseKind,
    PlannedProbe,
    ProbePlan,
    ReadinessFacts,
    ReadinessStep,
    next_step,
)
from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elasti.resolver.projections import PodName
    from elasti.resolver.proxy.upstream.interface import UpstreamAddress
    from elasti.resolver.readiness.plan import ReadinessPolicy
    from kubeloop.metrics.text import Histogram


INTERVAL = 0.025
CONNECT_TIMEOUT = 1.0
# A Service with hundreds of pods starting is served by the first of them; probing all is no help.
MOST_AT_ONCE = 16

_log = structlog.get_logger(__name__)


class PodReader(Protocol):
    """Reads pods."""

    async def plan(self, pod: PodName) -> ProbePlan:
        """Return how a pod is asked; one that cannot be read is left to Kubernetes."""

    async def owns(self, pod: PodName, address: str) -> bool:
        """Whether an address is a pod's own; True where that cannot be found out."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A pod that is waited for: what counts as serving, whose probes to ask, and what it did.

    One that refused a connection must accept one before anything else counts. `is_http`: so speaks the
    client that waits; `database`: what the port speaks.
    """

    policy: ReadinessPolicy
    pod: PodName | None = None
    ready: bool = False
    has_refused: bool = False
    is_http: bool = True
    database: DatabaseKind | None = None


@dataclasses.dataclass(eq=False, kw_only=True, repr=False)
class Prober:
    """Probes the pods of one port. `serves` is called for each that is found to serve."""

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
        """Probe these pods and no others; probes that run already go on."""
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
        """Return whether it serves; False: only the Ready condition can tell."""
        # A change of the Ready condition does not come here: it changes the probe target.
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
        while True:
            began = loop.time()
            reach = await self.checks.connect(address, timeout=CONNECT_TIMEOUT)
            if reach is Reachability.ACCEPTED:
                return
            await asyncio.sleep(max(INTERVAL - (loop.time() - began), 0.001))

    async def _until_all_pass(self, host: str, plan: ProbePlan, *, accepted: float) -> None:
        loop = asyncio.get_running_loop()
        for question in plan.questions:
            await asyncio.sleep(max(accepted + question.delay - loop.time(), 0.0))
            passed = 0
            while passed < question.successes:
                if passed:
                    # A threshold of three successes means three periods, and not three packets.
                    await asyncio.sleep(question.period)
                if await self.checks.ask(host, question):
                    passed += 1
                else:
                    passed = 0
                    await asyncio.sleep(INTERVAL)
