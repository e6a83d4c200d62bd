"""Makes the writes of a plan, and asks resolvers if the next step depends on their answer.

Each write is idempotent and leaves its outcome in the records, where the state machine finds it.
None of them decides where to go next.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import assert_never

from elasti.api.conditions import TransitionReason, WakeCause
from elasti.api.names import FIELD_MANAGER
from elasti.api.states import State
from elasti.api.wire import ActivityReport
from elasti.logger import get_logger
from elasti.operator.autoscalers.base import Autoscalers
from elasti.operator.handover import plan as plans
from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
from elasti.operator.handover.listing import SlicePublisher
from elasti.operator.handover.plan import Write
from elasti.operator.handover.resolver_client import ResolverClient
from elasti.operator.handover.scale_conflicts import ScaleConflicts
from elasti.operator.handover.workers import Workers
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.children import drain_patch
from elasti.operator.model.facts import Facts, Verdict
from elasti.operator.model.records import AutoscalerRef
from elasti.operator.model.requests import WakeOrigin
from elasti.operator.model.state import Activity, Park, ServiceState, is_in_force
from elasti.operator.model.targets import target_of
from elasti.operator.report.events import EventReporter
from elasti.operator.scale_handler import ScaleDown, ScaleHandler, ScaleUp
from elasti.operator.settings import OperatorSettings
from elasti.operator.waking.waker import Waker, WakeUp
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, Conflict, KubeError
from kubeloop.controller.reconcile import Request
from kubeloop.objects.core import SERVICES, Service, ServiceEndpoint

_log = get_logger(__name__)

_NOTICED_WITHIN = 1.0
"""How late the leader may notice that another replica wakes a target; in seconds."""


def combined_activity(reports: Sequence[ActivityReport | None], since: float) -> Activity:
    """Return what resolvers' reports say about the last `since` seconds together.

    Anything open, held or younger is use; a report that did not come leaves it unknown; so does
    having no resolver to ask.
    """
    known = [report for report in reports if report is not None]
    for report in known:
        age = report.last_arrival_age
        if report.open or report.held or (age is not None and age < since):
            return Activity.BUSY
    return Activity.QUIET if reports and len(known) == len(reports) else Activity.UNKNOWN


async def ask_resolvers(
    client: ResolverClient,
    services: Mapping[tuple[str, str], Sequence[ServiceEndpoint]],
    since: float,
    *,
    hold: bool | None = None,
) -> Activity:
    """Ask resolvers about Services, by namespace and name; with no resolvers the answer is UNKNOWN."""
    if not all(services.values()):
        return Activity.UNKNOWN
    reports = await asyncio.gather(
        *(
            client.activity(endpoint.addresses[0], namespace, service, hold=hold)
            for (namespace, service), listed in services.items()
            for endpoint in listed
        )
    )
    return combined_activity(reports, since)


@dataclasses.dataclass(eq=False, kw_only=True)
class HandoverExecutor:
    """Carries out the steps. One instance for the leader."""

    client: Client
    settings: OperatorSettings
    decisions: Decisions
    scales: ScaleHandler
    autoscalers: Autoscalers
    resolver_client: ResolverClient
    metrics: OperatorMetrics
    reporter: EventReporter
    waker: Waker
    writer: ElastiServiceWriter
    publisher: SlicePublisher
    conflicts: ScaleConflicts
    workers: Workers

    def __post_init__(self) -> None:
        self._services = self.client.resource(SERVICES, Service)

    async def apply(self, write: Write, facts: Facts, state: ServiceState) -> None:
        """Make one write. Raises KubeError."""
        match write:
            case plans.PutPrivate(service, exists):
                await self._put_private(service, exists=exists)
            case plans.PublishSlices():
                if not state.handover.refused:
                    await self.publisher.publish(facts, state)
            case plans.RemoveSlices():
                await self.publisher.remove(facts.slices, state)
            case plans.SetDrained(drained):
                await self.set_drained(facts, state, drained=drained)
            case plans.Wake(minimum):
                await self.wake(facts, state, minimum)
            case plans.ParkTarget():
                await self._park(facts, state)
            case plans.OwnReplicas():
                await self._own_replicas(facts, state)
            case plans.ResumeAutoscaler(autoscaler):
                await self.resume_autoscaler(facts, state, autoscaler)
            case plans.ParkWorkers(targets):
                await self.workers.park(facts.es, state, targets)
            case plans.WakeWorkers(targets):
                await self.workers.wake(facts.es, state, targets)
            case _:
                assert_never(write)

    async def _put_private(self, service: Service, *, exists: bool) -> None:
        if exists:
            await self._services.replace(service, field_manager=FIELD_MANAGER)
            return
        try:
            await self._services.create(service, field_manager=FIELD_MANAGER)
        except AlreadyExists:
            _log.debug("private Service exists and is not in the cache yet")

    # Asking

    async def ask(self, facts: Facts, state: ServiceState) -> None:
        """Ask the resolvers, if the next step depends on the answer."""
        handover, settle = state.handover, max(self.settings.engage_settle, facts.path.least_settle)
        match state.current:
            case State.ENGAGING if handover.engaged_at is not None:
                due = state.ask_due(settle)
                at_end = state.settled_engaging(facts.now, settle) and facts.partners_settled
                if not at_end and (due is None or facts.now < due):
                    return
                since = facts.now - handover.engaged_at
            case State.DRAINING if handover.engaged_at is not None:
                if not (state.settled_draining(facts.now, settle) and facts.partners_settled):
                    return
                since = facts.now - handover.engaged_at
            case State.WAKING if not facts.ready and facts.decision.verdict is Verdict.SLEEP:
                since = facts.es.spec.cooldown
                if is_in_force(state) and (asked := state.requests.sleep) is not None:
                    # What arrived before the request does not refuse it, unless it is still there.
                    since = min(
                        settle, max(self.decisions.clock.now().timestamp() - asked.since, 0.0)
                    )
            case State.WAKING:
                # An answer of before pods were ready says nothing about a request to sleep of now.
                handover.note_activity(Activity.UNKNOWN, facts.now)
                return
            case _:
                return
        handover.note_activity(await self._activity(facts.request, since), facts.now)
        if handover.activity is Activity.BUSY:
            state.requests.note_traffic(self.decisions.clock.now().timestamp())

    async def note_waited(self, facts: Facts, state: ServiceState) -> None:
        """Ask the resolvers how long the first client of this wake-up waited."""
        reports = await self._reports(facts)
        since = self.decisions.clock.now().timestamp() - (state.requests.woken_at or 0.0)
        starts = [report.last_start for report in reports]
        # An earlier wake-up was over before this one began.
        ours = (
            one.seconds for one in starts if one is not None and one.age <= since + _NOTICED_WITHIN
        )
        state.requests.note_waited(max(ours, default=None))

    async def note_held(self, facts: Facts, state: ServiceState) -> None:
        """Ask the resolvers how many connections wait, if it is time."""
        due = state.handover.held_due
        if state.current is State.WAKING and (due is None or facts.now >= due):
            held = sum(report.held for report in await self._reports(facts))
            state.handover.note_held(held, facts.now)

    async def _reports(self, facts: Facts) -> list[ActivityReport]:
        """Return the answers of those resolvers that give one."""
        key = (facts.request.namespace, facts.es.spec.service)
        asked = (self.resolver_client.activity(one.addresses[0], *key) for one in facts.resolvers)
        return [report for report in await asyncio.gather(*asked) if report is not None]

    async def _activity(
        self, request: Request, since: float, *, hold: bool | None = None
    ) -> Activity:
        """Ask about every Service whose traffic the park of this target concerns."""
        services: dict[tuple[str, str], Sequence[ServiceEndpoint]] = {}
        for other in self.decisions.directory.sharing(request):
            details, state = self.decisions.directory.get(other), self.decisions.states.find(other)
            if details is not None:
                key = (details.namespace, details.spec.service)
                services[key] = state.listing.query_targets if state else ()
        return await ask_resolvers(self.resolver_client, services, since, hold=hold)

    # Down

    async def set_drained(self, facts: Facts, state: ServiceState, *, drained: bool) -> None:
        """Take the pods out of the public Service's rotation, or let them in again. Raises KubeError."""
        name, patch = facts.es.spec.service, drain_patch(drained=drained)
        try:
            await self._services.patch(
                name, patch, namespace=facts.namespace, field_manager=FIELD_MANAGER
            )
        except KubeError as error:
            if not drained:
                raise
            state.handover.note_park_refused(str(error))
            self.reporter.not_parked(facts.es, str(error))
        if not drained:
            state.handover.note_undrained(facts.now)
            # Also if a wake-up was so fast that the pods were never stopped.
            await self._activity(facts.request, 0.0, hold=False)

    async def _park(self, facts: Facts, state: ServiceState) -> None:
        """Park, then ask once more: what arrived while the write was under way wakes."""
        handover = state.handover
        if handover.park is Park.REFUSED:
            return
        if handover.parked_here:
            # Undone before it was seen at zero: parking it again at once would be a fight.
            await self.conflicts.scaled_by_another(facts, state)
            handover.note_park_refused("another writer scaled it up")
            return
        began = handover.engaged_at
        if why := await self._scale_to_zero(facts, state):
            handover.note_park_refused(why)
            if facts.drained:
                await self._activity(facts.request, 0.0, hold=False)
            self.reporter.not_parked(facts.es, why)
            return
        handover.note_parked(facts.target.uid if facts.target is not None else "", facts.ready)
        self.metrics.park_ended(TransitionReason.PARKED)
        cause = WakeCause.MANUAL if is_in_force(state) else WakeCause.TRIGGER
        self.reporter.parked(facts.es, facts.decision.reason, cause)
        state.conflict.note_park(facts.es.status.last_scaled_up_time)
        since = asyncio.get_running_loop().time() - began if began is not None else 0.0
        if await self._activity(facts.request, since) is Activity.BUSY:
            now = self.decisions.clock.now().timestamp()
            state.requests.want_wake(now, WakeOrigin.request(), asked=False)

    async def _scale_to_zero(self, facts: Facts, state: ServiceState) -> str:
        """Set the target to zero, if it is still what was decided on; returns why not, or nothing if it is at zero.

        Raises KubeError if it is not known whether it is.
        """
        assert facts.target is not None
        state.autoscaler.note_park(facts.autoscaler)
        try:
            if facts.autoscaler is not None:
                await self.writer.note_paused(facts.es, state)
                if why := await self.autoscalers.pause(facts.namespace, facts.autoscaler):
                    return why
            seen = state.handover.decided_on or facts.target.view
            await self.writer.note_previous_replicas(facts.es, state, seen.replicas)
            # All new traffic goes to resolvers: while they hold it, no request is under way in a pod.
            if facts.drained:
                since = asyncio.get_running_loop().time() - (state.handover.engaged_at or 0.0)
                if await self._activity(facts.request, since, hold=True) is not Activity.QUIET:
                    return "traffic arrived"
            # What was decided is some requests old.
            wanted = self.decisions.together(facts.request).verdict is not Verdict.SLEEP
            if wanted or state.requests.wake:
                return "it is needed again"
            outcome, view = await self.scales.park(target_of(facts.es), seen)
        except KubeError as error:
            self._count(facts, error)
            # The write may have been done all the same: the resolver leaves only if the target is known to run.
            view = await self.scales.read(target_of(facts.es))
            if view.replicas:
                return str(error)
        else:
            if outcome is ScaleDown.CHANGED and view.replicas:
                return "another writer changed it meanwhile"
            self._count(facts)
        state.own_writes.wrote_scale(view)
        return ""

    async def _own_replicas(self, facts: Facts, state: ServiceState) -> None:
        """Take the field while the target is at zero. Raises KubeError."""
        assert facts.target is not None
        try:
            view = await self.scales.take(target_of(facts.es), facts.target.view)
        except Conflict:
            return  # it has changed since: the watch says so, and the next reconcile decides
        if view is not None:
            state.own_writes.wrote_scale(view)
        state.handover.note_owned(facts.target.uid)

    # Up

    async def wake(self, facts: Facts, state: ServiceState, minimum: int) -> bool:
        """Ask for replicas; False if terminating pods are in the way. Raises KubeError."""
        # Other causes are counted as the sleep ends; a request's by the replica that scales.
        woken = state.current is State.WAKING and facts.at_zero
        requested = woken and state.requests.cause is WakeCause.REQUEST
        outcome, view = await self.waker.wake(
            WakeUp(
                es=facts.es,
                minimum=minimum,
                origin=WakeOrigin(WakeCause.REQUEST if requested else None, "", state.handover.why),
                recreates=facts.target is not None and facts.target.recreates,
                planned=True,
            )
        )
        state.own_writes.wrote_scale(view)
        return outcome is not ScaleUp.WAITS

    async def resume_autoscaler(
        self, facts: Facts, state: ServiceState, autoscaler: AutoscalerRef
    ) -> None:
        """Take back a pause of ours; an autoscaler's failure must not delay anything else."""
        try:
            await self.autoscalers.resume(facts.namespace, autoscaler)
        except KubeError as error:
            state.autoscaler.note_failure(facts.now)
            reason, message = self.autoscalers.resume_failure(autoscaler)
            self.reporter.warning(facts.es, reason, f"{message} {error}")
            return
        state.autoscaler.note_resumed(autoscaler, facts.autoscaler)

    def _count(self, facts: Facts, error: KubeError | None = None) -> None:
        self.metrics.scaled(facts.request, facts.es.spec, error)
