"""The steps of a hand-over that need an answer from outside: publishing, asking, parking, waking.

Each is idempotent and leaves the outcome in memory, where the state machine finds it. None of them
decides where to go next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import structlog

from elasti.api.names import FIELD_MANAGER, MANAGED_BY
from elasti.operator.handover.children import adopted, resolver_slices, slice_differs
from elasti.operator.handover.machine import Activity, Park, State
from elasti.operator.handover.observe import remember_scale
from elasti.operator.handover.plan import keda_retry_delay
from elasti.operator.scale_handler import ScaleDown, ScaleUp
from elasti.operator.watch.targets import target_of
from kubeloop.client.errors import AlreadyExists, KubeError, NotFound
from kubeloop.client.request import Preconditions
from kubeloop.controller.reconcile import Request
from kubeloop.objects.core import MANAGED_BY_LABEL, SLICES, EndpointSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from elasti.api.wire import ActivityReport
    from elasti.operator.autoscalers.keda import Keda
    from elasti.operator.handover.elastiservice_writer import ElastiServiceWriter
    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.resolver_client import ResolverClient
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.report.status import EventReporter
    from elasti.operator.scale_handler import ScaleHandler
    from elasti.operator.watch.resolvers import Resolvers
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.objects.core import ServiceEndpoint

_log = structlog.get_logger(__name__)


def combined_activity(reports: Sequence[ActivityReport | None], since: float) -> Activity:
    """Return what resolvers' reports say about the last `since` seconds together.

    Anything open, held or younger is use; a report that did not come leaves it unknown; so does
    having nobody to ask.
    """
    known = [report for report in reports if report is not None]
    for report in known:
        age = report.last_arrival_age
        if report.open or report.held or (age is not None and age < since):
            return Activity.BUSY
    return Activity.QUIET if reports and len(known) == len(reports) else Activity.UNKNOWN


class HandoverExecutor:
    """Carries out the steps. One instance for the leader."""

    def __init__(
        self,
        *,
        client: Client,
        own: ElastiServiceWriter,
        port: ResolverClient,
        resolvers: Resolvers,
        scales: ScaleHandler,
        keda: Keda,
        reporter: EventReporter,
        metrics: OperatorMetrics,
        clock: Clock,
    ) -> None:
        self._slices = client.resource(SLICES, EndpointSlice)
        self._writer = own
        self._resolver_client = port
        self._resolvers = resolvers
        self._scales = scales
        self._keda = keda
        self._reporter = reporter
        self._metrics = metrics
        self._clock = clock

    # The resolver's place in the rotation

    async def publish(self, facts: Facts, memory: ServiceState) -> None:
        """List every ready resolver that answers for this Service on all its ports.

        Where none does, what is published stays, but for resolvers that do not exist any more.
        """
        assert facts.service is not None
        memory.listed = await self._answering(facts, memory)
        self._note_resolvers_to_query(facts, memory)
        wanted = resolver_slices(facts.service, memory.listed, facts.ports)
        present = {endpoint_slice.metadata.name: endpoint_slice for endpoint_slice in facts.slices}
        for endpoint_slice in wanted:
            await self._put(endpoint_slice, present.pop(endpoint_slice.metadata.name, None), memory)
        for endpoint_slice in present.values():
            await (
                self._delete(endpoint_slice, memory)
                if wanted
                else self._empty(endpoint_slice, memory)
            )
        memory.note_listed(asyncio.get_running_loop().time())

    def _note_resolvers_to_query(self, facts: Facts, memory: ServiceState) -> None:
        """Keep everyone in mind who may have had traffic of this Service: all that are or were listed.

        While a park is decided on, that is everyone since it began, there or not: what one who has left
        has seen, nobody knows. Else it is whoever still exists, if only on its way out.
        """
        published = {
            e.place: e for endpoint_slice in facts.slices for e in endpoint_slice.endpoints or ()
        }
        if memory.state not in (State.ENGAGING, State.PARKING):
            published = self._existing(published)
            memory.resolvers_to_query = self._existing(memory.resolvers_to_query)
        listed = {endpoint.place: endpoint for endpoint in memory.listed}
        memory.resolvers_to_query = published | memory.resolvers_to_query | listed

    def _existing(self, endpoints: Mapping[str, ServiceEndpoint]) -> dict[str, ServiceEndpoint]:
        return {
            place: endpoint
            for place, endpoint in endpoints.items()
            if any(map(self._resolvers.exists, endpoint.addresses))
        }

    async def remove(self, slices: Iterable[EndpointSlice], memory: ServiceState) -> None:
        """Take the resolver out of the rotation."""
        for endpoint_slice in slices:
            await self._delete(endpoint_slice, memory)
        memory.listed, memory.listed_since, memory.resolvers_to_query = (), {}, {}

    async def _answering(self, facts: Facts, memory: ServiceState) -> tuple[ServiceEndpoint, ...]:
        ready = {endpoint.place for endpoint in facts.resolvers}
        memory.verified = {item for item in memory.verified if item[0] in ready}
        pairs = [
            (endpoint, port)
            for endpoint in facts.resolvers
            for port in facts.ports.values()
            if (endpoint.place, port) not in memory.verified
        ]
        answers = await asyncio.gather(
            *(
                self._resolver_client.owns(
                    endpoint.addresses[0], port, facts.namespace, facts.es.spec.service
                )
                for endpoint, port in pairs
            )
        )
        for (endpoint, port), answer in zip(pairs, answers, strict=True):
            if answer:
                memory.verified.add((endpoint.place, port))
        memory.probe_failures = 0 if all(answers) else memory.probe_failures + 1
        return tuple(
            endpoint
            for endpoint in facts.resolvers
            if all((endpoint.place, port) in memory.verified for port in facts.ports.values())
        )

    async def _put(
        self, wanted: EndpointSlice, present: EndpointSlice | None, memory: ServiceState
    ) -> None:
        if present is not None and present.address_type != wanted.address_type:
            await self._delete(present, memory)  # no write can change that
            present = None
        if present is None:
            try:
                written = await self._slices.create(wanted, field_manager=FIELD_MANAGER)
            except AlreadyExists:
                # One without our label, which no cache shows: look for it next time.
                memory.legacy_checked = False
                raise
        elif slice_differs(present, wanted):
            onto = msgspec.structs.replace(wanted, metadata=adopted(wanted, present))
            written = await self._slices.replace(onto, field_manager=FIELD_MANAGER)
        else:
            return
        meta = written.metadata
        memory.slices.wrote(meta.name, meta.resource_version, written)

    async def _empty(self, present: EndpointSlice, memory: ServiceState) -> None:
        """Keep of our slice only resolvers that exist, where none can be confirmed.

        KubeElasti's stays as it is until there is something to put in its place.
        """
        if (present.metadata.labels or {}).get(MANAGED_BY_LABEL) != MANAGED_BY:
            return
        left = tuple(
            endpoint
            for endpoint in present.endpoints or ()
            if any(map(self._resolvers.exists, endpoint.addresses))
        )
        if left == (present.endpoints or ()):
            return
        written = await self._slices.replace(
            msgspec.structs.replace(present, endpoints=left), field_manager=FIELD_MANAGER
        )
        memory.slices.wrote(written.metadata.name, written.metadata.resource_version, written)

    async def _delete(self, endpoint_slice: EndpointSlice, memory: ServiceState) -> None:
        meta = endpoint_slice.metadata
        try:
            await self._slices.delete(
                meta.name, namespace=meta.namespace, preconditions=Preconditions(uid=meta.uid)
            )
        except NotFound:
            _log.debug("slice is gone already", slice=meta.name, namespace=meta.namespace)
        memory.slices.deleted(meta.name, meta.resource_version)

    # Asking

    async def ask(
        self, subjects: Mapping[tuple[str, str], Sequence[ServiceEndpoint]], since: float
    ) -> Activity:
        """Ask resolvers about Services, named by namespace and name; nobody to ask is no answer."""
        questions = [
            self._resolver_client.activity(endpoint.addresses[0], namespace, service)
            for (namespace, service), listed in subjects.items()
            for endpoint in listed
        ]
        if any(not listed for listed in subjects.values()):
            for question in questions:
                question.close()
            return Activity.UNKNOWN
        return combined_activity(await asyncio.gather(*questions), since)

    # The target's scale

    async def park(self, facts: Facts, memory: ServiceState) -> None:
        """Set the target to zero, if it is still what was decided on."""
        assert facts.target is not None
        autoscaler = facts.es.spec.autoscaler
        memory.keda_resumed = False
        try:
            if autoscaler is not None and autoscaler.type == "keda":
                memory.keda_paused |= {autoscaler.name}
                await self._writer.note_paused(facts.es, memory)
                paused = await self._keda.pause(facts.namespace, autoscaler.name)
                if not paused.paused:
                    self._refuse(facts, memory, paused.why)
                    return
            seen = memory.decided_on or facts.target.view
            outcome, view = await self._scales.park(target_of(facts.es), seen)
        except KubeError as error:
            self._count(facts, error)
            self._refuse(facts, memory, str(error))
            return
        if outcome is ScaleDown.CHANGED:
            self._refuse(facts, memory, "somebody else changed it meanwhile")
            return
        self._count(facts)
        remember_scale(memory, view)
        memory.parked_here = True
        self._reporter.parked(facts.es)

    def _refuse(self, facts: Facts, memory: ServiceState, why: str) -> None:
        memory.park = Park.REFUSED
        self._reporter.not_parked(facts.es, why)

    async def wake(self, facts: Facts, memory: ServiceState, minimum: int) -> None:
        """Ask for replicas. Raises KubeError."""
        try:
            outcome, view = await self._scales.scale_up(target_of(facts.es), minimum)
        except KubeError as error:
            self._count(facts, error)
            raise
        remember_scale(memory, view)
        if outcome is ScaleUp.SCALED:
            self._count(facts)
            memory.last_scaled_up = self._clock.now().timestamp()
            self._reporter.woken(facts.es, minimum)

    def _count(self, facts: Facts, error: KubeError | None = None) -> None:
        spec, meta = facts.es.spec, facts.es.metadata
        request = Request(meta.namespace, meta.name)
        self._metrics.scaled(request, spec.service, spec.scale_target_ref.name, error)

    async def resume_keda(self, facts: Facts, memory: ServiceState, name: str) -> None:
        """Take back a pause of ours; KEDA's failure is no reason to hold anything up."""
        try:
            await self._keda.resume(facts.namespace, name)
        except KubeError as error:
            memory.keda_failures += 1
            memory.keda_again = facts.now + keda_retry_delay(memory.keda_failures)
            self._reporter.keda_failed(facts.es, str(error))
            return
        memory.keda_failures = 0
        autoscaler = facts.es.spec.autoscaler
        if autoscaler is not None and autoscaler.name == name:
            memory.keda_resumed = True
        memory.keda_paused -= {name}
