"""The ReplicaSet controller: claims pods, makes or deletes some, counts them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from elasti.devcluster.controllers.claims import claim, orphans_of
from elasti.devcluster.controllers.hub import BY_CONTROLLER
from elasti.devcluster.controllers.parts import Part
from elasti.devcluster.controllers.pod_control import PodControl, slow_start
from elasti.devcluster.controllers.pods import PODS, next_availability
from elasti.devcluster.controllers.replicasets.plan import PodPlan, plan_pods
from elasti.devcluster.controllers.replicasets.status import count_status
from elasti.devcluster.controllers.statuses import status_patch, write_status
from elasti.devcluster.controllers.workloads import REPLICA_SET, REPLICA_SETS
from kubeloop.client.errors import KubeError, NotFound
from kubeloop.controller.consistency import ConsistencyGuard
from kubeloop.controller.mapping import map_func
from kubeloop.controller.reconcile import Request, Result
from kubeloop.objects.owners import controller_of, is_of_kind
from kubeloop.objects.selectors import LabelSelector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.controllers.hub import Hub
    from elasti.devcluster.controllers.pods import Pod
    from elasti.devcluster.controllers.workloads import ReplicaSet

NAME = "replicaset"
_COMPONENT = "replicaset-controller"


class ReplicaSetReconciler:
    """Brings one ReplicaSet's pods to the wanted number."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._sets = hub.resource(REPLICA_SETS)
        self.guard = ConsistencyGuard()
        self.guard.follow(PODS, hub.pods.store)
        self.guard.follow(REPLICA_SETS, hub.replica_sets.store)
        self._control = PodControl(hub, component=_COMPONENT, kind=REPLICA_SET, guard=self.guard)

    async def __call__(self, request: Request) -> Result | None:
        """Observe, claim, plan, write, count."""
        replica_set = self._hub.replica_sets.lister.find(*request)
        if replica_set is None:
            self.guard.clear(request)
            return None
        selector = LabelSelector.from_json(replica_set.spec.selector)
        pods = self._candidates(replica_set)
        active = await self._claim(replica_set, selector, pods)
        terminating = sum(
            pod.is_deleting and not pod.is_terminal for pod in _mine(replica_set, selector, pods)
        )
        failure = None
        if replica_set.metadata.deletion_timestamp is None:
            failure = await self._manage(replica_set, active)
        return await self._finish(replica_set, active, terminating, failure)

    def _candidates(self, replica_set: ReplicaSet) -> list[Pod]:
        meta, store = replica_set.metadata, self._hub.pods.store
        controlled = store.by_index(BY_CONTROLLER, meta.uid)
        living = self._control.graves.living(meta.uid, controlled)
        return [*living, *store.by_index(BY_CONTROLLER, orphans_of(meta.namespace))]

    async def _claim(
        self, replica_set: ReplicaSet, selector: LabelSelector, pods: list[Pod]
    ) -> list[Pod]:
        claims = claim(replica_set, selector, [pod for pod in pods if pod.is_active])
        for pod in claims.release:
            await self._control.release(replica_set, pod)
        if not claims.adopt or not await self._may_adopt(replica_set):
            return list(claims.owned)
        for pod in claims.adopt:
            await self._control.adopt(replica_set, pod)
        return [*claims.owned, *claims.adopt]

    async def _may_adopt(self, replica_set: ReplicaSet) -> bool:
        """Ask the server itself: a cache may not know yet that the ReplicaSet is going."""
        meta = replica_set.metadata
        try:
            fresh = await self._sets.get(meta.name, namespace=meta.namespace)
        except NotFound:
            return False
        metadata = fresh["metadata"]
        return metadata["uid"] == meta.uid and not metadata.get("deletionTimestamp")

    async def _manage(self, replica_set: ReplicaSet, active: list[Pod]) -> KubeError | None:
        plan = plan_pods(
            replica_set.spec.replicas,
            active,
            related=self._related(replica_set),
            now=self._hub.clock.now(),
        )
        return await self._carry_out(replica_set, plan)

    async def _carry_out(self, replica_set: ReplicaSet, plan: PodPlan) -> KubeError | None:
        if plan.create:
            template = replica_set.spec.template
            return await slow_start(
                plan.create, lambda: self._control.create_from(replica_set, template)
            )
        deletions = (self._control.delete(replica_set, pod) for pod in plan.delete)
        results = await asyncio.gather(*deletions, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, KubeError):
                raise result
        return next((error for error in results if isinstance(error, KubeError)), None)

    def _related(self, replica_set: ReplicaSet) -> Iterable[Pod]:
        """Return the pods of all ReplicaSets of the same Deployment."""
        owner = controller_of(replica_set.metadata.owner_references or ())
        family = [replica_set.metadata.uid]
        if owner is not None:
            siblings = self._hub.replica_sets.store.by_index(BY_CONTROLLER, owner.uid)
            family = [sibling.metadata.uid for sibling in siblings]
        for uid in family:
            yield from self._hub.pods.store.by_index(BY_CONTROLLER, uid)

    async def _finish(
        self,
        replica_set: ReplicaSet,
        active: list[Pod],
        terminating: int,
        failure: KubeError | None,
    ) -> Result | None:
        now = self._hub.clock.now()
        status = count_status(
            replica_set,
            active,
            terminating=terminating,
            failure=None if failure is None else str(failure),
            now=now,
        )
        if patch := status_patch(replica_set.status, status, always=("replicas",)):
            written = await write_status(self._sets, replica_set, patch)
            if written is not None:
                meta = replica_set.metadata
                version = written["metadata"]["resourceVersion"]
                request = Request(meta.namespace, meta.name)
                self.guard.wrote(request, meta.uid, REPLICA_SETS, version)
        if failure is not None:
            raise failure
        wait = next_availability(active, replica_set.spec.min_ready_seconds, now)
        return Result(requeue_after=wait) if wait else None


def _mine(replica_set: ReplicaSet, selector: LabelSelector, pods: Iterable[Pod]) -> list[Pod]:
    uid = replica_set.metadata.uid
    return [
        pod for pod in pods if pod.controller_uid == uid and selector.matches(pod.metadata.labels)
    ]


def make(hub: Hub) -> Part:
    """Return the controller."""
    reconciler = ReplicaSetReconciler(hub)
    part = Part.of(NAME, reconciler, workers=4, guard=reconciler.guard)
    part.controller.watch(hub.replica_sets)
    part.controller.watch(hub.pods, mapping=map_func(lambda pod: _owners(hub, pod)))
    return part


def _owners(hub: Hub, pod: Pod) -> Iterable[Request]:
    """Return the ReplicaSet of a pod; of one that nobody controls, all that might adopt it."""
    namespace = pod.metadata.namespace
    owner = controller_of(pod.metadata.owner_references or ())
    if owner is not None:
        ours = is_of_kind(owner, REPLICA_SET.group, REPLICA_SET.kind)
        return [Request(namespace, owner.name)] if ours else []
    if pod.is_deleting or not pod.metadata.labels:
        return []
    return [
        Request(namespace, found.metadata.name)
        for found in hub.replica_sets.lister.namespace(namespace).list()
        if LabelSelector.from_json(found.spec.selector).matches(pod.metadata.labels)
    ]
