"""Carries a doze out: notes the originals, changes requests, and finds a way out if they do not fit.

A crash between any two writes leaves what status and the table complete: see `machine`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from elasti.api.conditions import Obstacle, Reason
from elasti.api.names import FIELD_MANAGER
from elasti.api.parsing import parse_duration
from elasti.api.states import DozeState, State
from elasti.api.types import DozeStatus, ElastiService
from elasti.logger import get_logger
from elasti.operator.doze.machine import (
    AddSpare,
    DozeReason,
    DropSpare,
    Evict,
    Resize,
    Seen,
    Wish,
    Write,
    is_deferred,
    plan,
    step,
)
from elasti.operator.doze.reader import FRESH
from elasti.operator.doze.requests import Originals, command, is_settled, noted, released, resize
from elasti.operator.model.doze import DozePod, DozeView
from elasti.operator.model.facts import Facts, Verdict
from elasti.operator.model.state import ServiceState, is_in_force
from elasti.operator.model.targets import target_of
from elasti.operator.report.events import EventReporter
from elasti.operator.report.status import doze_fields
from elasti.operator.scale_handler import ScaleHandler
from elasti.operator.waking.waker import Waker, doze_origin
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.client.errors import Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from kubeloop.objects.core import PODS
from kubeloop.objects.patches import JsonPatch
from kubeloop.objects.times import format_time, unix_seconds

_OVERDUE = 10.0
"""Seconds for kubelets to give requests back before it counts as stuck."""
_POLL, _STUCK_POLL = 0.5, 2.0
_MAX_STEPS = 4
_AT_ONCE = 8
_SHOWN, _MOST_COMMANDS = 3, 50
"""Commands for pods: while the operator tries on, and when it gives up; each is an Event and a line in the log."""
_NO_SPARE = {"StatefulSet"}
_ADVICE: dict[str, str] = {
    Reason.QUOTA_EXCEEDED: "raise the quota, or free some of it",
    Reason.RESIZE_REFUSED: "if the operator may not patch pods/resize, set the chart's doze.enabled, or run elasti"
    " install --doze",
}

_DROPPED = (
    "the pods keep their requests: the cluster's CustomResourceDefinition is older and drops status.doze;"
    " upgrade it: elasti crd | kubectl apply --server-side --force-conflicts -f -"
)

_log = get_logger(__name__)


def wish_of(facts: Facts, state: ServiceState) -> Wish:
    """Return what is decided about a doze. What is wrong, or unwanted, wakes."""
    es = facts.es
    ended = es.metadata.deletion_timestamp or es.spec.sleep.mode == "Zero"
    wrong = _is_moved(facts) or facts.is_refused or facts.unready is not None
    if ended or wrong or state.requests.wake or facts.decision.verdict is Verdict.WAKE:
        return Wish.WAKE
    calm = facts.decision.verdict is Verdict.SLEEP and state.current is State.SERVE
    return Wish.DOZE if calm else Wish.KEEP


@dataclasses.dataclass(eq=False, kw_only=True)
class Dozer:
    """Brings dozes further. One for the leader; `note` merges fields into an ElastiService's status."""

    client: Client
    clock: Clock
    scales: ScaleHandler
    waker: Waker
    reporter: EventReporter
    note: Callable[[ElastiService, ServiceState, dict[str, Any]], Awaitable[None]]

    def __post_init__(self) -> None:
        pods = self.client.resource(PODS, DozePod)
        self._resize = pods.subresource("resize", DozePod)
        self._evictions = self.client.resource(PODS).subresource("eviction")

    async def run(self, facts: Facts, state: ServiceState) -> None:
        """Go as far as possible now. Raises KubeError."""
        doze, view = state.doze, facts.doze
        if view is None:
            doze.note_due(zero=False, pause=None)
            return
        for _ in range(_MAX_STEPS):
            seen = self._seen(facts, view, state)
            to, why = step(doze.state, seen)
            if why is not None:
                await self._enter(facts, view, state, to, why)
            if doze.status is None:
                break
            if doze.state is DozeState.DOZING:
                state.requests.note_asleep(self._now())
                await self._note_new_templates(facts, view, state)
            writes = plan(
                doze.state,
                doze.status,
                view.pods,
                ripe=lambda pod: self._ripe_in(pod, facts, state) <= 0,
                movable=_is_movable(facts) and not doze.spare_asked,
            )
            changed = await self._make(writes, facts, state)
            pods = tuple(changed.get(pod.metadata.uid, pod) for pod in view.pods)
            view = view._replace(pods=pods)
            if why is None and not changed:
                break
        self._sum_up(facts, view, state)

    async def restored(self, facts: Facts, state: ServiceState) -> bool:
        """Give the originals back before the end of an ElastiService; False while that is under way."""
        await self.run(facts, state)
        return state.doze.status is None

    async def give_up(self, facts: Facts, state: ServiceState) -> None:
        """Say what to patch: the originals are about to be forgotten. Raises KubeError."""
        if state.doze.status is not None and state.doze.status.replicas:
            await self._drop_spare(facts, state)
        self._report_commands(facts, facts.doze or DozeView(), state, most=_MOST_COMMANDS)

    # Seeing

    def _seen(self, facts: Facts, view: DozeView, state: ServiceState) -> Seen:
        doze = state.doze
        known = doze.status.containers if doze.status is not None else ()
        spec = facts.es.spec.sleep.doze
        originals = Originals(known or noted((), view, spec))
        pods = [pod for pod in view.pods if self._ripe_in(pod, facts, state) <= 0]
        left = any(resize(pod, originals, dozed=True) for pod in pods)
        grown = all(
            not resize(pod, originals, dozed=False) and is_settled(pod, originals)
            for pod in view.pods
        )
        return Seen(
            wish=wish_of(facts, state),
            shrinkable=left,
            shrunk=not left,
            refused=bool(doze.problem),
            grown=grown,
            overdue=facts.now - doze.entered_at >= _OVERDUE,
            spare=doze.status is not None and doze.status.replicas > 0,
            gone=not view.pods and (facts.at_zero or facts.target is None or view.moved),
        )

    def _ripe_in(self, pod: DozePod, facts: Facts, state: ServiceState) -> float:
        """Return in how many seconds a pod may shrink: a new one has its originals for a cooldown."""
        if not pod.is_ready:
            return FRESH
        age = self._now() - pod.created_at
        return 0.0 if is_in_force(state) else facts.es.spec.cooldown - age

    def _now(self) -> float:
        return self.clock.now().timestamp()

    # Changing state

    async def _enter(
        self, facts: Facts, view: DozeView, state: ServiceState, to: DozeState, why: DozeReason
    ) -> None:
        doze, es, before = state.doze, facts.es, state.doze.state
        problem, now = doze.problem, self.clock.now()
        # The direction is in status before the first write in it.
        if to is DozeState.SHRINKING:
            known = doze.status or DozeStatus(to, format_time(now), view.selector)
            containers = noted(known.containers, view, es.spec.sleep.doze)
            # Use that did not end the doze begins the time until zero again.
            changes = {"state": to, "since": format_time(now), "containers": containers}
            known = msgspec.structs.replace(known, **changes)
            if not await self._put(facts, state, known):
                self._refuse(es, state, _DROPPED)
                return
        elif to is DozeState.GROWING:
            assert doze.status is not None
            await self._put(facts, state, msgspec.structs.replace(doze.status, state=to))
        elif to is not DozeState.FULL and doze.status is not None:
            doze.note(msgspec.structs.replace(doze.status, state=to))
        doze.enter(to, facts.now)
        _log.info("doze changed", name=es.metadata.name, state=to.value, reason=why.value)
        match to, why:
            case DozeState.DOZING, _:
                self.reporter.dozes(es, len(view.pods), facts.decision.reason)
            case DozeState.GROWING, DozeReason.REFUSED:
                self._refuse(es, state, f"the server refused to shrink its requests: {problem}")
            case DozeState.GROWING, _:
                origin = doze_origin(facts, state)
                self.waker.left_sleep(state, now.timestamp(), origin)
                state.requests.note_scaled_up(now.timestamp())
                state.requests.note_scale_written(now.timestamp())
                self.reporter.grows(es, origin.why)
            case DozeState.SHRINKING, _ if before is not DozeState.FULL:
                state.requests.note_released()

    def _refuse(self, es: ElastiService, state: ServiceState, why: str) -> None:
        state.requests.note_attempt(self._now(), Obstacle(Reason.DOZE_REFUSED, why))
        self.reporter.warning(es, Reason.DOZE_REFUSED, why)

    async def _note_new_templates(self, facts: Facts, view: DozeView, state: ServiceState) -> None:
        status = state.doze.status
        assert status is not None
        ripe = tuple(pod for pod in view.pods if self._ripe_in(pod, facts, state) <= 0)
        # Those of former templates would add up, a rollout at a time.
        there = {pod.template for pod in view.pods}
        known = tuple(entry for entry in status.containers if entry.template in there)
        found = noted(known, view._replace(pods=ripe), facts.es.spec.sleep.doze)
        if found != status.containers:
            await self._put(facts, state, status, containers=found)

    async def _put(
        self, facts: Facts, state: ServiceState, status: DozeStatus, **changes: Any
    ) -> bool:
        """Write a doze; False if the server drops the originals, so that nothing may shrink."""
        status = msgspec.structs.replace(status, **changes)
        await self.note(facts.es, state, {"doze": doze_fields(status)})
        found = state.own_writes.newest_elastiservice(facts.es).status.doze
        kept = found is not None and found.containers == status.containers
        # What is known here is enough to grow back.
        if kept or status.state not in (DozeState.SHRINKING, DozeState.DOZING):
            state.doze.note(status)
        return kept

    # Writing

    async def _make(
        self, writes: tuple[Write, ...], facts: Facts, state: ServiceState
    ) -> dict[str, DozePod]:
        """Make the writes; returns the pods that changed, by uid."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(write: Resize) -> DozePod | None:
            async with slots:
                return await self._change(write, state)

        resizes = [write for write in writes if isinstance(write, Resize)]
        state.doze.note_problem("")
        found = await asyncio.gather(*map(one, resizes), return_exceptions=True)
        changed: dict[str, DozePod] = {}
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer  # by now none is left running
            if answer is not None:
                changed[answer.metadata.uid] = answer
        for write in writes:
            match write:
                case AddSpare():
                    await self._add_spare(facts, state)
                case DropSpare():
                    await self._drop_spare(facts, state)
                case Evict(pod):
                    await self._evict(pod, facts)
        return changed

    async def _change(self, write: Resize, state: ServiceState) -> DozePod | None:
        meta = write.pod.metadata
        try:
            return await self._resize.patch(
                meta.name,
                JsonPatch(write.operations),
                namespace=meta.namespace,
                field_manager=FIELD_MANAGER,
            )
        except (Conflict, NotFound):
            return None  # it changed or is gone; the next look shows which
        except (Forbidden, Invalid) as error:
            state.doze.note_problem(str(error))
            return None

    async def _add_spare(self, facts: Facts, state: ServiceState) -> None:
        status = state.doze.status
        assert facts.target is not None
        assert status is not None
        # A leader that crashed may have noted them, and asked for nothing.
        replicas = status.replicas or facts.target.spec_replicas
        if not status.replicas:
            await self._put(facts, state, status, replicas=replicas)
        _, view = await self.scales.scale_up(target_of(facts.es), replicas + 1)
        state.own_writes.wrote_scale(view)
        state.doze.note_spare_asked()
        why = "a pod's node has no room for its requests; a spare pod starts before it is evicted"
        self.reporter.woken(facts.es, view.replicas, why, None, "")

    async def _drop_spare(self, facts: Facts, state: ServiceState) -> None:
        status = state.doze.status
        assert status is not None
        if facts.kind_unusable:
            return  # how many there are is not known now
        seen = facts.target.view if facts.target is not None and not _is_moved(facts) else None
        # Any other number is another writer's.
        if seen is not None and seen.replicas == status.replicas + 1:
            try:
                _, view = await self.scales.park(target_of(facts.es), seen, status.replicas)
            except Forbidden as error:
                if state.doze.is_new_spare_problem(str(error)):
                    why = (
                        f"the spare pod stays until the operator may scale the target down: {error}"
                    )
                    self.reporter.warning(facts.es, "DozeSpareStays", why)
                return
            state.own_writes.wrote_scale(view)
            if view.replicas == seen.replicas:
                return  # another writer came first, and did not change them: the next look tries again
        await self._put(facts, state, status, replicas=0)

    async def _evict(self, pod: DozePod, facts: Facts) -> None:
        meta = pod.metadata
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": {"preconditions": {"uid": meta.uid}},
        }
        try:
            await self._evictions.create(meta.name, body, namespace=meta.namespace)
        except (Conflict, NotFound):
            return
        except (Forbidden, TooManyRequests) as error:
            # A budget that forbids it now may allow it later.
            self.reporter.warning(
                facts.es, "DozeNotEvicted", f"pod {meta.name} could not be evicted: {error}"
            )
            return
        self.reporter.evicted(facts.es, meta.name)

    # Reporting

    def _sum_up(self, facts: Facts, view: DozeView, state: ServiceState) -> None:
        doze, spec = state.doze, facts.es.spec.sleep
        waits: list[float] = []
        zero_in = None
        if doze.status is not None:
            originals = Originals(doze.status.containers)
            done = sum(
                not resize(pod, originals, dozed=not doze.waking) and is_settled(pod, originals)
                for pod in view.pods
            )
            pending = len(view.pods) - done
            doze.note(msgspec.structs.replace(doze.status, pods=done, pending=pending))
            doze.note_released(*released(view.pods, originals))
            recent = facts.now - doze.entered_at < _OVERDUE
            if recent and not all(is_settled(pod, originals) for pod in view.pods):
                waits.append(_POLL)
            if spec.mode == "DozeThenZero" and doze.state is DozeState.DOZING:
                since = unix_seconds(doze.status.since)
                zero_in = since + parse_duration(spec.doze.zero_after) - self._now()
                waits.append(zero_in)
        self._report_stuck(facts, view, state)
        calm = facts.decision.verdict is Verdict.SLEEP
        if doze.state in (DozeState.SHRINKING, DozeState.GROWING, DozeState.STUCK):
            late = facts.now - doze.entered_at >= _OVERDUE
            waits.append(_STUCK_POLL if late or doze.state is DozeState.STUCK else _POLL)
        elif calm or view.findings or doze.status is not None:
            waits += [FRESH, *(self._ripe_in(pod, facts, state) for pod in view.pods if calm)]
        pause = min((one for one in waits if one > 0), default=None)
        doze.note_due(zero=zero_in is not None and zero_in <= 0, pause=pause)

    def _report_stuck(self, facts: Facts, view: DozeView, state: ServiceState) -> None:
        """Say why requests do not grow back, and record an Event when that begins."""
        doze = state.doze
        if doze.state is not DozeState.STUCK or not view.pods:
            return
        waiting = [pod for pod in view.pods if is_deferred(pod)]
        if doze.problem:
            quota = "exceeded quota" in doze.problem
            reason: str = Reason.QUOTA_EXCEEDED if quota else Reason.RESIZE_REFUSED
            what, advice = doze.problem, _ADVICE[reason]
        else:
            found = waiting[0].condition("PodResizePending") if waiting else None
            infeasible = found is not None and found.reason == "Infeasible"
            reason = Reason.INFEASIBLE if infeasible else Reason.DEFERRED
            names = [pod.metadata.name for pod in waiting or view.pods[:1]]
            what = f"the original requests of pod {', '.join(names)} are not restored yet: {found.message if found else 'its kubelet has not confirmed them'}"
            advice = f"{'' if infeasible else 'free room on the node, or '}delete pod {names[0]}"
            if doze.status is not None and doze.status.replicas:
                advice = "a spare pod was requested; when it is ready, the stuck one is evicted"
            if found is None:  # no news after another reason
                reason = doze.stuck_reason or reason
                advice = f"see kubectl describe pod {names[0]}"
        is_new = doze.stuck_reason != reason
        doze.note_stuck(reason, f"{what}; pods keep serving with reduced requests; {advice}")
        if is_new:
            self.reporter.warning(facts.es, "DozeStuck", doze.stuck)
            if doze.problem:
                self._report_commands(facts, view, state)

    def _report_commands(
        self, facts: Facts, view: DozeView, state: ServiceState, *, most: int = _SHOWN
    ) -> None:
        status = state.doze.status
        originals = Originals(status.containers if status is not None else ())
        commands = [text for pod in view.pods if (text := command(pod, originals))]
        if left := len(commands[most:]):
            commands[most - 1 :] = [f"{commands[most - 1]} (and the same for {left} more pods)"]
        for text in commands:
            why = f"requests are not restored; run {text}"
            self.reporter.warning(facts.es, "DozeNotRestored", why)


def _is_movable(facts: Facts) -> bool:
    """Whether one more pod may run beside those that are there."""
    target, kind = facts.target, facts.es.spec.scale_target_ref.kind
    may = target is not None and not target.recreates and kind not in _NO_SPARE
    return may and not _is_moved(facts)


def _is_moved(facts: Facts) -> bool:
    """Whether the pods that doze are not those of the target that the spec names now."""
    return facts.doze is not None and facts.doze.moved
