"""Looks at a cluster, part by part, and gathers what there is to say.

A part that may not be looked at is told as such and stops nobody else; only a cluster that does not
answer at all ends the examination.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Any, TypeVar

from elasti.api.names import GROUP, LEASE_NAME, PLURAL, RESOLVER_SERVICE
from elasti.api.types import ElastiService
from elasti.cli.doctor import elastiservices, installation, permissions
from elasti.cli.doctor.findings import DoctorFinding, FindingLevel
from elasti.cli.elastiservices import RESOURCE
from kubeloop.client.errors import ApiError, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

T = TypeVar("T")
_DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
_SLICES = "discovery.k8s.io/v1/endpointslices"
_FEW = 10
"""In so many namespaces objects are listed one by one; with more of them, everywhere at once."""


class Examination:
    """One look at one cluster; `namespace` narrows which ElastiServices are looked at."""

    def __init__(
        self, client: Client, *, namespace: str, elasti_namespace: str, version: str
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._elasti = elasti_namespace
        self._version = version
        self._found: list[DoctorFinding] = []
        self._is_defined: bool | None = None

    async def findings(self) -> list[DoctorFinding]:
        """Look at everything. Raises KubeError where the cluster does not answer."""
        self._found.append(installation.judge_server(await self._client.server_version()))
        await self._definition()
        await self._own_rights()
        deployments = await self._programs()
        await self._accounts(deployments)
        objects = await self._services()
        await self._network(objects)
        return self._found

    # The parts

    async def _definition(self) -> None:
        definitions = self._client.resource(_DEFINITIONS)
        found = await self._read(
            installation.DEFINITION_TOPIC,
            _or_none(definitions.get(f"{PLURAL}.{GROUP}")),
            essential=False,
        )
        self._is_defined = None if isinstance(found, _Unseen) else found is not None
        if not isinstance(found, _Unseen):
            self._found += installation.judge_definition(found)

    async def _own_rights(self) -> None:
        wanted = permissions.needs(self._namespace, self._elasti)
        found = await self._read("your rights", permissions.judge_own(self._client, wanted))
        if not isinstance(found, _Unseen):
            self._found += found

    async def _programs(self) -> list[JsonObject]:
        resource = self._client.resource("apps/v1/deployments", namespace=self._elasti)
        found = await self._read("programs", _all(resource.items()))
        if not isinstance(found, _Unseen):
            self._found += installation.judge_programs(found, self._elasti, self._version)
        there = [] if isinstance(found, _Unseen) else found
        names = {installation.program_of(item) for item in there}
        if not isinstance(found, _Unseen) and names <= {""}:
            self._found += installation.found_elsewhere(await self._labelled(), self._elasti)
        await self._leader(installed="operator" in names)
        await self._resolvers(installed="resolver" in names)
        return there

    async def _labelled(self) -> list[JsonObject]:
        """Return the Deployments of Elasti anywhere; none where that may not be asked."""
        deployments = self._client.resource("apps/v1/deployments")
        try:
            return await _all(deployments.items(selector="app.kubernetes.io/part-of=elasti"))
        except ApiError:
            return []

    async def _leader(self, *, installed: bool) -> None:
        leases = self._client.resource("coordination.k8s.io/v1/leases", namespace=self._elasti)
        lease = await self._read("leader", _or_none(leases.get(LEASE_NAME)))
        if not isinstance(lease, _Unseen) and (installed or lease is not None):
            self._found.append(installation.judge_lease(lease, dt.datetime.now(dt.UTC)))

    async def _resolvers(self, *, installed: bool) -> None:
        slices = self._client.resource(_SLICES, namespace=self._elasti)
        selector = f"kubernetes.io/service-name={RESOLVER_SERVICE}"
        endpoint_slices = await self._read(
            "resolver endpoints", _all(slices.items(selector=selector))
        )
        if not isinstance(endpoint_slices, _Unseen) and (installed or endpoint_slices):
            service = f"{self._elasti}/{RESOLVER_SERVICE}"
            self._found.append(installation.judge_resolvers(endpoint_slices, service))

    async def _accounts(self, deployments: Iterable[JsonObject]) -> None:
        ours = {installation.program_of(item): item for item in deployments}
        ours.pop("", None)
        if not ours:
            return
        served = set((await self._client.discovery.fetch()).versions)
        for program, deployment in sorted(ours.items()):
            spec = deployment["spec"]["template"]["spec"]
            name = spec.get("serviceAccountName") or "default"
            account = f"system:serviceaccount:{self._elasti}:{name}"
            needed = permissions.program_rights(program, _watched(spec), self._elasti, served)
            found = await self._read(
                f"{program}'s rights",
                permissions.judge_account(self._client, program, account, needed),
                essential=False,
            )
            if not isinstance(found, _Unseen):
                self._found += found

    async def _services(self) -> list[ElastiService]:
        resource = self._client.resource(RESOURCE, ElastiService, namespace=self._namespace)
        try:
            objects = await self._read("ElastiServices", _all(resource.items()))
        except NotFound:
            if self._is_defined is None:
                self._found += installation.judge_definition(None)
            return []
        if isinstance(objects, _Unseen):
            return []
        known = await self._list_around("Services", "v1/services", objects)
        by_place = None if known is None else {_place(item): item for item in known}
        self._found += elastiservices.judge_services(objects, by_place)
        hpas = await self._list_around(
            "autoscalers", "autoscaling/v2/horizontalpodautoscalers", objects
        )
        scaled = await self._list_around("KEDA", "keda.sh/v1alpha1/scaledobjects", objects)
        self._found += elastiservices.judge_autoscalers(objects, hpas or (), scaled or ())
        return objects

    async def _network(self, objects: Sequence[ElastiService]) -> None:
        daemons = self._client.resource("apps/v1/daemonsets", namespace="kube-system")
        found = await self._read("Services", _all(daemons.items()), essential=False)
        if not isinstance(found, _Unseen):
            self._found.append(elastiservices.judge_proxies(found))
        policies = await self._list_around(
            "NetworkPolicies", "networking.k8s.io/v1/networkpolicies", objects
        )
        if not policies:
            return
        namespaces = self._client.resource("v1/namespaces")
        elasti = await self._read("NetworkPolicies", _or_none(namespaces.get(self._elasti)))
        labels = {} if isinstance(elasti, _Unseen) or elasti is None else _labels(elasti)
        targets = await self._targets(objects)
        self._found += elastiservices.judge_policies(policies, targets, (self._elasti, labels))

    async def _targets(
        self, objects: Sequence[ElastiService]
    ) -> dict[str, list[tuple[str, dict[str, str]]]]:
        labels: dict[tuple[str, str, str], dict[str, str]] = {}
        for kind, plural in (("deployment", "deployments"), ("statefulset", "statefulsets")):
            for item in await self._list_around("targets", f"apps/v1/{plural}", objects) or ():
                template = item["spec"]["template"]
                labels[(item["metadata"]["namespace"], kind, _name(item))] = _labels(template)
        found: dict[str, list[tuple[str, dict[str, str]]]] = {}
        for es in objects:
            ref, namespace = es.spec.scale_target_ref, es.metadata.namespace
            kind = ref.kind.lower().removesuffix("s")
            if (of := labels.get((namespace, kind, ref.name))) is not None:
                found.setdefault(namespace, []).append((f"{ref.kind} {ref.name}", of))
        return found

    # Looking

    async def _read(self, topic: str, part: Awaitable[T], *, essential: bool = True) -> T | _Unseen:
        """Return what was found; what may not be looked at is noted."""
        try:
            return await part
        except NotFound:
            raise
        except ApiError as error:
            level = FindingLevel.UNCHECKED if essential else FindingLevel.HINT
            self._found.append(DoctorFinding(level, topic, f"not checked: {error}"))
            return _Unseen()

    async def _list_around(
        self, topic: str, resource: str, objects: Sequence[ElastiService]
    ) -> list[JsonObject] | None:
        """Return a resource's objects in the namespaces of ElastiServices; None where not known."""
        namespaces = sorted({es.metadata.namespace for es in objects})
        if not namespaces:
            return []
        places = namespaces if len(namespaces) <= _FEW else [""]
        try:
            found = await self._read(
                topic,
                asyncio.gather(
                    *(_all(self._client.resource(resource, namespace=n).items()) for n in places)
                ),
                essential=False,
            )
        except NotFound:
            return None  # the cluster has no such kind
        return None if isinstance(found, _Unseen) else [item for part in found for item in part]


class _Unseen:
    """What could not be looked at."""


async def _all(pager: Any) -> list[Any]:
    return [item async for item in pager]


async def _or_none(part: Awaitable[T]) -> T | None:
    try:
        return await part
    except NotFound:
        return None


def _watched(spec: JsonObject) -> tuple[str, ...]:
    """Return the namespaces that a program is confined to; none where it watches all."""
    for container in spec.get("containers") or ():
        for variable in container.get("env") or ():
            if variable["name"] == "WATCH_NAMESPACES":
                listed = (variable.get("value") or "").split(",")
                return tuple(name.strip() for name in listed if name.strip())
    return ()


def _place(item: JsonObject) -> tuple[str, str]:
    return item["metadata"]["namespace"], _name(item)


def _name(item: JsonObject) -> str:
    return str(item["metadata"]["name"])


def _labels(item: JsonObject) -> dict[str, str]:
    return dict((item.get("metadata") or {}).get("labels") or {})
