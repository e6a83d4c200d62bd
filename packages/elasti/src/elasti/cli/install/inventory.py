"""Finds what is in the cluster already: installations, their objects, and ElastiServices.

Everything of ours carries the labels of its installation. If the user may not list the whole
cluster, the namespaces that an installation is known to watch are listed instead. ElastiServices
are read as plain objects: also those that our types cannot decode.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from elasti.api.names import DEFAULT_TRIGGERS_ANNOTATION, ELASTISERVICES, FINALIZER
from elasti.api.parsing import parse_list
from elasti.cli.install.choices import (
    DEFAULT_TRIGGERS,
    OPTIONS,
    OPTIONS_ANNOTATION,
    InstallOptions,
    Program,
    account,
    installation,
)
from kubeloop.client.errors import Forbidden, NotFound
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from kubeloop.client import Client


_RBAC = "rbac.authorization.k8s.io/v1"
_DEPLOYMENTS = "apps/v1/deployments"
_ADMISSION = "admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_OPERATOR_LABELS = "app.kubernetes.io/part-of=elasti"
_KUBEELASTI = {"control-plane": "controller-manager"}


class InstalledKind(NamedTuple):
    """A kind that an installation consists of."""

    resource: str
    kind: str
    is_spread: bool = False
    """Whether it is in watched namespaces too, not only in the installation's own."""
    is_clusters: bool = False


# In the order of their removal: programs first, rights when nothing needs them.
KINDS = (
    InstalledKind(_DEPLOYMENTS, "Deployment"),
    InstalledKind("autoscaling/v2/horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    InstalledKind("policy/v1/poddisruptionbudgets", "PodDisruptionBudget"),
    InstalledKind("networking.k8s.io/v1/networkpolicies", "NetworkPolicy"),
    InstalledKind("v1/services", "Service"),
    InstalledKind("v1/secrets", "Secret"),
    InstalledKind(f"{_RBAC}/rolebindings", "RoleBinding", is_spread=True),
    InstalledKind(f"{_RBAC}/roles", "Role", is_spread=True),
    InstalledKind(f"{_RBAC}/clusterrolebindings", "ClusterRoleBinding", is_clusters=True),
    InstalledKind(f"{_RBAC}/clusterroles", "ClusterRole", is_clusters=True),
    InstalledKind("scheduling.k8s.io/v1/priorityclasses", "PriorityClass", is_clusters=True),
    InstalledKind(
        "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        is_clusters=True,
    ),
    InstalledKind(_ADMISSION, "ValidatingAdmissionPolicy", is_clusters=True),
    InstalledKind("v1/serviceaccounts", "ServiceAccount"),
)


class InstalledObject(NamedTuple):
    """One object of an installation."""

    kind: InstalledKind
    namespace: str
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind.kind} {place}{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class InstalledOperator:
    """An operator that is there, with its variables; `watches` is empty for the whole cluster.

    options: what its user chose, as the installation noted it. helm_release: of our chart. chosen_triggers:
    by default, also those that it has no rights for; None before 0.3.
    """

    namespace: str
    watches: tuple[str, ...]
    is_ours: bool
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options: InstallOptions = dataclasses.field(default_factory=dict)
    helm_release: str = ""
    chosen_triggers: str | None = None

    def overlaps(self, watches: tuple[str, ...]) -> bool:
        """Whether it and an operator that watches these namespaces meet somewhere."""
        return not watches or not self.watches or bool({*watches} & {*self.watches})


async def installed_operators(client: Client) -> list[InstalledOperator]:
    """Return every operator that can be seen, KubeElasti's too; none if the user may not list them."""
    deployments = client.resource(_DEPLOYMENTS)
    try:
        found = [item async for item in deployments.items(selector=_OPERATOR_LABELS)]
    except Forbidden:
        return []
    return [_read(item) for item in found if _is_operator(item)]


async def installed_operator(client: Client, namespace: str) -> InstalledOperator | None:
    """Return our operator of one namespace."""
    name = account(Program.OPERATOR)
    try:
        found = await client.resource(_DEPLOYMENTS).get(name, namespace=namespace)
    except NotFound:
        return None
    return _read(found)


async def replaces_kubeelasti(client: Client, namespace: str) -> bool:
    """Whether KubeElasti's own Deployments are in the namespace; any other is its tenants' to write."""
    deployments = client.resource(_DEPLOYMENTS)
    try:
        found = [item async for item in deployments.items(namespace=namespace)]
    except Forbidden:
        return False
    return any(_is_operator(item) and not _read(item).is_ours for item in found)


async def keeps_without_triggers(client: Client, previous: InstalledOperator | None) -> bool:
    """Whether ElastiServices that leave their triggers out stay without any, as they were.

    That is so over an installation without default triggers, and if there are ElastiServices of
    another.
    """
    if previous is not None:
        chosen = previous.chosen_triggers
        return DEFAULT_TRIGGERS not in previous.variables if chosen is None else not chosen
    if await installed_operators(client):
        return True
    found = await list_elastiservices(client, ())
    return found is None or bool(found)


async def objects_of(
    client: Client, namespace: str, watched: Iterable[str]
) -> AsyncIterator[InstalledObject]:
    """Iterate over the objects of an installation, in the order in which they should go."""
    selector = ",".join(f"{key}={value}" for key, value in installation(namespace).items())
    places = [namespace, *watched]
    for kind in KINDS:
        for item in await _listed(client, kind, selector, places):
            yield InstalledObject(kind, item.metadata.namespace, item.metadata.name)


async def _listed(
    client: Client, kind: InstalledKind, selector: str, places: list[str]
) -> list[PartialObjectMetadata]:
    resource = client.resource(kind.resource, PartialObjectMetadata)
    if not kind.is_spread and not kind.is_clusters:
        try:
            return [item async for item in resource.items(selector=selector, namespace=places[0])]
        except Forbidden:
            if kind.kind != "Secret":
                raise
            return []  # Who may not see Secrets has made none.
    try:
        return [item async for item in resource.items(selector=selector, namespace="")]
    except NotFound:
        return []  # An older server has no such kind.
    except Forbidden:
        # Who may not see the cluster's own roles has made none of them.
        known = () if kind.is_clusters else dict.fromkeys(places)
    return [
        item for place in known async for item in resource.items(selector=selector, namespace=place)
    ]


def _is_operator(deployment: JsonObject) -> bool:
    labels = deployment["metadata"].get("labels") or {}
    return _is_ours(labels) or bool(_KUBEELASTI.items() <= labels.items())


def _is_ours(labels: Mapping[str, str]) -> bool:
    """Whether `elasti install`, `elasti manifests` or our chart made the operator that has them."""
    return labels.get("app.kubernetes.io/component") == Program.OPERATOR.value


def _read(deployment: JsonObject) -> InstalledOperator:
    meta = deployment["metadata"]
    containers = deployment["spec"]["template"]["spec"]["containers"]
    variables = {
        item["name"]: item.get("value", "")
        for container in containers
        for item in container.get("env") or ()
    }
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    of_helm = labels.get("app.kubernetes.io/managed-by") == "Helm"
    release = notes.get("meta.helm.sh/release-name", "") if of_helm else ""
    watches = parse_list(variables.get("WATCH_NAMESPACES", ""))
    return InstalledOperator(
        meta["namespace"],
        watches,
        _is_ours(labels),
        variables,
        # With Helm it is an earlier note, which Helm left there.
        {} if release else read_options(notes.get(OPTIONS_ANNOTATION, "{}")),
        release,
        notes.get(DEFAULT_TRIGGERS_ANNOTATION),
    )


def read_options(noted: str) -> InstallOptions:
    """Read the options that an installation notes; none from a note that is not one of ours."""
    try:
        found = msgspec.json.decode(noted, type=InstallOptions)
        return {
            name: msgspec.convert(found[name], OPTIONS[name]) for name in OPTIONS if name in found
        }
    except msgspec.DecodeError:
        return {}  # not written by us: ignored


_MOST_NAMES = 5


async def list_elastiservices(client: Client, namespaces: Sequence[str]) -> list[JsonObject] | None:
    """Return the ElastiServices of namespaces, of all if none is named.

    None if the user may not list all of them; without a definition the result is empty.
    """
    resource = client.resource(ELASTISERVICES)
    try:
        return [
            item
            for namespace in namespaces or ("",)
            async for item in resource.items(namespace=namespace)
        ]
    except NotFound:
        return []
    except Forbidden:
        if namespaces:
            raise
        return None


def key_of(es: JsonObject) -> str:
    """Return how people name an ElastiService."""
    return f"{es['metadata']['namespace']}/{es['metadata']['name']}"


def is_held(es: JsonObject) -> bool:
    """Whether an operator of ours has to let go of it before it can be deleted."""
    return FINALIZER in (es["metadata"].get("finalizers") or ())


def name_some(found: Sequence[JsonObject]) -> str:
    """Name the first few of them."""
    names = ", ".join(key_of(es) for es in found[:_MOST_NAMES])
    more = len(found) - _MOST_NAMES
    return f"{names} and {more} more" if more > 0 else names
