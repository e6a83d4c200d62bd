"""The controllers of namespaces: what each has from the start, and how one ends.

A namespace that is being deleted is emptied, pods first; its conditions say what is left, and it goes when
nothing is. Every other one has a ServiceAccount `default` and the certificate of the API server.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
from collections.abc import Iterable
from typing import Any

import msgspec

from devkube.controllers.context import ControllerSpec, SharedInformers
from devkube.controllers.objects import PODS
from devkube.controllers.pod_control import is_namespace_ending
from kubeloop.client.discovery import ResourceInfo
from kubeloop.client.errors import ApiError, KubeError, MethodNotAllowed, NotFound
from kubeloop.client.resource import Resource
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.informer.shared_informer import SharedInformer
from kubeloop.objects.conditions import Condition, with_condition
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import STRUCT_ACCESS, JsonObject, ObjectMeta, PartialObjectMetadata
from kubeloop.objects.patches import MergePatch

NAMESPACES = GroupVersionResource("", "v1", "namespaces")
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
SERVICE_ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
KUBERNETES = "kubernetes"
# Each condition's type, and its reason and message if there is nothing to complain of.
_FINE = {
    "NamespaceDeletionContentFailure": (
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    "NamespaceContentRemaining": ("ContentRemoved", "All content successfully removed"),
    "NamespaceFinalizersRemaining": (
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
}
NAME = "namespace"
# A pod that goes enqueues its namespace; everything else is found by a requeue.
_AGAIN_SECONDS = 0.5
ROOT_CA = "kube-root-ca.crt"
_NOTE = "kubernetes.io/description"
_DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal"
    " endpoints such as the internal service IP or kubernetes.default.svc."
)


class NamespaceSpec(msgspec.Struct, frozen=True, gc=False):
    """Who has to agree to its end."""

    finalizers: tuple[str, ...] | None = None


class NamespaceStatus(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """Whether it is in use, and what holds up its end."""

    phase: str = ""
    conditions: tuple[Condition, ...] | None = None


class Namespace(msgspec.Struct, frozen=True, gc=False):
    """A namespace."""

    metadata: ObjectMeta
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()

    @property
    def is_ending(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None


class KeptObject(msgspec.Struct, frozen=True, gc=False):
    """An object that is kept in every namespace."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None


@dataclasses.dataclass(slots=True)
class RemainingContent:
    """The remaining objects, by kind and by finalizer, and the errors."""

    objects: dict[GroupVersionResource, int] = dataclasses.field(default_factory=dict)
    finalizers: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    errors: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the namespace may go."""
        return not self.objects and not self.errors

    def complaints(self) -> dict[str, tuple[str, str]]:
        """Return reason and message of the conditions that are true."""
        found: dict[str, tuple[str, str]] = {}
        if self.errors:
            text = ", ".join(sorted(self.errors))
            found["NamespaceDeletionContentFailure"] = (
                "ContentDeletionFailed",
                f"Failed to delete all resource types, {len(self.errors)} remaining: {text}",
            )
        if self.objects:
            parts = (
                f"{gvr.resource}.{gvr.group} has {number} resource instances"
                for gvr, number in self.objects.items()
            )
            text = f"Some resources are remaining: {', '.join(sorted(parts))}"
            found["NamespaceContentRemaining"] = ("SomeResourcesRemain", text)
        if self.finalizers:
            held = (f"{name} in {n} resource instances" for name, n in self.finalizers.items())
            found["NamespaceFinalizersRemaining"] = (
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: "
                + ", ".join(sorted(held)),
            )
        return found


def conditions_for(
    remains: RemainingContent, present: tuple[Condition, ...] | None, now: dt.datetime
) -> tuple[Condition, ...]:
    """Return the conditions of a namespace that is being deleted."""
    complaints = remains.complaints()
    conditions = tuple(present or ())
    for kind, fine in _FINE.items():
        reason, message = complaints.get(kind, fine)
        status = "True" if kind in complaints else "False"
        new = Condition(type=kind, status=status, reason=reason, message=message)  # type: ignore[arg-type]  # one of the two words
        conditions = with_condition(conditions, new, now=now)
    return conditions


def stages(resources: Iterable[ResourceInfo]) -> list[list[ResourceInfo]]:
    """Return what to delete, in order: pods first, so that nothing vanishes under a running one."""
    chosen: dict[tuple[str, str], ResourceInfo] = {}
    for info in resources:
        if info.namespaced and info.verbs >= {"list", "deletecollection"}:
            chosen.setdefault((info.gvr.group, info.gvr.resource), info)
    pods = [info for info in chosen.values() if info.gvr == PODS]
    return [pods, [info for info in chosen.values() if info.gvr != PODS]]


class NamespaceReconciler:
    """Brings one namespace to its end."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._cache = shared.informer(NAMESPACES, Namespace)
        self._namespaces = shared.resource(NAMESPACES)

    async def __call__(self, request: Request) -> Result | None:
        """Empty it, report what is left, and let it go when nothing is."""
        namespace = self._cache.lister.find("", request.name)
        if namespace is None or not namespace.is_ending:
            return None
        if KUBERNETES not in (namespace.spec.finalizers or ()):
            return None
        remains = await self._empty(request.name)
        await self._report(namespace, remains)
        if not remains.is_empty:
            return Result(requeue_after=_AGAIN_SECONDS)
        await self._finalize(namespace)
        return None

    async def _empty(self, namespace: str) -> RemainingContent:
        remains = RemainingContent()
        try:
            found = await self._shared.client.discovery.fetch()
        except KubeError as error:
            remains.errors.append(f"discovery failed: {error}")
            return remains
        remains.errors += [f"discovery of {group}: {why}" for group, why in found.failures.items()]
        for stage in stages(found.resources):
            for info in stage:
                await self._clear(info, namespace, remains)
            if remains.objects:
                break
        return remains

    async def _clear(self, info: ResourceInfo, namespace: str, remains: RemainingContent) -> None:
        resource = self._shared.client.resource(info.gvr, PartialObjectMetadata)
        try:
            if not [item async for item in resource.items(namespace=namespace)]:
                return
            await resource.delete_collection(namespace=namespace, propagation="Background")
            left = [item async for item in resource.items(namespace=namespace)]
        except (NotFound, MethodNotAllowed):
            return  # the kind went away meanwhile, or has no objects of its own
        except KubeError as error:
            remains.errors.append(f"{info.gvr}: {error}")
            return
        if left:
            remains.objects[info.gvr] = len(left)
        for item in left:
            remains.finalizers.update(item.metadata.finalizers or ())

    async def _report(self, namespace: Namespace, remains: RemainingContent) -> None:
        status = namespace.status
        conditions = conditions_for(remains, status.conditions, self._shared.clock.now())
        if conditions == (status.conditions or ()) and status.phase == "Terminating":
            return
        document = {
            "metadata": {"uid": namespace.metadata.uid},
            "status": {"phase": "Terminating", "conditions": msgspec.to_builtins(conditions)},
        }
        with contextlib.suppress(NotFound):
            await self._namespaces.subresource("status").patch(
                namespace.metadata.name, MergePatch(document)
            )

    async def _finalize(self, namespace: Namespace) -> None:
        """Take our name from the finalizers; the server removes the namespace when none is left."""
        with contextlib.suppress(NotFound):
            fresh = await self._namespaces.get(namespace.metadata.name)
            if fresh["metadata"]["uid"] == namespace.metadata.uid:
                finalizers = fresh["spec"].get("finalizers") or []
                fresh["spec"]["finalizers"] = [name for name in finalizers if name != KUBERNETES]
                await self._namespaces.subresource("finalize").replace(fresh)


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    part = ControllerSpec.of(NAME, NamespaceReconciler(shared), workers=2)
    part.controller.watch(shared.informer(NAMESPACES, Namespace))
    gone = by_kind(added=lambda _note: False, updated=lambda _note: False)
    part.controller.watch(shared.pods, mapping=map_func(_to_namespace), predicates=[gone])
    return part


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectEverywhere:
    """Keeps an object in every namespace: made if it is missing, repaired if its data was changed."""

    namespaces: SharedInformer[Namespace]
    present: SharedInformer[KeptObject]
    resource: Resource[JsonObject]
    document: JsonObject

    async def __call__(self, request: Request) -> None:
        """Make or repair it, unless the namespace is ending."""
        namespace = self.namespaces.lister.find("", request.name)
        if namespace is None or namespace.is_ending:
            return
        metadata, data = self.document["metadata"], self.document.get("data") or {}
        found = self.present.lister.find(request.name, metadata["name"])
        if found is not None and data.items() <= (found.data or {}).items():
            return
        document = {**self.document, "metadata": {**metadata, "namespace": request.name}}
        try:
            await self.resource.apply(document, field_manager=NAME, force=True)
        except ApiError as error:
            if not is_namespace_ending(error):
                raise


def _everywhere(
    shared: SharedInformers,
    name: str,
    present: SharedInformer[KeptObject],
    resource: Resource[JsonObject],
    document: JsonObject,
) -> ControllerSpec:
    namespaces = shared.informer(NAMESPACES, Namespace)
    part = ControllerSpec.of(name, ObjectEverywhere(namespaces, present, resource, document))
    part.controller.watch(namespaces)
    part.controller.watch(present, mapping=map_func(_to_namespace))
    return part


def make_accounts(shared: SharedInformers) -> ControllerSpec:
    """Return the controller of the accounts that pods have unless they name others."""
    accounts = shared.informer(SERVICE_ACCOUNTS, KeptObject)
    resource = shared.resource(SERVICE_ACCOUNTS)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    return _everywhere(shared, "serviceaccount", accounts, resource, account)


def make_certificates(shared: SharedInformers, certificate: str) -> ControllerSpec:
    """Return the controller that publishes the server's certificate authority."""
    maps = shared.factory.informer(
        CONFIG_MAPS, KeptObject, field_selector=f"metadata.name={ROOT_CA}"
    )
    metadata = {"name": ROOT_CA, "annotations": {_NOTE: _DESCRIPTION}}
    published = {"metadata": metadata, "data": {"ca.crt": certificate}}
    document = {"apiVersion": "v1", "kind": "ConfigMap", **published}
    return _everywhere(shared, "root-ca", maps, shared.resource(CONFIG_MAPS), document)


def _to_namespace(obj: Any) -> list[Request]:
    return [Request("", STRUCT_ACCESS.namespace(obj))]
