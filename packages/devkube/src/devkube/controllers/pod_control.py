"""The pods of an owner: claimed, created, deleted, adopted and released, with their events.

A pod that was deleted here stays in the cache for a moment. Its uid is remembered until the cache
shows the deletion, so that no pod is chosen in its stead: a uid that is deleted never comes back.
What was created is the consistency guard's matter.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from devkube.controllers import workloads
from devkube.controllers.objects import PODS
from kubeloop.client.errors import ApiError, Conflict, Forbidden, KubeError, NotFound
from kubeloop.client.request import Preconditions
from kubeloop.controller.reconcile import Request
from kubeloop.objects.meta import STRUCT_ACCESS, access_for
from kubeloop.objects.owners import controller_of, owner_reference
from kubeloop.objects.patches import StrategicMergePatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from devkube.controllers.context import SharedInformers
    from devkube.controllers.objects import SlimPod
    from kubeloop.client.resource import Resource
    from kubeloop.controller.writes import ConsistencyGuard
    from kubeloop.objects.gvk import GroupVersionKind
    from kubeloop.objects.meta import JsonObject, OwnerReference
    from kubeloop.objects.selectors import LabelSelector


T = TypeVar("T")


def is_namespace_ending(error: KubeError) -> bool:
    """Whether a creation failed only because its namespace is being deleted."""
    if not isinstance(error, Forbidden):
        return False
    return any(cause.reason == "NamespaceTerminating" for cause in error.causes)


def controller_reference(owner: Any, gvk: GroupVersionKind) -> OwnerReference:
    """Return the reference that marks `owner` as an object's controller."""
    return owner_reference(owner, gvk, controller=True, block_owner_deletion=True)


@dataclasses.dataclass(frozen=True, slots=True)
class PodEventMessages:
    """What events say; `{pod}`, `{owner}` and `{error}` are filled in."""

    created: str = "Created pod: {pod}"
    deleted: str = "Deleted pod: {pod}"
    not_created: str = "Error creating: {error}"
    not_deleted: str = "Error deleting: {error}"


@dataclasses.dataclass(slots=True)
class Tombstones:
    """Uids of pods that were deleted and that a cache may still show as alive."""

    by_owner: dict[str, set[str]] = dataclasses.field(default_factory=dict)

    def add(self, owner_uid: str, pod_uid: str) -> None:
        """Remember a deletion."""
        self.by_owner.setdefault(owner_uid, set()).add(pod_uid)

    def living(self, owner_uid: str, pods: Iterable[SlimPod]) -> list[SlimPod]:
        """Return the pods that were not deleted here; forgets what the cache has learnt."""
        cached = list(pods)
        buried = self.by_owner.get(owner_uid)
        if not buried:
            return cached
        buried &= {pod.metadata.uid for pod in cached if not pod.is_deleting}
        if not buried:
            del self.by_owner[owner_uid]
        return [pod for pod in cached if pod.metadata.uid not in buried]

    def holds(self, owner_uid: str, pod: SlimPod) -> bool:
        """Whether a pod was deleted here already."""
        return pod.metadata.uid in self.by_owner.get(owner_uid, ())


class PodControl:
    """Writes the pods of one kind of owner."""

    def __init__(
        self,
        shared: SharedInformers,
        *,
        component: str,
        kind: GroupVersionKind,
        guard: ConsistencyGuard,
        wording: PodEventMessages | None = None,
    ) -> None:
        self._pods: Resource[JsonObject] = shared.resource(PODS)
        self._events = shared.recorder(component)
        self._kind = kind
        self._guard = guard
        self._wording = wording or PodEventMessages()
        self.tombstones = Tombstones()

    async def create(self, owner: Any, pod: JsonObject) -> JsonObject | None:
        """Create a pod; None where its namespace is being deleted, which no retry mends."""
        access = access_for(type(owner))
        try:
            made = await self._pods.create(pod, namespace=access.namespace(owner))
        except ApiError as error:
            if is_namespace_ending(error):
                return None
            name = pod["metadata"].get("name", "")
            self._complain(owner, "FailedCreate", self._wording.not_created, name, error)
            raise
        self._note(owner, made)
        name = made["metadata"]["name"]
        self._report(owner, "SuccessfulCreate", self._wording.created, name)
        return made

    async def create_from(self, owner: Any, template: JsonObject) -> JsonObject | None:
        """Create a pod of a template, named after its owner by the server."""
        reference = controller_reference(owner, self._kind)
        prefix = f"{access_for(type(owner)).name(owner)}-"
        return await self.create(owner, workloads.pod_from(template, reference, prefix=prefix))

    async def delete(self, owner: Any, pod: SlimPod) -> None:
        """Delete a pod, if it is still the same one."""
        meta = pod.metadata
        owner_uid = access_for(type(owner)).uid(owner)
        try:
            await self._pods.delete(
                meta.name, namespace=meta.namespace, preconditions=Preconditions(uid=meta.uid)
            )
        except (NotFound, Conflict):
            self.tombstones.add(owner_uid, meta.uid)
            return
        except ApiError as error:
            self._complain(owner, "FailedDelete", self._wording.not_deleted, meta.name, error)
            raise
        self.tombstones.add(owner_uid, meta.uid)
        self._report(owner, "SuccessfulDelete", self._wording.deleted, meta.name)

    async def adopt(self, owner: Any, pod: SlimPod) -> None:
        """Become the controller of a pod that has none."""
        reference = controller_reference(owner, self._kind)
        await patch_owners(self._pods, pod, [_as_json(reference)])

    async def release(self, owner: Any, pod: SlimPod) -> None:
        """Let a pod go that does not match any more."""
        uid = access_for(type(owner)).uid(owner)
        await patch_owners(self._pods, pod, [{"$patch": "delete", "uid": uid}])

    def _report(self, owner: Any, reason: str, text: str, pod: str) -> None:
        name = access_for(type(owner)).name(owner)
        message = text.format(pod=pod, owner=name)
        self._events.normal(owner, reason, message, gvk=self._kind)

    def _complain(self, owner: Any, reason: str, text: str, pod: str, error: ApiError) -> None:
        name = access_for(type(owner)).name(owner)
        message = text.format(pod=pod, owner=name, error=error)
        self._events.warning(owner, reason, message, gvk=self._kind)

    def _note(self, owner: Any, pod: JsonObject) -> None:
        access = access_for(type(owner))
        request = Request(access.namespace(owner), access.name(owner))
        self._guard.wrote(request, access.uid(owner), PODS, pod["metadata"]["resourceVersion"])


async def patch_owners(
    resource: Resource[JsonObject], obj: Any, references: Sequence[JsonObject]
) -> None:
    """Change an object's owner references by uid; an object that is gone needs none."""
    patch = {"metadata": {"uid": STRUCT_ACCESS.uid(obj), "ownerReferences": list(references)}}
    name, namespace = STRUCT_ACCESS.name(obj), STRUCT_ACCESS.namespace(obj)
    try:
        await resource.patch(name, StrategicMergePatch(patch), namespace=namespace)
    except NotFound:
        return


def _as_json(reference: OwnerReference) -> JsonObject:
    return {
        "apiVersion": reference.api_version,
        "kind": reference.kind,
        "name": reference.name,
        "uid": reference.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


async def slow_start(count: int, make: Callable[[], Awaitable[object]]) -> KubeError | None:
    """Do something `count` times in batches of 1, 2, 4, ...; a batch with a failure is the last.

    Returns the first failure. So a mistake in a template costs one request and not a hundred.
    """
    size, left = 1, count
    while left > 0:
        size = min(size, left)
        results = await asyncio.gather(*(make() for _ in range(size)), return_exceptions=True)
        for result in results:
            if isinstance(result, KubeError):
                return result
            if isinstance(result, BaseException):
                raise result
        left -= size
        size *= 2
    return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipClaims(Generic[T]):
    """The outcome. What is to be adopted is not in `owned` yet."""

    owned: tuple[T, ...] = ()
    adopt: tuple[T, ...] = ()
    release: tuple[T, ...] = ()


def claim(owner: Any, selector: LabelSelector, candidates: Iterable[T]) -> OwnershipClaims[T]:
    """Sort the candidates by whether they are the owner's.

    An owner that is being deleted keeps what it has and neither adopts nor releases.
    """
    uid, deleting = STRUCT_ACCESS.uid(owner), STRUCT_ACCESS.is_deleting(owner)
    owned: list[T] = []
    adopt: list[T] = []
    release: list[T] = []
    for item in candidates:
        matches = selector.matches(STRUCT_ACCESS.labels(item))
        controller = controller_of(STRUCT_ACCESS.owners(item))
        if controller is not None:
            if controller.uid == uid and matches:
                owned.append(item)
            elif controller.uid == uid and not deleting:
                release.append(item)
        elif matches and not deleting and not STRUCT_ACCESS.is_deleting(item):
            adopt.append(item)
    return OwnershipClaims(owned=tuple(owned), adopt=tuple(adopt), release=tuple(release))


def controller_index(obj: Any) -> list[str]:
    """Index an object by its controller's uid; one that has none, by its namespace."""
    owner = controller_of(STRUCT_ACCESS.owners(obj))
    return [owner.uid] if owner is not None else [orphans_of(STRUCT_ACCESS.namespace(obj))]


def orphans_of(namespace: str) -> str:
    """Return the index value of the objects of a namespace that have no controller."""
    return f"orphans/{namespace}"
