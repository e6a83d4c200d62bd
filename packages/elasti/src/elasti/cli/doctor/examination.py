"""Examines a cluster, part by part, and gathers the findings.

A part that may not be read is reported as such and the others go on; only a cluster that does not
answer at all ends the examination.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING, TypeVar

from elasti.api.names import ELASTISERVICES, GROUP, LEASE_NAME, PLURAL, RESOLVER_SERVICE
from elasti.api.parsing import parse_list
from elasti.api.types import AUTOSCALER_KINDS, ElastiService
from elasti.cli.doctor import elastiservices, installation, permissions
from elasti.cli.doctor.findings import DoctorFinding, FindingLevel
from elasti.operator.autoscalers import AUTOSCALERS
from kubeloop.client.errors import ApiError, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence

    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

T = TypeVar("T")
_DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
_SLICES = "discovery.k8s.io/v1/endpointslices"
NETWORK_POLICIES = "networking.k8s.io/v1/networkpolicies"
_FEW = 10
"""Up to this many namespaces are listed one by one; more of them, all at once."""


class Examination:
    """One examination of one cluster; `namespace` narrows which ElastiServices are read."""

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
        """Read everything. Raises KubeError if the cluster does not answer."""
        self._found.append(installation.judge_server(await self._client.server_version()))
        await self._definition()
        with self._noted("your rights"):
            wanted = permissions.needs(self._namespace, self._elasti)
            self._found += await permissions.judge_own(self._client, wanted)
        deployments = await self._programs()
        await self._accounts(deployments)
        objects = await self._services()
        await self._network(objects)
        return self._found

    # The parts

    async def _definition(self) -> None:
        definitions = self._client.resource(_DEFINITIONS)
        with self._noted(installation.DEFINITION_TOPIC, essential=False):
            found = await _or_none(definitions.get(f"{PLURAL}.{GROUP}"))
            self._is_defined = found is not None
            self._found += installation.judge_definition(found)

    async def _programs(self) -> list[JsonObject]:
        resource = self._client.resource("apps/v1/deployments", namespace=self._elasti)
        there: list[JsonObject] = []
        with self._noted("programs"):
            there = await resource.items().to_list()
            self._found += installation.judge_programs(there, self._elasti, self._version)
            if not any(map(installation.program_of, there)):
                self._found += installation.found_elsewhere(await self._labelled(), self._elasti)
        names = {installation.program_of(item) for item in there}
        await self._leader(installed="operator" in names)
        await self._resolvers(installed="resolver" in names)
        return there

    async def _labelled(self) -> list[JsonObject]:
        """Return the Deployments of Elasti in all namespaces; empty if they cannot be listed."""
        deployments = self._client.resource("apps/v1/deployments")
        try:
            return await deployments.items(selector="app.kubernetes.io/part-of=elasti").to_list()
        except ApiError:
            return []

    async def _leader(self, *, installed: bool) -> None:
        leases = self._client.resource("coordination.k8s.io/v1/leases", namespace=self._elasti)
        with self._noted("leader"):
            lease = await _or_none(leases.get(LEASE_NAME))
            if installed or lease is not None:
                self._found.append(installation.judge_lease(lease, dt.datetime.now(dt.UTC)))

    async def _resolvers(self, *, installed: bool) -> None:
        slices = self._client.resource(_SLICES, namespace=self._elasti)
        with self._noted("resolver endpoints"):
            selector = f"kubernetes.io/service-name={RESOLVER_SERVICE}"
            found = await slices.items(selector=selector).to_list()
            if installed or found:
                service = f"{self._elasti}/{RESOLVER_SERVICE}"
                self._found.append(installation.judge_resolvers(found, service))

    async def _accounts(self, deployments: Iterable[JsonObject]) -> None:
        ours = {installation.program_of(item): item for item in deployments}
        for without_rights in ("", installation.DASHBOARD):
            ours.pop(without_rights, None)
        if not ours:
            return
        served = set((await self._client.discovery.fetch()).versions)
        for program, deployment in sorted(ours.items()):
            spec = deployment["spec"]["template"]["spec"]
            name = spec.get("serviceAccountName") or "default"
            account = f"system:serviceaccount:{self._elasti}:{name}"
            needed = permissions.program_rights(program, _watched(spec), self._elasti, served)
            with self._noted(f"{program}'s rights", essential=False):
                self._found += await permissions.judge_account(
                    self._client, program, account, needed
                )

    async def _services(self) -> list[ElastiService]:
        resource = self._client.resource(ELASTISERVICES, ElastiService, namespace=self._namespace)
        objects: list[ElastiService] | None = None
        try:
            with self._noted("ElastiServices"):
                objects = await resource.items().to_list()
        except NotFound:
            if self._is_defined is None:
                self._found += installation.judge_definition(None)
        if objects is None:
            return []
        known = await self._list_around("Services", "v1/services", objects)
        by_place = None if known is None else {_place(item): item for item in known}
        self._found += elastiservices.judge_services(objects, by_place)
        scaling = {
            kind: await self._list_around(
                "autoscalers", AUTOSCALER_KINDS[kind.type].resource, objects
            )
            or ()
            for kind in AUTOSCALERS
        }
        self._found += elastiservices.judge_autoscalers(objects, scaling)
        return objects

    async def _network(self, objects: Sequence[ElastiService]) -> None:
        daemons = self._client.resource("apps/v1/daemonsets", namespace="kube-system")
        with self._noted("Services", essential=False):
            self._found.append(elastiservices.judge_proxies(await daemons.items().to_list()))
        policies = await self._list_around("NetworkPolicies", NETWORK_POLICIES, objects)
        if not policies:
            return
        own, targets = await self._elasti_labels(), await self._targets(objects)
        self._found += elastiservices.judge_policies(policies, targets, own)

    async def _elasti_labels(self) -> tuple[str, dict[str, str]]:
        """Return the namespace of the resolver, with its labels."""
        namespaces = self._client.resource("v1/namespaces")
        labels: dict[str, str] = {}
        with self._noted("NetworkPolicies"):
            labels = _labels(await _or_none(namespaces.get(self._elasti)) or {})
        return self._elasti, labels

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
            ref = es.spec.scale_target_ref
            if (of := labels.get(elastiservices.target_of(es))) is not None:
                found.setdefault(es.metadata.namespace, []).append((f"{ref.kind} {ref.name}", of))
        return found

    # Reading

    @contextlib.contextmanager
    def _noted(self, topic: str, *, essential: bool = True) -> Iterator[None]:
        """Note what the block may not read, and go on after it. NotFound is for the block itself."""
        try:
            yield
        except NotFound:
            raise
        except ApiError as error:
            level = FindingLevel.UNCHECKED if essential else FindingLevel.HINT
            self._found.append(DoctorFinding(level, topic, f"not checked: {error}"))

    async def _list_around(
        self, topic: str, resource: str, objects: Sequence[ElastiService]
    ) -> list[JsonObject] | None:
        """Return a resource's objects in the namespaces of ElastiServices; None if unknown."""
        namespaces = sorted({es.metadata.namespace for es in objects})
        places = namespaces if len(namespaces) <= _FEW else [""]
        # NotFound: the cluster has no such kind.
        with contextlib.suppress(NotFound), self._noted(topic, essential=False):
            lists = (self._client.resource(resource, namespace=n).items().to_list() for n in places)
            return [item for part in await asyncio.gather(*lists) for item in part]
        return None


async def _or_none(part: Awaitable[T]) -> T | None:
    try:
        return await part
    except NotFound:
        return None


def _watched(spec: JsonObject) -> tuple[str, ...]:
    """Return the namespaces that a program is confined to; none if it watches all."""
    for container in spec.get("containers") or ():
        for variable in container.get("env") or ():
            if variable["name"] == "WATCH_NAMESPACES":
                return parse_list(variable.get("value") or "")
    return ()


def _place(item: JsonObject) -> tuple[str, str]:
    return item["metadata"]["namespace"], _name(item)


def _name(item: JsonObject) -> str:
    return str(item["metadata"]["name"])


def _labels(item: JsonObject) -> dict[str, str]:
    return dict((item.get("metadata") or {}).get("labels") or {})
