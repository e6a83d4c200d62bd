"""The pods of an owner: claimed, created, deleted, adopted and released, with their events.

A pod that was deleted here stays in the cache for a moment. Its uid is remembered until the cache
shows the deletion, so that no pod is chosen in its stead: a uid that is deleted never comes back.
What was created is the consistency guard's matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from devkube.controllers import objects
from devkube.controllers.objects import PODS, SlimPod
from kubeloop.client.errors import ApiError, Conflict, Forbidden, KubeError, NotFound
from kubeloop.client.request import Preconditions, Propagation
from kubeloop.controller.reconcile import Request
from kubeloop.objects.meta import STRUCT_ACCESS, JsonObject, ObjectMeta, OwnerReference
from kubeloop.objects.owners import controller_of, is_of_kind, owner_reference
from kubeloop.objects.patches import MergePatch, StrategicMergePatch
from kubeloop.objects.selectors import LabelSelector

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from devkube.controllers.context import SharedInformers
    from kubeloop.client.resource import Resource
    from kubeloop.client.subresource import Subresource
    from kubeloop.controller.writes import ConsistencyGuard
    from kubeloop.informer.shared_informer import SharedInformer
    from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource


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
    """Event messages; `{pod}`, `{owner}` and `{error}` are filled in."""

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
        self.pods: Resource[JsonObject] = shared.resource(PODS)
        self._events = shared.recorder(component)
        self._kind = kind
        self._guard = guard
        self._wording = wording or PodEventMessages()
        self.tombstones = Tombstones()

    async def create(self, owner: Any, pod: JsonObject) -> JsonObject | None:
        """Create a pod; None if its namespace is being deleted, which no retry mends."""
        try:
            made = await self.pods.create(pod, namespace=owner.metadata.namespace)
        except ApiError as error:
            if is_namespace_ending(error):
                return None
            name = pod["metadata"].get("name", "")
            self._complain(owner, "FailedCreate", self._wording.not_created, name, error)
            raise
        note_write(self._guard, owner, PODS, made)
        name = made["metadata"]["name"]
        self._report(owner, "SuccessfulCreate", self._wording.created, name)
        return made

    async def create_from(self, owner: Any, template: JsonObject) -> JsonObject | None:
        """Create a pod of a template, named after its owner by the server."""
        reference = controller_reference(owner, self._kind)
        prefix = f"{owner.metadata.name}-"
        return await self.create(owner, objects.pod_from(template, reference, prefix=prefix))

    async def delete(self, owner: Any, pod: SlimPod) -> None:
        """Delete a pod, if it is still the same one."""
        meta = pod.metadata
        owner_uid = owner.metadata.uid
        try:
            await self.pods.delete(
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

    def _report(self, owner: Any, reason: str, text: str, pod: str) -> None:
        message = text.format(pod=pod, owner=owner.metadata.name)
        self._events.normal(owner, reason, message, gvk=self._kind)

    def _complain(self, owner: Any, reason: str, text: str, pod: str, error: ApiError) -> None:
        message = text.format(pod=pod, owner=owner.metadata.name, error=error)
        self._events.warning(owner, reason, message, gvk=self._kind)


def note_write(
    guard: ConsistencyGuard, owner: Any, resource: GroupVersionResource, written: JsonObject
) -> None:
    """Let an owner's next reconcile wait until the cache has what was just written."""
    meta = owner.metadata
    version = written["metadata"]["resourceVersion"]
    guard.wrote(Request(meta.namespace, meta.name), meta.uid, resource, version)


async def patch_owned(
    guard: ConsistencyGuard,
    owner: Any,
    resource: Resource[JsonObject],
    meta: ObjectMeta,
    document: JsonObject,
) -> None:
    """Change an object of an owner, and let the owner's next reconcile wait for it."""
    written = await resource.patch(meta.name, MergePatch(document), namespace=meta.namespace)
    note_write(guard, owner, resource.gvr, written)


async def delete_same(
    resource: Resource[JsonObject], meta: ObjectMeta, propagation: Propagation | None = None
) -> None:
    """Delete an object if it is still the same one."""
    same = Preconditions(uid=meta.uid)
    with contextlib.suppress(NotFound):
        await resource.delete(
            meta.name, namespace=meta.namespace, preconditions=same, propagation=propagation
        )


async def report_status(
    guard: ConsistencyGuard,
    resource: Resource[JsonObject],
    owner: Any,
    status: msgspec.Struct,
    always: tuple[str, ...] = (),
) -> None:
    """Write what is new in a status, if the object is still the same."""
    meta, patch = owner.metadata, objects.status_patch(owner.status, status, always=always)
    if patch:
        document = MergePatch({"metadata": {"uid": meta.uid}, "status": patch})
        part = resource.subresource("status")
        with contextlib.suppress(NotFound):
            written = await part.patch(meta.name, document, namespace=meta.namespace)
            note_write(guard, owner, resource.gvr, written)


def owners_of(
    item: Any,
    kind: GroupVersionKind,
    owners: SharedInformer[Any],
    takes: Callable[[Any], bool] = lambda _owner: True,
) -> list[Request]:
    """Return the owner of that kind which controls an object; of one without, all that might adopt it."""
    meta = item.metadata
    controller = controller_of(meta.owner_references or ())
    if controller is not None:
        ours = is_of_kind(controller, kind.group, kind.kind)
        return [Request(meta.namespace, controller.name)] if ours else []
    if meta.deletion_timestamp is not None or not meta.labels:
        return []
    return [
        Request(meta.namespace, owner.metadata.name)
        for owner in owners.lister.namespace(meta.namespace).list()
        if LabelSelector.from_json(owner.spec.selector).matches(meta.labels) and takes(owner)
    ]


async def claim_owned(
    items: Resource[JsonObject],
    owners: Resource[JsonObject],
    owner: Any,
    kind: GroupVersionKind,
    candidates: Iterable[T],
) -> list[T]:
    """Adopt and release objects by the owner's selector; returns those that it has then."""
    claims = claim(owner, LabelSelector.from_json(owner.spec.selector), candidates)
    for item in claims.release:
        await _patch_owners(items, item, {"$patch": "delete", "uid": owner.metadata.uid})
    if not claims.adopt or not await _still_exists(owners, owner):
        return list(claims.owned)
    reference = msgspec.to_builtins(controller_reference(owner, kind))
    for item in claims.adopt:
        await _patch_owners(items, item, reference)
    return [*claims.owned, *claims.adopt]


async def _still_exists(owners: Resource[JsonObject], owner: Any) -> bool:
    """Ask the server itself: a cache may not know yet that the owner is going."""
    try:
        fresh = await owners.get(owner.metadata.name, namespace=owner.metadata.namespace)
    except NotFound:
        return False
    metadata = fresh["metadata"]
    return metadata["uid"] == owner.metadata.uid and not metadata.get("deletionTimestamp")


async def _patch_owners(resource: Resource[JsonObject], obj: Any, reference: JsonObject) -> None:
    """Change an object's owner references by uid."""
    await patch_living(resource, obj, {"metadata": {"ownerReferences": [reference]}})


async def patch_living(
    resource: Resource[JsonObject] | Subresource[JsonObject], obj: Any, patch: JsonObject
) -> None:
    """Change an object if it is still the same one; one that is gone needs no change."""
    meta = obj.metadata
    document = {**patch, "metadata": {**patch.get("metadata", {}), "uid": meta.uid}}
    with contextlib.suppress(NotFound):
        await resource.patch(
            meta.name, StrategicMergePatch(document), namespace=meta.namespace or None
        )


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
    """Index an object by its controller's uid; without a controller, by its namespace."""
    owner = controller_of(STRUCT_ACCESS.owners(obj))
    return [owner.uid] if owner is not None else [orphans_of(STRUCT_ACCESS.namespace(obj))]


def orphans_of(namespace: str) -> str:
    """Return the index value of the objects of a namespace that have no controller."""
    return f"orphans/{namespace}"
