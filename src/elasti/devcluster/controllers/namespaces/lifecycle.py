"""The namespace controller: empties namespaces that are being deleted, then lets them go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.controllers.namespaces.content import (
    Remains,
    conditions_for,
    stages,
)
from elasti.devcluster.controllers.namespaces.objects import (
    KUBERNETES,
    NAMESPACES,
    Namespace,
)
from elasti.devcluster.controllers.parts import Part
from kubeloop.client.deletion import Preconditions
from kubeloop.client.errors import Conflict, KubeError, MethodNotAllowed, NotFound
from kubeloop.controller.mapping import map_func
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request, Result
from kubeloop.objects.meta import PartialObjectMetadata
from kubeloop.objects.patches import MergePatch

if TYPE_CHECKING:
    from elasti.devcluster.controllers.hub import Hub
    from elasti.devcluster.controllers.pods import Pod
    from kubeloop.client.discovery_documents import ResourceInfo
    from kubeloop.client.resource import Resource

NAME = "namespace"
# Pods that go wake us; for everything else that takes its time we look again.
_AGAIN_SECONDS = 0.5


class NamespaceReconciler:
    """Brings one namespace to its end."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._cache = hub.informer(NAMESPACES, Namespace)
        self._namespaces = hub.resource(NAMESPACES)

    async def __call__(self, request: Request) -> Result | None:
        """Empty it, tell what is left, and let it go when nothing is."""
        namespace = self._cache.lister.find("", request.name)
        if namespace is None or not namespace.is_ending:
            return None
        if KUBERNETES not in (namespace.spec.finalizers or ()):
            return None
        remains = await self._empty(request.name)
        await self._tell(namespace, remains)
        if not remains.is_empty:
            return Result(requeue_after=_AGAIN_SECONDS)
        await self._finalize(namespace)
        return None

    async def _empty(self, namespace: str) -> Remains:
        remains = Remains()
        try:
            found = await self._hub.client.discovery.fetch()
        except KubeError as error:
            remains.discovery_error = str(error)
            return remains
        if found.failures:
            groups = ", ".join(f"{group}: {why}" for group, why in found.failures.items())
            remains.discovery_error = (
                f"Discovery failed for some groups, {len(found.failures)} failing: {groups}"
            )
        for stage in stages(found.resources):
            for info in stage:
                await self._clear(info, namespace, remains)
            if remains.objects:
                break
        return remains

    async def _clear(self, info: ResourceInfo, namespace: str, remains: Remains) -> None:
        resource = self._hub.client.resource(info.gvr, PartialObjectMetadata)
        try:
            if not [item async for item in resource.items(namespace=namespace)]:
                return
            await self._delete_all(resource, info, namespace)
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

    async def _delete_all(
        self, resource: Resource[PartialObjectMetadata], info: ResourceInfo, namespace: str
    ) -> None:
        if "deletecollection" in info.verbs:
            await resource.delete_collection(namespace=namespace, propagation="Background")
            return
        async for item in resource.items(namespace=namespace):
            try:
                await resource.delete(
                    item.metadata.name,
                    namespace=namespace,
                    preconditions=Preconditions(uid=item.metadata.uid),
                    propagation="Background",
                )
            except (NotFound, Conflict):
                continue

    async def _tell(self, namespace: Namespace, remains: Remains) -> None:
        status = namespace.status
        conditions = conditions_for(remains, status.conditions, self._hub.clock.now())
        if conditions == (status.conditions or ()) and status.phase == "Terminating":
            return
        document = {
            "metadata": {"uid": namespace.metadata.uid},
            "status": {"phase": "Terminating", "conditions": msgspec.to_builtins(conditions)},
        }
        try:
            await self._namespaces.subresource("status").patch(
                namespace.metadata.name, MergePatch(document)
            )
        except NotFound:
            return

    async def _finalize(self, namespace: Namespace) -> None:
        """Take our name from the finalizers; the server removes the namespace when none is left."""
        try:
            fresh = await self._namespaces.get(namespace.metadata.name)
            if fresh["metadata"]["uid"] != namespace.metadata.uid:
                return
            finalizers = fresh["spec"].get("finalizers") or []
            fresh["spec"]["finalizers"] = [name for name in finalizers if name != KUBERNETES]
            await self._namespaces.subresource("finalize").replace(fresh)
        except NotFound:
            return


def make(hub: Hub) -> Part:
    """Return the controller."""
    part = Part.of(NAME, NamespaceReconciler(hub), workers=2)
    part.controller.watch(hub.informer(NAMESPACES, Namespace))
    gone = by_kind(added=lambda _note: False, updated=lambda _note: False)
    part.controller.watch(hub.pods, mapping=map_func(_namespace_of), predicates=[gone])
    return part


def _namespace_of(pod: Pod) -> list[Request]:
    return [Request("", pod.metadata.namespace)]
