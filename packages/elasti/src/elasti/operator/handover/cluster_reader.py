"""Reads everything that one ElastiService depends on, at one moment, into a `ClusterSnapshot`.

It reads mostly from caches, and changes nothing. It asks the server for three things, and only if a
decision depends on them: the public Service's own slices, with the pods that they name, which alone
show whether traffic can go to pods; a slice of KubeElasti's that carries no label; and the user's own
waiting page, if the spec names one, since ConfigMaps are not watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from elasti.api.names import MANAGED_BY, PAGE_CONFIG_MAP, private_service_name
from elasti.api.states import State
from elasti.api.types import CapacityStatus, ElastiService
from elasti.api.usage import is_flapping
from elasti.logger import get_logger
from elasti.operator.autoscalers.base import Autoscalers
from elasti.operator.doze.reader import DozeReader
from elasti.operator.handover.observe import can_have_ports
from elasti.operator.handover.ports import PortBook, port_owner
from elasti.operator.model.children import FAMILIES, families, slice_names
from elasti.operator.model.facts import ClusterSnapshot
from elasti.operator.model.findings import Finding, lasting_selector
from elasti.operator.model.state import ServiceState
from elasti.operator.model.targets import ScaleTarget, workers_of
from elasti.operator.report.warnings import (
    DefinitionCheck,
    findings_of,
    keep_awake_complaint,
    schedule_findings,
)
from elasti.operator.scale_handler import NotScalable
from elasti.operator.watch.caches import BY_SELECTOR, BY_SERVICE, OperatorCaches
from elasti.operator.watch.directory import CRDDetails, Directory
from elasti.operator.watch.neighbours import Neighbours
from elasti.operator.watch.targets import TargetWatcher, WatchedTarget
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, KubeError, NoMatch, NotFound
from kubeloop.objects.core import (
    MANAGED_BY_LABEL,
    PODS,
    SERVICE_LABEL,
    SLICES,
    EndpointSlice,
    Pod,
    Service,
    ServiceEndpoint,
)
from kubeloop.objects.meta import compare_versions

_AT_ONCE = 4
_log = get_logger(__name__)


@dataclasses.dataclass(eq=False, kw_only=True)
class ClusterReader:
    """Reads. Raises KubeError if the server must be asked and does not answer."""

    client: Client
    caches: OperatorCaches
    targets: TargetWatcher
    autoscalers: Autoscalers
    directory: Directory
    definition: DefinitionCheck
    ports: PortBook
    clock: Clock
    dozes: DozeReader
    neighbours: Neighbours

    def __post_init__(self) -> None:
        self._slices = self.client.resource(SLICES, EndpointSlice)
        self._config_maps = self.client.resource("v1/configmaps")
        self._pod_liveness = PodLiveness(self.client)

    async def read(
        self, es: ElastiService, state: ServiceState, watched: WatchedTarget
    ) -> ClusterSnapshot:
        """Read everything that one ElastiService depends on; `watched` is its target's kind."""
        namespace, name = es.metadata.namespace, es.spec.service
        found = await self._target(es, watched)
        found = await self._with_slices(found, state)
        services = self.caches.services
        found = dataclasses.replace(
            found,
            now=asyncio.get_running_loop().time(),
            service=services.find(namespace, name),
            private=services.find(namespace, private_service_name(name)),
            target=found.target
            and found.target.with_scale(state.own_writes.newest_scale(found.target.view)),
            resolvers=self.caches.resolvers.ready(),
            resolvers_lost_for=self.caches.resolvers.lost_for(),
            autoscaler=self.autoscalers.pausable(es.spec),
        )
        found = dataclasses.replace(
            found,
            pods_left=any(one.endpoints for one in self._private_slices(found)),
            capacity=await self._capacity(found),
        )
        parked = found.at_zero and state.current in (None, State.PROXY)
        # Nothing depends on endpoints there, and a restart saves a list for each.
        if found.service is not None and not parked and not found.observed_only:
            ready = await self._ready(found, state)
            soon = not ready and bool(self._private_ready(found))
            draining = found.drained and state.current is State.DRAINING
            left = draining and await self.public_ready(found.namespace, es.spec.service)
            found = dataclasses.replace(found, ready=ready, ready_soon=soon, in_rotation=bool(left))
        labels = found.target.pod_labels if found.target is not None else {}
        path = self.neighbours.path(es, found.service or Service(), labels)
        found = dataclasses.replace(found, doze=await self.dozes.read(found, state), path=path)
        return await self._with_findings(found, state)

    # The target

    async def _target(self, es: ElastiService, watched: WatchedTarget) -> ClusterSnapshot:
        found = ClusterSnapshot(es=es, now=0.0, target_problem=watched.problem)
        if watched.scope is None:
            return dataclasses.replace(found, kind_unusable=True)
        try:
            info = await self.targets.read(es, watched.scope)
        except (NoMatch, NotScalable, Forbidden) as error:
            problem = await self.targets.problem(es, error)
            return dataclasses.replace(found, target_problem=problem, kind_unusable=True)
        if info is None:
            ref = es.spec.scale_target_ref
            problem = f"there is no {ref.kind} {ref.name} in namespace {es.metadata.namespace}"
            return dataclasses.replace(found, target_problem=problem)
        return dataclasses.replace(found, target=info, cached_scale=info.version)

    async def _capacity(self, found: ClusterSnapshot) -> CapacityStatus | None:
        """Return what a sleep releases; a target that several share is counted for one of them."""
        if found.target is None or found.target.pod_request is None:
            return None
        if found.request != min(self.directory.sharing(found.request), default=found.request):
            return None
        spec, request = found.es.spec, found.target.pod_request
        replicas = spec.min_target_replicas
        with contextlib.suppress(KubeError):
            replicas = max(replicas, await self.autoscalers.minimum(found.namespace, spec))
        return CapacityStatus(replicas * request.cpu_millicores, replicas * request.memory_bytes)

    # Our slices

    async def _with_slices(self, found: ClusterSnapshot, state: ServiceState) -> ClusterSnapshot:
        namespace, service = found.namespace, found.es.spec.service
        cached = {
            name: self.caches.our_slices.find(namespace, name)
            for name in slice_names(service).values()
        }
        known = self.published(namespace, service, state)
        lost = [
            one for one in known if cached[one.metadata.name] is None and await self._is_lost(one)
        ]
        slices = tuple(one for one in known if one not in lost)
        unlabelled = None
        if not state.listing.legacy_checked:
            unlabelled = await self._unlabelled(namespace, service, slices)
        return dataclasses.replace(
            found,
            slices=slices + (unlabelled or ()),
            cached_slices={
                name: one.metadata.resource_version if one else "" for name, one in cached.items()
            },
            lost_slices={one.metadata.name: one.metadata.resource_version for one in lost},
            unlabelled=unlabelled,
        )

    def published(
        self, namespace: str, service: str, state: ServiceState
    ) -> tuple[EndpointSlice, ...]:
        """Return the slices of ours that a Service has, as far as is known."""
        found = []
        for name in slice_names(service).values():
            cached = self.caches.our_slices.find(namespace, name)
            version = cached.metadata.resource_version if cached else ""
            found.append(state.own_writes.slices.newest(name, cached, version))
        return tuple(endpoint_slice for endpoint_slice in found if endpoint_slice is not None)

    async def _is_lost(self, written: EndpointSlice) -> bool:
        """Whether a slice that we wrote, and the cache does not show, no longer exists.

        A cache that is as new as the write may never have shown it: it was deleted while the watch
        was down, without an event.
        """
        meta = written.metadata
        version = self.caches.our_slices.version(meta.namespace)
        if compare_versions(version, meta.resource_version) < 0:
            return False
        try:
            await self._slices.get(meta.name, namespace=meta.namespace)
        except NotFound:
            return True
        return False

    async def _unlabelled(
        self, namespace: str, service: str, known: Sequence[EndpointSlice]
    ) -> tuple[EndpointSlice, ...]:
        """Ask for slices of our names that no cache shows: KubeElasti's, or one that lost its labels."""
        public = self.caches.services.find(namespace, service)
        names = slice_names(service)
        wanted = {names[family] for family in (families(public) if public else FAMILIES[:1])}
        found = []
        for name in sorted(wanted - {endpoint_slice.metadata.name for endpoint_slice in known}):
            with contextlib.suppress(NotFound):
                found.append(await self._slices.get(name, namespace=namespace))
        return tuple(found)

    # Ready endpoints

    async def _ready(self, found: ClusterSnapshot, state: ServiceState) -> frozenset[str]:
        ready = self._private_ready(found)
        if found.drained:
            return await self._pod_liveness.living(found.namespace, ready)
        serving = state.current in (None, State.SERVE) and not found.slices
        if serving and ready:
            return frozenset(endpoint.identity for endpoint in ready)
        return await self.public_ready(found.namespace, found.es.spec.service)

    def _private_slices(self, found: ClusterSnapshot) -> Iterator[EndpointSlice]:
        key = f"{found.namespace}/{private_service_name(found.es.spec.service)}"
        return self.caches.private_slices.by_index(BY_SERVICE, key)

    def _private_ready(self, found: ClusterSnapshot) -> list[ServiceEndpoint]:
        return [
            endpoint
            for endpoint_slice in self._private_slices(found)
            for endpoint in endpoint_slice.ready_endpoints
        ]

    async def public_ready(self, namespace: str, service: str) -> frozenset[str]:
        """Ask the server for endpoints of a Service that are ready, the resolver's left out."""
        selector = f"{SERVICE_LABEL}={service},{MANAGED_BY_LABEL}!={MANAGED_BY}"
        ours = set(slice_names(service).values())
        endpoint_slices = self._slices.items(selector=selector, namespace=namespace)
        listed = [
            endpoint
            async for endpoint_slice in endpoint_slices
            if endpoint_slice.metadata.name not in ours
            for endpoint in endpoint_slice.ready_endpoints
        ]
        return await self._pod_liveness.living(namespace, listed)

    # Problems

    async def _with_findings(self, found: ClusterSnapshot, state: ServiceState) -> ClusterSnapshot:
        warnings: tuple[Finding, ...] = ()
        page = await self._page_complaint(found)
        if found.service is not None:
            with contextlib.suppress(KubeError):
                warnings = await self.autoscalers.warnings(found.namespace, found.es.spec)
        lost = await self._lost_workers(found)
        # From here on nothing waits: whatever changes now is heard as an event after this reading.
        details = self.directory.get(found.request)
        owner = self.directory.owner(found.namespace, found.es.spec.service)
        flapping = is_flapping(found.es.status, self.clock.now())
        state.requests.note_flapping(flapping)
        findings = findings_of(
            found,
            problems=details.problems if details is not None else (),
            owner=owner.name if owner is not None and not _is_of(owner, found.es) else "",
            outdated=self.definition.finding,
            shared_with=self._services_on_same_pods(found),
            keep_awake=keep_awake_complaint(
                found.es.metadata.annotations, state, self.clock.now().timestamp()
            ),
            page=page,
            dependencies=self.directory.graph.problems(found.request),
            workers=(*self.directory.workers.problems(found.request), *lost.values()),
            schedules=schedule_findings(found.es.spec.schedules, self.clock.now()),
            flapping=flapping,
        )
        return dataclasses.replace(
            found,
            ports=self.ports.held_by(port_owner(found.es)) if can_have_ports(found.service) else {},
            owned=owner is None or _is_of(owner, found.es),
            findings=(*findings, *warnings, *(found.doze.findings if found.doze else ())),
            workers=self.directory.workers.of(found.request),
            lost_workers=tuple(lost),
        )

    async def _lost_workers(self, found: ClusterSnapshot) -> dict[ScaleTarget, str]:
        """Return which workloads beside the target are not there, or cannot be scaled, and why."""
        problems = {}
        for index, target in enumerate(workers_of(found.es)):
            if why := await self.targets.missing(target):
                named = f"spec.targets[{index}] names {target.kind} {target.name}"
                problems[target] = f"{named}: {why}; the entry is ignored until then"
        return problems

    async def _page_complaint(self, found: ClusterSnapshot) -> str:
        """Return why a waiting page of the user's own cannot be shown; empty if it can, or the spec names none."""
        page = found.es.spec.wake.page
        if page.mode == "Off" or page.template is None:
            return ""
        place = page.template.config_map
        remedy = "the built-in page is shown instead"
        try:
            config_map = await self._config_maps.get(place.name, namespace=found.namespace)
            place.text_in(config_map.get("data"))
        except ValueError as error:
            return f"{error}; {remedy}"
        except NotFound:
            return f"there is no ConfigMap {place.name}; {remedy}"
        except Forbidden:
            return (
                f"ConfigMap {place.name} may not be read; name it {PAGE_CONFIG_MAP}, or let the accounts of"
                f" operator and resolver get it; {remedy}"
            )
        except KubeError:
            return ""  # no hand-over waits for a page
        return ""

    def _services_on_same_pods(self, found: ClusterSnapshot) -> list[str]:
        if found.target is None:
            return []
        labels = found.target.pod_labels
        names = {
            service.metadata.name
            for key, value in labels.items()
            for service in self.caches.services.by_index(
                BY_SELECTOR, f"{found.namespace}/{key}={value}"
            )
            if lasting_selector(service).items() <= labels.items()
        }
        names.discard(found.es.spec.service)
        owner = self.directory.owner
        return sorted(name for name in names if owner(found.namespace, name) is None)


def _is_of(owner: CRDDetails, es: ElastiService) -> bool:
    return owner.uid == es.metadata.uid


class PodLiveness:
    """Reads whether the pods behind ready endpoints are really there. Raises KubeError.

    A slice is what a controller last wrote, and one that is behind leaves dead pods in it as ready: after a
    restart, or while its own watches break. So before the resolver steps aside the pods are read, a few at
    a time, in the same order each time, until one lives: that is enough to know.
    """

    def __init__(self, client: Client) -> None:
        self._pods = client.resource(PODS, Pod)
        self._reported = False

    async def living(self, namespace: str, endpoints: Iterable[ServiceEndpoint]) -> frozenset[str]:
        """Return the identities of some endpoints that are really ready; empty if no endpoint is."""
        ordered = sorted(endpoints, key=lambda endpoint: endpoint.identity)
        for first in range(0, len(ordered), _AT_ONCE):
            if found := await self._living(namespace, ordered[first : first + _AT_ONCE]):
                return found
        return frozenset()

    async def _living(self, namespace: str, endpoints: Sequence[ServiceEndpoint]) -> frozenset[str]:
        answers = await asyncio.gather(*(self._lives(namespace, e) for e in endpoints))
        pairs = zip(endpoints, answers, strict=True)
        return frozenset(endpoint.identity for endpoint, lives in pairs if lives)

    async def _lives(self, namespace: str, endpoint: ServiceEndpoint) -> bool:
        reference = endpoint.target_ref
        if reference is None or reference.kind != "Pod":
            return True  # listed by hand: there is no pod to read
        try:
            pod = await self._pods.get(reference.name, namespace=namespace)
        except NotFound:
            return False
        except Forbidden as error:
            self._warn_once(error)
            return True
        lives = pod.is_ready and not pod.is_deleting
        return lives and reference.uid in ("", pod.metadata.uid)

    def _warn_once(self, error: Forbidden) -> None:
        if not self._reported:
            self._reported = True
            _log.warning("cannot read pods; trusting EndpointSlice readiness", error=str(error))
