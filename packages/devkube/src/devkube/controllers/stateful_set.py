"""The StatefulSet controller."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from devkube.controllers.context import BY_CONTROLLER, ControllerSpec, SharedInformers
from devkube.controllers.objects import (
    PODS,
    REVISIONS,
    STATEFUL_SET,
    STATEFUL_SETS,
    ControllerRevision,
    SlimPod,
    StatefulSet,
    next_availability,
)
from devkube.controllers.pod_control import (
    PodControl,
    PodEventMessages,
    claim_owned,
    is_namespace_ending,
    note_write,
    orphans_of,
    owners_of,
    patch_owned,
    report_status,
)
from devkube.controllers.stateful_set_plan import (
    ObservedStatefulSet,
    RevisionHistory,
    StatefulSetPlan,
    count_status,
    ordinal_of,
    plan_stateful_set,
    pod_of,
    read_history,
    surplus,
)
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.objects.meta import JsonObject

NAME = "statefulset"
_COMPONENT = "statefulset-controller"
_ALWAYS = ("replicas", "availableReplicas")
_WORDING = PodEventMessages(
    created="create Pod {pod} in StatefulSet {owner} successful",
    deleted="delete Pod {pod} in StatefulSet {owner} successful",
    not_created="create Pod {pod} in StatefulSet {owner} failed error: {error}",
    not_deleted="delete Pod {pod} in StatefulSet {owner} failed error: {error}",
)


class StatefulSetReconciler:
    """Takes one StatefulSet one step further."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._sets = shared.resource(STATEFUL_SETS)
        self._revisions = shared.resource(REVISIONS)
        self._events = shared.recorder(_COMPONENT)
        self.guard = ConsistencyGuard()
        self.guard.follow(PODS, shared.pods.store)
        self.guard.follow(STATEFUL_SETS, shared.stateful_sets.store)
        self.guard.follow(REVISIONS, shared.revisions.store)
        self._control = PodControl(
            shared, component=_COMPONENT, kind=STATEFUL_SET, guard=self.guard, wording=_WORDING
        )

    async def __call__(self, request: Request) -> Result | None:
        """Observe, plan, write."""
        stateful_set = self._shared.stateful_sets.lister.find(*request)
        if stateful_set is None:
            self.guard.clear(request)
            return None
        pods = await self._claim(stateful_set)
        revisions = self._shared.revisions.store.by_index(BY_CONTROLLER, stateful_set.metadata.uid)
        history = read_history(stateful_set, revisions)
        if stateful_set.metadata.deletion_timestamp is None and not await self._remember(
            stateful_set, history
        ):
            return None
        now = self._shared.clock.now()
        seen = ObservedStatefulSet(stateful_set=stateful_set, pods=pods, history=history, now=now)
        await self._carry_out(stateful_set, plan_stateful_set(seen))
        await report_status(self.guard, self._sets, stateful_set, count_status(seen), _ALWAYS)
        await self._forget(surplus(stateful_set, revisions, pods, history))
        wait = next_availability(pods, stateful_set.spec.min_ready_seconds, now)
        return Result(requeue_after=wait) if wait else None

    # Observing

    async def _claim(self, stateful_set: StatefulSet) -> list[SlimPod]:
        meta, store = stateful_set.metadata, self._shared.pods.store
        controlled = store.by_index(BY_CONTROLLER, meta.uid)
        orphans = store.by_index(BY_CONTROLLER, orphans_of(meta.namespace))
        self._control.tombstones.living(meta.uid, controlled)
        named = (pod for pod in orphans if ordinal_of(stateful_set, pod) >= 0)
        return await claim_owned(
            self._control.pods, self._sets, stateful_set, STATEFUL_SET, [*controlled, *named]
        )

    # Writing

    async def _remember(self, stateful_set: StatefulSet, history: RevisionHistory) -> bool:
        """Write the present revision; False if the namespace is going."""
        if history.create is not None:
            return await self._create_revision(stateful_set, history.create)
        if history.renumber is not None:
            revision, number = history.renumber
            meta = revision.metadata
            document = {"metadata": {"resourceVersion": meta.resource_version}, "revision": number}
            await patch_owned(self.guard, stateful_set, self._revisions, meta, document)
        return True

    async def _create_revision(self, stateful_set: StatefulSet, body: JsonObject) -> bool:
        try:
            made = await self._revisions.create(body)
        except ApiError as error:
            if is_namespace_ending(error):
                return False
            raise
        note_write(self.guard, stateful_set, REVISIONS, made)
        if stateful_set.spec.volume_claim_templates:
            message = "volumeClaimTemplates give empty directories: this cluster has no storage"
            self._events.warning(stateful_set, "NoStorage", message, gvk=STATEFUL_SET)
        return True

    async def _carry_out(self, stateful_set: StatefulSet, plan: StatefulSetPlan) -> None:
        for number, revision in plan.create:
            pod = pod_of(stateful_set, number, template=revision.template, revision=revision.name)
            await self._control.create(stateful_set, pod)
        uid, tombstones = stateful_set.metadata.uid, self._control.tombstones
        for victim in plan.delete:
            # One that the cache still shows keeps its name, so its place is not free yet.
            if not tombstones.holds(uid, victim):
                await self._control.delete(stateful_set, victim)

    async def _forget(self, revisions: Iterable[ControllerRevision]) -> None:
        for revision in revisions:
            meta = revision.metadata
            with contextlib.suppress(NotFound):
                await self._revisions.delete(meta.name, namespace=meta.namespace)


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    reconciler = StatefulSetReconciler(shared)
    part = ControllerSpec.of(NAME, reconciler, workers=2, guard=reconciler.guard)
    part.controller.watch(shared.stateful_sets)
    part.controller.watch(
        shared.pods,
        mapping=map_func(
            lambda pod: owners_of(
                pod, STATEFUL_SET, shared.stateful_sets, lambda owner: ordinal_of(owner, pod) >= 0
            )
        ),
    )
    return part
