"""Reads the triggers of all ElastiServices, and has those reconciled for which something follows.

A sleeping target that is in use is reconciled as soon as its trigger shows it; the rest waits for the
end of the round.

Everything is read every polling interval. In between are read: what was never read, at once; targets
whose cooldown is short, a dozen times in it; and any target when the resolver joins its pods, and at the very end of its
cooldown. So a target sleeps soon after its cooldown, however long the interval is.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator

from elasti.api.names import private_service_name
from elasti.api.states import State
from elasti.api.types import ElastiService
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.idleness.evaluator import Evaluator, EvidenceKey, Subject, evidence_key
from elasti.operator.model.facts import TriggerJudgement, Verdict
from elasti.operator.model.state import ServiceState, StateStore
from elasti.operator.pacing import RateSpacer
from elasti.operator.watch.caches import BY_SERVICE
from elasti.operator.watch.informer_manager import Scope
from elasti.operator.watch.public_slices import PublicSlices
from elasti.triggers.reader import ReadContext, ScrapeTarget
from kubeloop.aio.backoff import jittered
from kubeloop.aio.tasks import TimeBudget
from kubeloop.controller.reconcile import Request
from kubeloop.objects.core import EndpointSlice
from kubeloop.objects.times import unix_seconds

_CALMED = (State.SERVE, State.ENGAGING, State.WAKING)
_SERVING = (State.SERVE, State.ENGAGING, State.DRAINING)
_READINGS_A_COOLDOWN = 12
_SHORTEST_PAUSE = 2.5
_CLOSEST = 0.1
_REPORTS_A_SECOND = 5.0


@dataclasses.dataclass(eq=False, kw_only=True)
class Poller:
    """The leader's round of all triggers, every polling interval."""

    elastiservices: Scope[ElastiService]
    private_slices: Scope[EndpointSlice]
    states: StateStore
    decisions: Decisions
    evaluator: Evaluator
    enqueue: Callable[[Request], None]
    interval: float
    show: Callable[[Request, Iterable[float | None]], None] | None = None
    public_slices: PublicSlices | None = None  #: of what is only observed
    observed: Callable[[Request], None] | None = (
        None  #: called after a reading of what is only observed
    )

    def __post_init__(self) -> None:
        self._known: set[EvidenceKey] = set()
        self._woken: set[Request] = set()
        self._due: dict[Request, float] = {}
        self._asked = asyncio.Event()
        self._paced: set[Request] = set()
        self._spacer = RateSpacer(_REPORTS_A_SECOND)

    def read_soon(self, request: Request) -> None:
        """Read one now: it is new, or its triggers are."""
        self._due[request] = -math.inf
        self._asked.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        now = asyncio.get_running_loop().time
        round_at = now()
        while True:
            if now() >= round_at:
                # Rounds of several operators, and of others, should not fall together.
                round_at = now() + jittered(self.interval, 0.1, random.random)
                await self.poll()
            else:
                await self._poll_due()
            self._asked.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min((round_at, *self._due.values()))):
                    await self._asked.wait()

    async def poll(self) -> None:
        """Read everything once, and enqueue what it concerns."""
        self._due.clear()
        present = await self._read(self.elastiservices.all)
        for key in self._known - present:
            self.evaluator.forget(key)
        self._known = present

    async def _poll_due(self) -> None:
        """Read what cannot wait for the next round."""
        now = asyncio.get_running_loop().time()
        requests = [request for request, due in self._due.items() if due <= now]
        for request in requests:
            del self._due[request]
        found = [es for request in requests if (es := self.elastiservices.find(*request))]
        if found:
            self._known |= await self._read(lambda: found)

    async def _read(
        self, elastiservices: Callable[[], Iterable[ElastiService]]
    ) -> set[EvidenceKey]:
        self._woken.clear()
        began = asyncio.get_running_loop().time()
        if self.public_slices is not None:
            observed = {es.metadata.namespace for es in elastiservices() if es.spec.observes}
            await self.public_slices.refresh(sorted(observed))
        await self.evaluator.poll(map(self._subject, elastiservices()), self._wake)
        present: set[EvidenceKey] = set()
        budget = TimeBudget()
        for es in elastiservices():
            request = Request(es.metadata.namespace, es.metadata.name)
            present.add(evidence_key(request, es.metadata.uid, es.spec))
            if es.spec.observes:
                if self.observed is not None:
                    self.observed(request)
            elif request not in self._woken:
                self._consider(request)
            self._plan_reading(request, es, began)
            self._show_values(request, es)
            if budget.spent():
                await budget.rest()
        return present

    def _show_values(self, request: Request, es: ElastiService) -> None:
        if self.show is not None:
            found = self.evaluator.evidence(evidence_key(request, es.metadata.uid, es.spec))
            readings = (item.last for item in found)
            self.show(request, [last.value if last and last.usable else None for last in readings])

    def _plan_reading(self, request: Request, es: ElastiService, began: float) -> None:
        """Note when one must be read again, or decided about, if that is before the next round."""
        change = self.decisions.seconds_to_change(request) if es.spec.schedules else None
        if change is not None and change < self.interval:
            now = asyncio.get_running_loop().time()
            self._due.setdefault(request, now + max(change, _CLOSEST))
        state = self.states.find(request)
        sleeps = state is not None and (state.current is State.PROXY or state.observing.asleep)
        if not es.spec.triggers or sleeps:
            return
        pause = max(es.spec.cooldown / _READINGS_A_COOLDOWN, _SHORTEST_PAUSE)
        left = self.decisions.seconds_to_reading(request)
        if left is not None and left > 0:
            now = asyncio.get_running_loop().time()
            pause = min(pause, max(now + left - began, _CLOSEST))
        if pause < self.interval:
            self._due.setdefault(request, began + pause)

    def _wake(self, key: Hashable) -> None:
        """Enqueue a sleeping target whose triggers were read and want it awake."""
        assert isinstance(key, EvidenceKey)
        state = self.states.find(key.request)
        if state is None or state.current is not State.PROXY:
            return
        if self.decisions.together(key.request).verdict is Verdict.WAKE:
            self._woken.add(key.request)
            self.enqueue(key.request)

    def _consider(self, request: Request) -> None:
        state = self.states.find(request)
        if state is None:
            return
        found = self.decisions.judge(request)
        follows = (
            state.requests.sleep is not None
            or (found.decision.verdict is Verdict.SLEEP and state.current in _CALMED)
            or (found.decision.verdict is Verdict.LOOK and state.current is State.SERVE)
            or (found.decision.verdict is Verdict.WAKE and state.current is State.PROXY)
        )
        if follows or _is_news(found, state):
            self.enqueue(request)
        elif state.handover.judged is not None and found.calm != state.handover.judged.calm:
            self._enqueue_paced(request)

    def _enqueue_paced(self, request: Request) -> None:
        """Have a change reported that only status waits for, a few such changes a second."""
        if request in self._paced:
            return
        self._paced.add(request)
        loop = asyncio.get_running_loop()
        loop.call_at(self._spacer.reserve(loop.time()), self._report, request)

    def _report(self, request: Request) -> None:
        self._paced.discard(request)
        self.enqueue(request)

    def _subject(self, es: ElastiService) -> Subject:
        request = Request(es.metadata.namespace, es.metadata.name)
        state = self.states.find(request)
        return Subject(
            triggers=es.spec.triggers,
            context=ReadContext(
                key=evidence_key(request, es.metadata.uid, es.spec),
                cooldown=es.spec.cooldown,
                namespace=es.metadata.namespace,
                pods=lambda: tuple(self._pods(es)),
                asleep=state is not None and self._needs_no_pods(request, state),
                last_arrival=state.requests.last_traffic if state is not None else -math.inf,
                changed=lambda: self.read_soon(request),
            ),
            inherited=_inherited(es),
        )

    def _needs_no_pods(self, request: Request, state: ServiceState) -> bool:
        """Whether it is idle without pods: the target sleeps, or has pods behind another Service alone."""
        if state.current is not State.WAKING:
            return state.current is State.PROXY
        others = map(self.states.find, self.decisions.directory.sharing(request))
        return any(other is not None and other.current in _SERVING for other in others)

    def _pods(self, es: ElastiService) -> Iterator[ScrapeTarget]:
        key = f"{es.metadata.namespace}/{private_service_name(es.spec.service)}"
        slices: Iterable[EndpointSlice] = self.private_slices.by_index(BY_SERVICE, key)
        if es.spec.observes and self.public_slices is not None:
            slices = self.public_slices.of(es.metadata.namespace, es.spec.service)
        for endpoint_slice in slices:
            ports = tuple(
                (port.name or "", port.port) for port in endpoint_slice.ports or () if port.port
            )
            for endpoint in endpoint_slice.endpoints or ():
                if endpoint.addresses:
                    name = endpoint.target_ref.name if endpoint.target_ref else ""
                    yield ScrapeTarget(endpoint.identity, endpoint.addresses[0], ports, name)


def _inherited(es: ElastiService) -> list[float | None]:
    """Return when each trigger became quiet by status; nothing of an older spec."""
    status = es.status
    if status.observed_generation != es.metadata.generation:
        return []
    known = [unix_seconds(trigger.quiet_since) for trigger in status.triggers]
    found = [since if math.isfinite(since) else None for since in known]
    return found if len(found) == len(es.spec.triggers) else []


def _is_news(found: TriggerJudgement, state: ServiceState) -> bool:
    """Whether the last reconcile saw something else; of a sleeping target only the triggers' health is news."""
    known = state.handover.judged
    if known is not None and state.current is State.PROXY:
        return found.health != known.health
    return known is None or found[:2] != known[:2]
