"""Keeps an ElastiService for each enrolled Service, at a steady pace, while this replica leads.

It reads caches only, so that a label on a thousand Services costs one write each. Objects are applied without
force: a field that a person set stays theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from elasti.api.names import ELASTISERVICES, ENROLMENT_FIELD_MANAGER, TEMPLATES
from elasti.api.types import ElastiService
from elasti.logger import bound, get_logger
from elasti.operator.enrolment.decide import Action, EnrolmentDecision, Surroundings, decide
from elasti.operator.enrolment.finder import (
    KINDS,
    Workload,
    WorkloadRef,
    autoscalers_in,
    leads_to,
    workload_resource,
)
from elasti.operator.model.findings import lasting_selector
from elasti.operator.model.targets import target_of, workers_of
from elasti.operator.pacing import RateSpacer
from elasti.operator.report.events import EventReporter
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.caches import BY_PART, BY_SELECTOR
from elasti.operator.watch.informer_manager import InformerManager, Scope
from kubeloop.aio.clock import Clock
from kubeloop.client import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import ApplyConflict, Forbidden, Invalid, NotFound
from kubeloop.client.request import Preconditions
from kubeloop.controller.controller import Controller
from kubeloop.controller.predicates import version_changed
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.informer.store import NAMESPACE
from kubeloop.objects.core import Service
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata

_log = get_logger(__name__)
_WRITES_A_SECOND = 10.0
_REFUSED_RETRY = 300.0
_AUTOSCALERS_FRESH = 60.0
_SLOW_START = 60.0
_BY_LABEL = "label"
_ENTRY = re.compile(r'name="([^"]*)"\]\.(\w+)')


@dataclasses.dataclass(eq=False, kw_only=True)
class EnrolmentController:
    """Enrols. One for a leader's tenure; `run` goes on until cancelled."""

    client: Client
    settings: OperatorSettings
    clock: Clock
    services: Scope[Service]
    elastiservices: Scope[ElastiService]
    reporter: EventReporter

    def __post_init__(self) -> None:
        settings = self.settings
        self._manager = InformerManager(
            self.client,
            namespaces=settings.watch_namespaces,
            resync=settings.informer_resync,
            health_period=settings.informer_health_period,
            stuck_after=settings.informer_stuck_after,
        )
        self._namespaces = self._manager.scope("v1/namespaces", PartialObjectMetadata, namespace="")
        self._templates: Scope[JsonObject] = self._manager.scope(TEMPLATES, dict, namespace="")
        self._workloads = {
            kind: self._manager.scope(workload_resource(kind), Workload) for kind in KINDS
        }
        for scope in self._workloads.values():
            scope.add_indexers({_BY_LABEL: _pairs})
        self._objects = self.client.resource(ELASTISERVICES)
        self._spacer = RateSpacer(_WRITES_A_SECOND)
        self._reported: dict[Request, EnrolmentDecision] = {}
        self._autoscalers: dict[str, tuple[float, dict[WorkloadRef, JsonObject]]] = {}

    async def run(self) -> None:
        """Enrol until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._manager.run(), name="enrolment caches")
            while not self._manager.is_ready:
                try:
                    async with asyncio.timeout(_SLOW_START):
                        await self._manager.wait_until_ready()
                except TimeoutError:
                    _log.warning("enrolment waits for caches", missing=self._manager.missing())
            controller = Controller("enrolment", self.reconcile)
            watched: list[tuple[Scope[Any], Callable[[Any], Iterable[Request]]]] = [
                (self.services, self._of_service),
                (self.elastiservices, self._of_elastiservice),
                (self._namespaces, self._of_namespace),
                (self._templates, lambda _template: map(_request, self.services.all())),
                *((scope, self._of_workload) for scope in self._workloads.values()),
            ]
            for scope, concerned in watched:
                for informer in scope.informers:
                    controller.watch(
                        informer,
                        mapping=map_func(concerned),
                        predicates=[version_changed()],
                        name=f"enrolment {informer.name}",
                    )
            await controller.run()

    # Which Services an event concerns

    def _of_service(self, service: Service) -> Iterable[Request]:
        yield _request(service)
        for workload in self._behind(service).values():
            yield from self._of_workload(workload)

    def _of_elastiservice(self, es: ElastiService) -> Iterable[Request]:
        namespace, owners = es.metadata.namespace, es.metadata.owner_references or ()
        for name in (es.spec.service, es.metadata.name, *(owner.name for owner in owners)):
            yield Request(namespace, name)
        for target in (target_of(es), *workers_of(es)):
            scope = self._workloads.get(target.kind)
            if scope and (workload := scope.find(namespace, target.name)) is not None:
                yield from self._of_workload(workload)

    def _of_namespace(self, namespace: PartialObjectMetadata) -> Iterable[Request]:
        return map(_request, self.services.by_index(NAMESPACE, namespace.metadata.name))

    def _of_workload(self, workload: Workload) -> Iterable[Request]:
        return map(_request, self._leading_to(workload))

    def _leading_to(self, workload: Workload) -> Iterator[Service]:
        for pair in _pairs(workload):
            for service in self.services.by_index(BY_SELECTOR, pair):
                if leads_to(service, workload.pod_labels):
                    yield service

    def _behind(self, service: Service) -> dict[WorkloadRef, Workload]:
        if not (selector := lasting_selector(service)):
            return {}
        key, value = min(selector.items())
        return {
            WorkloadRef(kind, found.metadata.name): found
            for kind, scope in self._workloads.items()
            for found in scope.by_index(_BY_LABEL, f"{service.metadata.namespace}/{key}={value}")
            if leads_to(service, found.pod_labels)
        }

    # One Service

    async def reconcile(self, request: Request) -> Result | None:
        """Make one Service's ElastiService what it should be. Raises KubeError."""
        keys = {"namespace": request.namespace, "name": request.name}
        with bound(**keys, reconcile_id=secrets.token_hex(4)):
            return await self._reconcile(request)

    async def _reconcile(self, request: Request) -> Result | None:
        service = self.services.find(*request)
        namespace = self._namespaces.find("", request.namespace)
        if service is None or namespace is None:
            # A namespace that the cache does not have proves nothing: its Services stay unchanged.
            self._reported.pop(request, None)
            return None
        found = decide(service, self._around(service, namespace))
        try:
            match found.action:
                case Action.ENROL:
                    await self._enrol(service, found)
                case Action.REMOVE:
                    await self._remove(service, found)
                case Action.LEAVE:
                    self._report_left(service, found)
                case _:
                    self._reported.pop(request, None)
        except (Invalid, Forbidden) as error:
            failed = found._replace(reason="EnrolmentRefused", message=str(error))
            self._report_left(service, failed)
            return Result(requeue_after=_REFUSED_RETRY)
        return Result(requeue_after=found.recheck) if found.recheck else None

    def _around(self, service: Service, namespace: PartialObjectMetadata) -> Surroundings:
        """Return what concerns one Service: of a namespace with a thousand, a few."""
        name, workloads = namespace.metadata.name, self._behind(service)
        parts = (service.metadata.name, *(f"{ref.kind}/{ref.name}" for ref in workloads))
        found = [
            es for part in parts for es in self.elastiservices.by_index(BY_PART, f"{name}/{part}")
        ]
        named = self.elastiservices.find(name, service.metadata.name)
        objects = {es.metadata.name: es for es in (*found, *((named,) if named else ()))}
        return Surroundings(
            namespace=namespace,
            services=[one for workload in workloads.values() for one in self._leading_to(workload)],
            workloads=workloads,
            elastiservices=tuple(objects.values()),
            templates={one["metadata"]["name"]: one for one in self._templates.all()},
            own_namespace=self.settings.operator_namespace,
            observe_for=self.settings.enrolment_observe_for,
            now=self.clock.now().timestamp(),
        )

    async def _enrol(self, service: Service, found: EnrolmentDecision) -> None:
        assert found.body is not None
        assert found.workload is not None
        body, namespace = found.body, service.metadata.namespace
        if scaled := (await self._autoscalers_in(namespace)).get(found.workload):
            body["spec"]["autoscaler"] = scaled
        await self._pace()
        if found.existing is not None:
            # Not one that a person wrote in its place meanwhile.
            body["metadata"]["uid"] = found.existing.metadata.uid
        elif await self._exists(service):
            return  # the cache will show it, and it comes again
        await apply_beside(self._objects, body, namespace=namespace)
        what = f"{found.workload}, template {found.template}, policy {body['spec']['policy']}"
        message = f"ElastiService {service.metadata.name}: {what}"
        self.reporter.enrolment(service, "Enrolled", message)
        self._reported.pop(_request(service), None)

    async def _exists(self, service: Service) -> bool:
        try:
            await self._objects.get(service.metadata.name, namespace=service.metadata.namespace)
        except NotFound:
            return False
        return True

    async def _remove(self, service: Service, found: EnrolmentDecision) -> None:
        assert found.existing is not None
        meta = found.existing.metadata
        if meta.deletion_timestamp:
            return
        await self._pace()
        try:
            await self._objects.delete(
                meta.name, namespace=meta.namespace, preconditions=Preconditions(uid=meta.uid)
            )
        except NotFound:
            return
        # Its finalizer wakes the target first.
        message = f"ElastiService {meta.name}: {found.message}"
        self.reporter.enrolment(service, "EnrolmentEnded", message)

    def _report_left(self, service: Service, found: EnrolmentDecision) -> None:
        request = _request(service)
        before, self._reported[request] = self._reported.get(request), found
        told = (found.reason, found.message)
        is_new = before is None or (before.reason, before.message) != told
        if is_new and found.reason != "Never":
            self.reporter.enrolment(service, found.reason, found.message, warn=True)

    async def _autoscalers_in(self, namespace: str) -> dict[WorkloadRef, JsonObject]:
        """Return a namespace's autoscalers, listed once for a fleet that is enrolled together."""
        now = asyncio.get_running_loop().time()
        self._autoscalers = {
            name: listed
            for name, listed in self._autoscalers.items()
            if now - listed[0] < _AUTOSCALERS_FRESH
        }
        if namespace not in self._autoscalers:
            found = await autoscalers_in(self.client, namespace, lambda _resource: None)
            self._autoscalers[namespace] = (now, found)
        return self._autoscalers[namespace][1]

    async def _pace(self) -> None:
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(self._spacer.reserve(now) - now)


async def apply_beside(api: Resource[JsonObject], body: JsonObject, **options: Any) -> JsonObject:
    """Apply an enrolled object, except for what a person changed of it. Raises KubeError."""
    options["field_manager"] = ENROLMENT_FIELD_MANAGER
    try:
        try:
            return await api.apply(body, **options)
        except ApplyConflict as conflict:
            body = without(body, [one for owned in conflict.fields.values() for one in owned])
            return await api.apply(body, **options)
    except Invalid:
        # A person's part of a schedule may contradict ours: change no schedule.
        with contextlib.suppress(NotFound):
            live = await api.get(body["metadata"]["name"], namespace=options["namespace"])
            if kept := live["spec"].get("schedules"):
                body = {**body, "spec": {**body["spec"], "schedules": kept}}
                return await api.apply(body, **options)
        raise


def without(body: JsonObject, fields: Iterable[str]) -> JsonObject:
    """Return an object without the fields that an apply met; of a list without names, all of it goes."""
    left = copy.deepcopy(body)
    for field in fields:
        path, _, entry = field.partition("[")
        *parents, last = path.strip(".").split(".")
        place: Any = left
        for name in parents:
            place = place.get(name, {})
        if found := _ENTRY.fullmatch(entry):
            entries = {one["name"]: one for one in place.get(last, ())}
            place, last = entries.get(found[1], {}), found[2]
        place.pop(last, None)
    return left


def _request(obj: Service) -> Request:
    return Request(obj.metadata.namespace, obj.metadata.name)


def _pairs(workload: Workload) -> list[str]:
    labels = workload.pod_labels.items()
    return [f"{workload.metadata.namespace}/{key}={value}" for key, value in labels]
