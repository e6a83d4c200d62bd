"""The end of an ElastiService: wake, wait for the pods, remove what we made, let go.

Until then the resolver keeps holding: its slice belongs to the public Service and not to the
ElastiService. The wait is bounded, and skipped if it cannot end well: the namespace is terminating,
or the Service or the target is gone.

Nodes learn of the slice's end later than we do, and send connections to the resolver until then.
The resolver can route them only while the ElastiService and the private Service exist, so both
outlive the slice by the engage settle.

`OrphanSweeper` removes our objects that no longer belong to an ElastiService, and our key in a
selector. A slice without an ElastiService would send a Service's traffic to a resolver that does
not know it. So the sweeper looks for what a crash or a renamed `spec.service` leaves behind, and
deletes it by its uid. It reads from the cache itself which ElastiServices exist: after a start, the
directory learns of them one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator

from elasti.api.names import ELASTISERVICES, FINALIZER, PRIVATE_LABEL, private_service_name
from elasti.api.states import State
from elasti.logger import get_logger
from elasti.operator.doze.dozer import Dozer
from elasti.operator.handover.cluster_reader import ClusterReader
from elasti.operator.handover.execute import HandoverExecutor
from elasti.operator.handover.listing import SlicePublisher
from elasti.operator.handover.quarantine import PortQuarantine
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.children import drain_patch, is_drained
from elasti.operator.model.facts import Facts
from elasti.operator.model.state import ServiceState
from elasti.operator.model.targets import target_of, wake_replicas
from elasti.operator.report.events import EventReporter
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.caches import OperatorCaches
from elasti.operator.watch.directory import Directory
from elasti.operator.watch.informer_manager import Scope
from kubeloop.aio.wait import until
from kubeloop.client.client import Client
from kubeloop.client.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from kubeloop.client.request import Preconditions
from kubeloop.controller.finalizers import remove_finalizers
from kubeloop.objects.core import SERVICES, SLICES, Service
from kubeloop.objects.meta import ObjectMeta

_PAUSE = 0.5
_LEAVE = "to delete it now, set spec.deletionPolicy: Leave"

_log = get_logger(__name__)


@dataclasses.dataclass(eq=False, kw_only=True)
class Finalizer:
    """Ends ElastiServices."""

    client: Client
    settings: OperatorSettings
    metrics: OperatorMetrics
    directory: Directory
    services: Scope[Service]
    quarantine: PortQuarantine
    reader: ClusterReader
    executor: HandoverExecutor
    publisher: SlicePublisher
    dozer: Dozer
    reporter: EventReporter

    def __post_init__(self) -> None:
        self._objects = self.client.resource(ELASTISERVICES)
        self._services = self.client.resource(SERVICES, Service)
        self._namespaces = self.client.resource("v1/namespaces")

    async def leave_service(self, namespace: str, former: ServiceState) -> None:
        """Take the resolver out of a Service that is no longer named: it would refuse the traffic."""
        if self.directory.owner(namespace, former.service) is not None:
            return
        if is_drained(self.services.find(namespace, former.service)):
            patch = drain_patch(drained=False)
            await self._services.patch(former.service, patch, namespace=namespace)
        slices = self.reader.published(namespace, former.service, former)
        await self.publisher.remove(slices, former)

    async def finalize(self, facts: Facts, state: ServiceState) -> float | None:
        """Go as far as possible; returns after how many seconds to go on, None when done."""
        if FINALIZER not in (facts.es.metadata.finalizers or ()):
            return None
        try:
            if state.doze.status is not None and not await self._requests_restored(facts, state):
                until = "the pods have their CPU requests back"
                return self._wait(facts, state, until, "then DozeNotRestored says what to run")
            if await self._owes_workers(facts, state):
                workers = ", ".join(str(one.target) for one in state.workers.owed)
                return self._wait(facts, state, f"{workers} has been scaled up", _LEAVE)
            pause = await self._end(facts, state)
        except KubeError as error:
            self.metrics.finalized(facts.request, error)
            raise
        if pause is None:
            self.metrics.finalized(facts.request, None)
        return pause

    async def _end(self, facts: Facts, state: ServiceState) -> float | None:
        if not facts.owned:
            return await self._let_go(facts)
        if await self._must_wait(facts, state):
            return self._wait(facts, state, f"a pod of {target_of(facts.es)} is ready", _LEAVE)
        await self._resume_autoscalers(facts, state)
        if facts.drained:
            # The resolver may leave only after the pods are back.
            await self.executor.set_drained(facts, state, drained=False)
            return _PAUSE
        since = state.handover.undrained_at - facts.now
        if (left := since + self.settings.release_settle) > 0:
            return left
        await self.publisher.remove(facts.slices, state)
        if pause := await self._until_nodes_know(facts, state):
            return pause
        await self._remove_private(facts)
        return await self._let_go(facts)

    def _wait(self, facts: Facts, state: ServiceState, until: str, remedy: str) -> float:
        wait = f"{until}, for at most {self.settings.finalize_wait:g} s; {remedy}"
        self.reporter.deletion_waits(facts, state, wait)
        return _PAUSE

    async def _owes_workers(self, facts: Facts, state: ServiceState) -> bool:
        """Wake what sleeps beside the target; False if that is done, not wanted, or took too long."""
        owed = tuple(one.target for one in state.workers.owed)
        if not owed or facts.es.spec.deletion_policy == "Leave":
            return False
        if facts.now >= state.workers.wakes.next_at:
            await self.executor.workers.wake(facts.es, state, owed)
        return bool(state.workers.owed) and not self._is_overdue(state)

    async def _requests_restored(self, facts: Facts, state: ServiceState) -> bool:
        """Give a dozing target its requests back; also True if that does not end in time."""
        if await self.dozer.restored(facts, state):
            return True
        if not self._is_overdue(state) and not await self._is_terminating(facts.namespace):
            return False
        await self.dozer.give_up(facts, state)
        return True

    async def _must_wait(self, facts: Facts, state: ServiceState) -> bool:
        es = facts.es
        # One that is to be observed is woken by the hand-over; at zero after that, another writer put it there.
        woken = facts.ends_enforcing and state.current is State.SERVE
        # What cannot be read for now may still be at zero.
        unread = facts.kind_unusable and es.status.asleep_since is not None
        gone = facts.target is None and not unread
        if es.spec.deletion_policy == "Leave" or woken or gone:
            return False
        if not facts.slices and not facts.at_zero and not unread:
            return False
        if self._is_overdue(state):
            _log.warning("no endpoint became ready before the finalizer's deadline")
            return False
        asked = facts.target is not None and await self._wake(facts, state)
        if asked and (not facts.slices or facts.service is None):
            return False  # no connection is held, so none waits for the pods
        # At zero, what was ready last may be a pod that has stopped since.
        ready = bool(facts.ready) and not facts.at_zero
        settle = self.settings.release_settle
        if facts.slices and ready and state.handover.settled_ready(facts.now, settle):
            return False
        return not await self._is_terminating(es.metadata.namespace)

    def _is_overdue(self, state: ServiceState) -> bool:
        now = asyncio.get_running_loop().time()
        return state.handover.finalizing_for(now) >= self.settings.finalize_wait

    async def _until_nodes_know(self, facts: Facts, state: ServiceState) -> float:
        """Return for how many seconds nodes may still send connections to the resolver."""
        settle = max(self.settings.engage_settle, facts.path.least_settle)
        left = state.handover.sliced_at + settle - asyncio.get_running_loop().time()
        if left <= 0 or facts.service is None or await self._is_terminating(facts.namespace):
            return 0.0
        return left

    async def _wake(self, facts: Facts, state: ServiceState) -> bool:
        """Ask for pods; False if that failed and may be retried."""
        await self._resume_autoscalers(facts, state)
        spec, status = facts.es.spec, facts.es.status
        minimum = wake_replicas(spec, status) if facts.at_zero else spec.min_target_replicas
        try:
            return await self.executor.wake(facts, state, minimum)
        except NotFound:
            return True
        except KubeError:
            return False

    async def _resume_autoscalers(self, facts: Facts, state: ServiceState) -> None:
        for owed in state.autoscaler.owed(facts.autoscaler):
            await self.executor.resume_autoscaler(facts, state, owed)

    async def _is_terminating(self, namespace: str) -> bool:
        try:
            found = await self._namespaces.get(namespace)
        except Forbidden:
            return False
        except NotFound:
            return True
        return bool(found["metadata"].get("deletionTimestamp"))

    async def _remove_private(self, facts: Facts) -> None:
        name = private_service_name(facts.es.spec.service)
        present = facts.private
        uid = present.metadata.uid if present else ""
        with contextlib.suppress(NotFound, Conflict):
            await self._services.delete(
                name,
                namespace=facts.namespace,
                preconditions=Preconditions(uid=uid) if uid else None,
            )

    async def _let_go(self, facts: Facts) -> float | None:
        """Take our finalizer away; returns after how many seconds to try again, None when done."""
        es = facts.es
        patch = remove_finalizers(es.metadata.finalizers or [], [FINALIZER])
        if patch is None:
            return None
        named = {port.resolver_port for port in es.status.resolver_ports}
        await self.quarantine.note(named | set(facts.ports.values()))
        try:
            await self._objects.patch(es.metadata.name, patch, namespace=es.metadata.namespace)
        except NotFound:
            return None
        except (Invalid, Conflict):
            _log.debug("ElastiService changed; finalizer is removed later", name=es.metadata.name)
            return _PAUSE
        return None


class OrphanSweeper:
    """Looks for orphans, from time to time."""

    def __init__(self, client: Client, caches: OperatorCaches, *, period: float) -> None:
        self._client = client
        self._caches = caches
        self._period = period

    async def run(self) -> None:
        """Sweep until cancelled."""
        await until(self.sweep, self._period, jitter=0.1)

    async def sweep(self) -> None:
        """Delete every orphan that there is now. Raises KubeError."""
        named = self._named()
        for service in self._caches.services.all():
            namespace, name = service.metadata.namespace, service.metadata.name
            if is_drained(service) and (namespace, name) not in named:
                _log.info("selector is restored", namespace=namespace, name=name)
                patch = drain_patch(drained=False)
                with contextlib.suppress(NotFound):
                    await self._client.resource(SERVICES).patch(name, patch, namespace=namespace)
        for resource, meta in (*self.orphans(),):
            _log.info(
                "orphan is deleted", resource=resource, namespace=meta.namespace, name=meta.name
            )
            with contextlib.suppress(NotFound, Conflict):
                await self._client.resource(resource).delete(
                    meta.name, namespace=meta.namespace, preconditions=Preconditions(uid=meta.uid)
                )

    def _named(self) -> set[tuple[str, str]]:
        objects = self._caches.elastiservices.all()
        return {(es.metadata.namespace, es.spec.service) for es in objects}

    def orphans(self) -> Iterator[tuple[str, ObjectMeta]]:
        """Iterate over what belongs to no ElastiService."""
        named = self._named()
        for endpoint_slice in self._caches.our_slices.all():
            if (endpoint_slice.metadata.namespace, endpoint_slice.service) not in named:
                yield SLICES, endpoint_slice.metadata
        for service in self._caches.services.all():
            if (service.metadata.labels or {}).get(PRIVATE_LABEL) == "true":
                owners = service.metadata.owner_references or ()
                if not any((service.metadata.namespace, owner.name) in named for owner in owners):
                    yield SERVICES, service.metadata
