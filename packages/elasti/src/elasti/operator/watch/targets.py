"""Scale targets of any kind as one shape, `UpdateObjInfo` (KubeElasti's ops informer).

Deployments, StatefulSets, ReplicaSets and Rollouts keep their replicas in the same place, so a slim
watch of the kind is enough. Other kinds may keep them anywhere: their metadata is watched, and
`/scale` is read when something changes. `KindWarmer` keeps the watches of all target kinds open on
standbys, so that a new leader begins at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, NamedTuple

import msgspec

from elasti.api.names import AGGREGATE_LABEL
from elasti.api.types import ElastiService
from elasti.api.usage import RequestingContainer, RequestingPod
from elasti.logger import get_logger
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.targets import ScaleTarget, UpdateObjInfo, target_of
from elasti.operator.scale_handler import NotScalable, ScaleHandler
from elasti.operator.watch.directory import Directory
from elasti.operator.watch.informer_manager import (
    InformerManager,
    KeyParams,
    OnObject,
    RequestWatch,
    Scope,
)
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, KubeError, NoMatch, NotFound
from kubeloop.controller.reconcile import Request
from kubeloop.informer import Added
from kubeloop.informer.handlers import Notification
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.list_watch import ListOptions
from kubeloop.objects.meta import LabeledMeta, PartialObjectMetadata

_WELL_KNOWN = frozenset(
    {
        ("apps", "deployments"),
        ("apps", "statefulsets"),
        ("apps", "replicasets"),
        ("argoproj.io", "rollouts"),
    }
)


class _Present(msgspec.Struct, gc=False):
    """Something that is there; what is in it does not matter."""


class _Port(msgspec.Struct, gc=False):
    name: str = ""


class _Container(RequestingContainer, rename="camel", gc=False):
    readiness_probe: _Present | None = None
    ports: tuple[_Port, ...] | None = None


class _Volume(msgspec.Struct, rename="camel", gc=False):
    persistent_volume_claim: _Present | None = None


class _PodSpec(RequestingPod, rename="camel", gc=False):
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] | None = None
    host_network: bool | None = None
    volumes: tuple[_Volume, ...] | None = None


class _TemplateMeta(msgspec.Struct, gc=False):
    labels: dict[str, str] | None = None


class _Template(msgspec.Struct, gc=False):
    metadata: _TemplateMeta = msgspec.field(default_factory=_TemplateMeta)
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _Strategy(msgspec.Struct, gc=False):
    type: str = ""


class _WorkloadSpec(msgspec.Struct, gc=False):
    replicas: int | None = None
    template: _Template | None = None
    strategy: _Strategy | None = None


class Workload(msgspec.Struct, rename="camel", gc=False):
    """A Deployment, StatefulSet, ReplicaSet, Rollout: replicas where all of these have them."""

    metadata: LabeledMeta
    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)

    @property
    def replicas(self) -> int:
        """The desired replicas; 1 if unset, as in Kubernetes."""
        return 1 if self.spec.replicas is None else self.spec.replicas

    @property
    def template_labels(self) -> dict[str, str]:
        """The labels that its pods get."""
        template = self.spec.template
        return (template.metadata.labels if template else None) or {}

    @property
    def has_readiness_probe(self) -> bool:
        """Whether any container says when it is ready."""
        containers = self.spec.template.spec.containers if self.spec.template else ()
        return any(container.readiness_probe is not None for container in containers)

    @property
    def port_names(self) -> frozenset[str]:
        """The names of its pods' ports; sidecars are init containers."""
        if self.spec.template is None:
            return frozenset()
        pod = self.spec.template.spec
        containers = (*pod.containers, *(pod.init_containers or ()))
        ports = (port for container in containers for port in container.ports or ())
        return frozenset(port.name for port in ports if port.name)


def info_of(workload: Workload) -> UpdateObjInfo:
    """Read a workload that keeps its replicas where Deployments do."""
    meta = workload.metadata
    pod = workload.spec.template.spec if workload.spec.template else None
    volumes = (pod.volumes if pod is not None else None) or ()
    return UpdateObjInfo(
        spec_replicas=workload.replicas,
        uid=meta.uid,
        version=meta.resource_version,
        pod_labels=workload.template_labels,
        probed=workload.has_readiness_probe if workload.spec.template else None,
        pod=pod,
        port_names=workload.port_names,
        recreates=workload.spec.strategy is not None and workload.spec.strategy.type == "Recreate",
        host_network=pod is not None and bool(pod.host_network),
        has_claims=any(volume.persistent_volume_claim is not None for volume in volumes),
    )


class WatchedTarget(NamedTuple):
    """The watched objects of a target's kind; None with the problem that is in the way."""

    scope: Scope[Any] | None
    problem: str = ""


class TargetWatcher:
    """Follows the scale targets of ElastiServices through the informer manager."""

    def __init__(
        self,
        client: Client,
        manager: InformerManager,
        scales: ScaleHandler,
        metrics: OperatorMetrics,
    ) -> None:
        self._client = client
        self._manager = manager
        self._scales = scales
        self._metrics = metrics
        self._watched: dict[Request, KeyParams] = {}

    async def watch(self, service: ElastiService, on_event: OnObject) -> WatchedTarget:
        """Subscribe to an ElastiService's target, if its kind allows it. Raises KubeError."""
        try:
            return WatchedTarget(await self.follow(service, on_event))
        except (NoMatch, NotScalable, Forbidden) as error:
            return WatchedTarget(None, await self.problem(service, error))

    async def problem(self, service: ElastiService, error: Exception) -> str:
        """Return why a target's kind cannot be had, and how it could."""
        ref = service.spec.scale_target_ref
        match error:
            case NoMatch():
                return (
                    f"the server has no kind {ref.kind} in {ref.api_version}; install it, or correct"
                    " spec.scaleTargetRef"
                )
            case Forbidden():
                gvr = (await self._scales.resource(target_of(service))).gvr
                place = self._manager.place(service.metadata.namespace)
                return f"{error}; {missing_rules_text(gvr, place)}"
            case _:
                return str(error)

    async def follow(self, service: ElastiService, on_event: OnObject) -> Scope[Any]:
        """Subscribe to an ElastiService's target, and unsubscribe from its previous one.

        Returns when the target's kind is in the cache. Raises NoMatch, NotScalable, KubeError.
        """
        target = target_of(service)
        info = await self._scales.resource(target)
        request = Request(service.metadata.namespace, service.metadata.name)
        key = KeyParams(*request, info.gvr, target.name)
        present = self._watched.get(request)
        if present is not None and present != key:
            self.leave(*request)
        if not self._manager.follows(info.gvr, request.namespace):
            await check_listing(self._client, self._manager, info.gvr, request.namespace)
        heard = self._counted(request, on_event)
        scope = self._manager.add(RequestWatch(key, kind_for(info.gvr), heard))
        if present != key:
            self._watched[request] = key
            self._metrics.follows(request, "add")
        await scope.wait_synced()
        return scope

    def _counted(self, request: Request, on_event: OnObject) -> OnObject:
        def heard(event: Notification[Any]) -> None:
            if not (isinstance(event, Added) and event.initial):
                self._metrics.handled(request, "target")
            on_event(event)

        return heard

    def leave(self, namespace: str, name: str) -> None:
        """Unsubscribe from the target of an ElastiService that is gone."""
        request = Request(namespace, name)
        key = self._watched.pop(request, None)
        if key is not None:
            self._manager.remove(key)
            self._metrics.follows(request, "stop")

    async def missing(self, target: ScaleTarget) -> str:
        """Return why a workload beside a target cannot be scaled, as far as is known; "" if it can."""
        try:
            gvr = (await self._scales.resource(target)).gvr
        except NoMatch:
            return f"the server has no kind {target.kind} in {target.api_version}; install it, or correct the entry"
        except (KubeError, NotScalable) as error:
            return str(error)
        if not self._manager.follows(gvr, target.namespace):
            return ""
        if self._manager.find(gvr, target.namespace, target.name) is not None:
            return ""
        return f"namespace {target.namespace} does not have it; create it, or remove the entry"

    async def read(self, service: ElastiService, scope: Scope[Any]) -> UpdateObjInfo | None:
        """Return the target's info; None if the target is missing. Raises KubeError."""
        target = target_of(service)
        found = scope.find(target.namespace, target.name)
        if found is None:
            return None
        if isinstance(found, Workload):
            return info_of(found)
        try:
            view = await self._scales.read(target)
        except NotFound:
            return None
        return UpdateObjInfo(spec_replicas=view.replicas, uid=view.uid, version=view.version)


async def known_target(
    client: Client, manager: InformerManager, scales: ScaleHandler, target: ScaleTarget
) -> UpdateObjInfo | None:
    """Return a target from a cache, otherwise from the server; None if its kind keeps replicas elsewhere.

    Raises NoMatch, NotScalable, KubeError.
    """
    gvr = (await scales.resource(target)).gvr
    if kind_for(gvr) is not Workload:
        return None
    found = manager.find(gvr, target.namespace, target.name)
    if found is None:
        found = await client.resource(gvr, Workload).get(target.name, namespace=target.namespace)
    return info_of(found)


async def check_listing(
    client: Client, manager: InformerManager, gvr: GroupVersionResource, namespace: str
) -> None:
    """Raise KubeError if a kind's objects cannot be watched.

    A watch would retry indefinitely; whether it may be opened is better known at once.
    """
    place = manager.place(namespace)
    await client.resource(gvr, namespace=place).list(ListOptions(limit=1))


def missing_rules_text(resource: GroupVersionResource, namespace: str = "") -> str:
    """Return which rules allow the operator a kind, in one namespace or in all, for a message."""
    group, plural = resource.group, resource.resource
    rules = (
        f'the rules {{apiGroups: ["{group}"], resources: [{plural}], verbs: [get, list, watch]}} and'
        f' {{apiGroups: ["{group}"], resources: [{plural}/scale], verbs: [get, update, patch]}}'
    )
    if namespace:
        return f"bind a Role in namespace {namespace} to the operator's account, with {rules}"
    return f'add a ClusterRole labelled {AGGREGATE_LABEL}: "true" with {rules}'


def kind_for(gvr: GroupVersionResource) -> type[Any]:
    """Return how objects of a resource are represented."""
    return Workload if (gvr.group, gvr.resource) in _WELL_KNOWN else PartialObjectMetadata


_WARM_PERIOD = 30.0

_log = get_logger(__name__)


@dataclasses.dataclass(eq=False, kw_only=True)
class KindWarmer:
    """Opens the watch of every target kind in use, and closes the others. A runnable for `Group.OTHERS`."""

    client: Client
    manager: InformerManager
    directory: Directory
    scales: ScaleHandler

    async def run(self) -> None:
        """Open and close watches as kinds come and go, until cancelled."""
        while True:
            used = {await self._warm(target) for target in self._wanted()}
            # A kind that could not be looked up may be one that is watched.
            if None not in used:
                await self.manager.close_unused({key for key in used if key is not None})
            await asyncio.sleep(_WARM_PERIOD)

    def _wanted(self) -> list[ScaleTarget]:
        """Return one target for each watch that the leader would need."""
        found = {
            (target.api_version, target.kind, self.manager.place(target.namespace)): target
            for target in self.directory.targets()
        }
        return list(found.values())

    async def _warm(self, target: ScaleTarget) -> tuple[GroupVersionResource, str] | None:
        """Open a kind's watch unless it is open; returns its key, None if the kind is unknown."""
        try:
            info = await self.scales.resource(target)
            if self.manager.follows(info.gvr, target.namespace):
                return info.gvr, self.manager.place(target.namespace)
            await check_listing(self.client, self.manager, info.gvr, target.namespace)
        except (KubeError, NotScalable) as error:
            _log.debug("kind cannot be watched", kind=target.kind, error=str(error))
            return None
        key = KeyParams(target.namespace, "", info.gvr, "")
        self.manager.add(RequestWatch(key, kind_for(info.gvr), lambda _event: None))
        return info.gvr, self.manager.place(target.namespace)
