"""Makes the writes of a plan, and asks resolvers where the next step hangs on their answer.

Each write is idempotent and leaves its outcome in the records, where the state machine finds it.
None of them decides where to go next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, assert_never

import structlog

from elasti.api.conditions import WakeCause
from elasti.api.defaults import cooldown_of
from elasti.api.names import FIELD_MANAGER
from elasti.operator.handover import plan as plans
from elasti.operator.handover.children import drain_patch
from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
from elasti.operator.handover.machine import Activity, Park, State
from elasti.operator.handover.requests import is_in_force
from elasti.operator.idleness.decide import Verdict
from elasti.operator.scale_handler import ScaleDown, ScaleUp
from elasti.operator.watch.targets import target_of
from kubeloop.client.errors import AlreadyExists, KubeError
from kubeloop.objects.core import SERVICES, Service, ServiceEndpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasti.api.wire import ActivityReport
    from elasti.operator.autoscalers.base import AutoscalerRef
    from elasti.operator.handover.listing import SlicePublisher
    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.plan import Write
    from elasti.operator.handover.resolver_client import ResolverClient
    from elasti.operator.handover.scale_conflicts import ScaleConflicts
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.leader import LeaderDependencies
    from kubeloop.controller.reconcile import Request

_log = structlog.get_logger(__name__)


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
    """Ask resolvers about Services, by namespace and name; no resolver to ask is no answer."""
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


class HandoverExecutor:
    """Carries out the steps. One instance for the leader."""

    def __init__(
        self, deps: LeaderDependencies, publisher: SlicePublisher, conflicts: ScaleConflicts
    ) -> None:
        self._deps = deps
        self._services = deps.client.resource(SERVICES, Service)
        self._writer = ElastiServiceWriter(deps)
        self._publisher = publisher
        self._conflicts = conflicts

    async def apply(self, write: Write, facts: Facts, state: ServiceState) -> None:
        """Make one write. Raises KubeError."""
        match write:
            case plans.PutPrivate(service, exists):
                await self._put_private(service, exists=exists)
            case plans.PublishSlices():
                if not state.handover.refused:
                    await self._publisher.publish(facts, state)
            case plans.RemoveSlices():
                await self._publisher.remove(facts.slices, state)
            case plans.SetDrained(drained):
                await self.set_drained(facts, state, drained=drained)
            case plans.Wake(minimum):
                await self._wake(facts, state, minimum)
            case plans.ParkTarget():
                await self._park(facts, state)
            case plans.ResumeAutoscaler(autoscaler):
                await self.resume_autoscaler(facts, state, autoscaler)
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
        """Ask the resolvers, where the next step hangs on the answer."""
        handover, settle = state.handover, self._deps.settings.engage_settle
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
                since = settle if is_in_force(state) else cooldown_of(facts.es.spec)
            case _:
                return
        handover.note_activity(await self._activity(facts.request, since), facts.now)
        if handover.activity is Activity.BUSY:
            state.requests.note_traffic(self._deps.wall())

    async def _activity(
        self, request: Request, since: float, *, hold: bool | None = None
    ) -> Activity:
        """Ask about every Service whose traffic the park of this target concerns."""
        services: dict[tuple[str, str], Sequence[ServiceEndpoint]] = {}
        for other in self._deps.directory.sharing(request):
            details, state = self._deps.directory.get(other), self._deps.states.find(other)
            if details is not None:
                key = (details.namespace, details.spec.service)
                services[key] = state.listing.query_targets if state else ()
        return await ask_resolvers(self._deps.resolver_client, services, since, hold=hold)

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
            state.handover.note_park_refused()
            self._deps.reporter.not_parked(facts.es, str(error))
        if not drained:
            state.handover.note_undrained(facts.now)
            # Also where a wake-up was so fast that the pods were never stopped.
            await self._activity(facts.request, 0.0, hold=False)

    async def _park(self, facts: Facts, state: ServiceState) -> None:
        """Park, then ask once more: what arrived while the write was under way wakes."""
        handover = state.handover
        if handover.park is Park.REFUSED:
            return
        if handover.parked_here:
            # Undone before it was seen at zero: parking it again at once would be a fight.
            await self._conflicts.scaled_by_another(facts, state)
            handover.note_park_refused()
            return
        began = handover.engaged_at
        if why := await self._scale_to_zero(facts, state):
            handover.note_park_refused()
            if facts.drained:
                await self._activity(facts.request, 0.0, hold=False)
            self._deps.reporter.not_parked(facts.es, why)
            return
        handover.note_parked()
        self._deps.metrics.park_ended("")
        self._deps.reporter.parked(facts.es, facts.decision.reason)
        state.conflict.note_park(facts.es.status.last_scaled_up_time)
        since = asyncio.get_running_loop().time() - began if began is not None else 0.0
        if await self._activity(facts.request, since) is Activity.BUSY:
            state.requests.want_wake(self._deps.wall(), asked=False)

    async def _scale_to_zero(self, facts: Facts, state: ServiceState) -> str:
        """Set the target to zero, if it is still what was decided on; returns why not, or nothing."""
        assert facts.target is not None
        state.autoscaler.note_park(facts.autoscaler)
        try:
            if facts.autoscaler is not None:
                await self._writer.note_paused(facts.es, state)
                if why := await self._deps.autoscalers.pause(facts.namespace, facts.autoscaler):
                    return why
            seen = state.handover.decided_on or facts.target.view
            await self._writer.note_previous_replicas(facts.es, state, seen.replicas)
            # All that is new goes to resolvers: where they hold it, no request is under way in a pod.
            if facts.drained:
                since = asyncio.get_running_loop().time() - (state.handover.engaged_at or 0.0)
                if await self._activity(facts.request, since, hold=True) is not Activity.QUIET:
                    return "traffic arrived"
            outcome, view = await self._deps.scales.park(target_of(facts.es), seen)
        except KubeError as error:
            self._count(facts, error)
            return str(error)
        if outcome is ScaleDown.CHANGED:
            return "another writer changed it meanwhile"
        self._count(facts)
        state.own_writes.wrote_scale(view)
        return ""

    # Up

    async def _wake(self, facts: Facts, state: ServiceState, minimum: int) -> None:
        try:
            asked = await self.scale_up(facts, state, minimum)
        except KubeError as error:
            self._deps.reporter.not_woken(facts.es, str(error))
            raise
        if asked:
            state.requests.note_scale_written(self._deps.wall())

    async def scale_up(self, facts: Facts, state: ServiceState, minimum: int) -> bool:
        """Ask for replicas; False where pods that are ending are in the way. Raises KubeError."""
        recreates = facts.target is not None and facts.target.recreates
        try:
            outcome, view = await self._deps.scales.scale_up(
                target_of(facts.es), minimum, recreates=recreates
            )
        except KubeError as error:
            self._count(facts, error)
            raise
        state.own_writes.wrote_scale(view)
        if outcome is ScaleUp.SCALED:
            self._count(facts)
            state.requests.note_scaled_up(self._deps.wall())
            self._deps.reporter.woken(facts.es, minimum, state.handover.why)
            # Other causes are counted as the sleep ends; a request's by the replica that scales.
            woken = state.current is State.WAKING and facts.at_zero
            if woken and state.requests.cause is WakeCause.REQUEST:
                self._deps.metrics.woken(WakeCause.REQUEST)
        return outcome is not ScaleUp.WAITS

    async def resume_autoscaler(
        self, facts: Facts, state: ServiceState, autoscaler: AutoscalerRef
    ) -> None:
        """Take back a pause of ours; an autoscaler's failure is no reason to hold anything up."""
        try:
            await self._deps.autoscalers.resume(facts.namespace, autoscaler)
        except KubeError as error:
            state.autoscaler.note_failure(facts.now)
            reason, message = self._deps.autoscalers.resume_failure(autoscaler)
            self._deps.reporter.warning(facts.es, reason, f"{message} {error}")
            return
        state.autoscaler.note_resumed(autoscaler, facts.autoscaler)

    def _count(self, facts: Facts, error: KubeError | None = None) -> None:
        self._deps.metrics.scaled(facts.request, facts.es.spec, error)
