"""The ReplicaSet controller: claims pods, creates or deletes some, counts them.

Which pods are created or deleted, and the status, are pure functions.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
from typing import TYPE_CHECKING, TypeAlias

from devkube.controllers.context import BY_CONTROLLER, ControllerSpec
from devkube.controllers.objects import PODS, is_available, next_availability
from devkube.controllers.pod_control import PodControl, claim, orphans_of, slow_start
from devkube.controllers.workloads import (
    REPLICA_SET,
    REPLICA_SETS,
    ReplicaSetStatus,
    WorkloadCondition,
    status_patch,
    write_status,
)
from kubeloop.client.errors import KubeError, NotFound
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.objects.owners import controller_of, is_of_kind
from kubeloop.objects.selectors import LabelSelector
from kubeloop.objects.times import format_time, parse_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Sequence

    from devkube.controllers.context import SharedInformers
    from devkube.controllers.objects import SlimPod
    from devkube.controllers.workloads import ReplicaSet


# A single step never makes or deletes more than this.
BURST = 500
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}
_COST = "controller.kubernetes.io/pod-deletion-cost"

_Rank: TypeAlias = tuple[bool, int, bool, int, int, int, int, int, str]
FAILURE = "ReplicaFailure"
NAME = "replicaset"
_COMPONENT = "replicaset-controller"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetPlan:
    """How many pods to create, or which to delete; never both."""

    create: int = 0
    delete: tuple[SlimPod, ...] = ()


def plan_replica_set(
    wanted: int, active: Sequence[SlimPod], *, related: Iterable[SlimPod], now: dt.datetime
) -> ReplicaSetPlan:
    """Compare the wanted number with the active pods.

    `related` are all pods of the same Deployment: of two equal pods the one on the fuller node goes.
    """
    surplus = len(active) - wanted
    if surplus <= 0:
        return ReplicaSetPlan(create=min(-surplus, BURST))
    return ReplicaSetPlan(delete=tuple(victims(active, related, now)[: min(surplus, BURST)]))


def victims(pods: Sequence[SlimPod], related: Iterable[SlimPod], now: dt.datetime) -> list[SlimPod]:
    """Return the pods in the order in which they can be spared.

    First those without a node, then pending before running, not ready before ready, by deletion
    cost, from the fullest node, ready for a shorter time, restarted oftener, younger. Times are
    compared by magnitude only, so that no generation of pods is always the one to go.
    """
    crowd = collections.Counter(pod.spec.node_name for pod in related if pod.is_active)

    def rank(pod: SlimPod) -> _Rank:
        since = pod.ready_since()
        created = pod.metadata.creation_timestamp
        return (
            bool(pod.spec.node_name),
            _PHASES.get(pod.status.phase, 0),
            pod.is_ready,
            _deletion_cost(pod),
            -crowd[pod.spec.node_name],
            _magnitude(since, now),
            -pod.restarts,
            _magnitude(parse_time(created) if created else None, now),
            pod.metadata.uid,
        )

    return sorted(pods, key=rank)


def _magnitude(moment: dt.datetime | None, now: dt.datetime) -> int:
    if moment is None:
        return -2
    seconds = (now - moment).total_seconds()
    return int(math.log2(seconds)) if seconds >= 1 else -1


def _deletion_cost(pod: SlimPod) -> int:
    text = (pod.metadata.annotations or {}).get(_COST, "0")
    try:
        return int(text)
    except ValueError:
        return 0


def count_status(
    replica_set: ReplicaSet,
    active: Sequence[SlimPod],
    *,
    terminating: int,
    failure: str | None,
    now: dt.datetime,
) -> ReplicaSetStatus:
    """Count; `failure` is why pods could not be made or deleted."""
    spec = replica_set.spec
    wanted_labels = ((spec.template.get("metadata") or {}).get("labels") or {}).items()
    ready = [pod for pod in active if pod.is_ready]
    return ReplicaSetStatus(
        replicas=len(active),
        fully_labeled_replicas=sum(
            wanted_labels <= (pod.metadata.labels or {}).items() for pod in active
        ),
        ready_replicas=len(ready),
        available_replicas=sum(is_available(pod, spec.min_ready_seconds, now) for pod in ready),
        terminating_replicas=terminating,
        observed_generation=replica_set.metadata.generation,
        conditions=_conditions(replica_set, len(active), failure, now),
    )


def _conditions(
    replica_set: ReplicaSet, active: int, failure: str | None, now: dt.datetime
) -> tuple[WorkloadCondition, ...] | None:
    present = replica_set.status.conditions or ()
    others = tuple(condition for condition in present if condition.type != FAILURE)
    if failure is None:
        return others or None
    if len(others) < len(present):
        return present
    reason = "FailedCreate" if active < replica_set.spec.replicas else "FailedDelete"
    condition = WorkloadCondition(
        type=FAILURE,
        status="True",
        reason=reason,
        message=failure,
        last_transition_time=format_time(now),
    )
    return (*others, condition)


class ReplicaSetReconciler:
    """Brings one ReplicaSet's pods to the wanted number."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._sets = shared.resource(REPLICA_SETS)
        self.guard = ConsistencyGuard()
        self.guard.follow(PODS, shared.pods.store)
        self.guard.follow(REPLICA_SETS, shared.replica_sets.store)
        self._control = PodControl(shared, component=_COMPONENT, kind=REPLICA_SET, guard=self.guard)

    async def __call__(self, request: Request) -> Result | None:
        """Observe, claim, plan, write, count."""
        replica_set = self._shared.replica_sets.lister.find(*request)
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

    def _candidates(self, replica_set: ReplicaSet) -> list[SlimPod]:
        meta, store = replica_set.metadata, self._shared.pods.store
        controlled = store.by_index(BY_CONTROLLER, meta.uid)
        living = self._control.tombstones.living(meta.uid, controlled)
        return [*living, *store.by_index(BY_CONTROLLER, orphans_of(meta.namespace))]

    async def _claim(
        self, replica_set: ReplicaSet, selector: LabelSelector, pods: list[SlimPod]
    ) -> list[SlimPod]:
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

    async def _manage(self, replica_set: ReplicaSet, active: list[SlimPod]) -> KubeError | None:
        plan = plan_replica_set(
            replica_set.spec.replicas,
            active,
            related=self._related(replica_set),
            now=self._shared.clock.now(),
        )
        return await self._carry_out(replica_set, plan)

    async def _carry_out(self, replica_set: ReplicaSet, plan: ReplicaSetPlan) -> KubeError | None:
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

    def _related(self, replica_set: ReplicaSet) -> Iterable[SlimPod]:
        """Return the pods of all ReplicaSets of the same Deployment."""
        owner = controller_of(replica_set.metadata.owner_references or ())
        family = [replica_set.metadata.uid]
        if owner is not None:
            siblings = self._shared.replica_sets.store.by_index(BY_CONTROLLER, owner.uid)
            family = [sibling.metadata.uid for sibling in siblings]
        for uid in family:
            yield from self._shared.pods.store.by_index(BY_CONTROLLER, uid)

    async def _finish(
        self,
        replica_set: ReplicaSet,
        active: list[SlimPod],
        terminating: int,
        failure: KubeError | None,
    ) -> Result | None:
        now = self._shared.clock.now()
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


def _mine(
    replica_set: ReplicaSet, selector: LabelSelector, pods: Iterable[SlimPod]
) -> list[SlimPod]:
    uid = replica_set.metadata.uid
    return [
        pod for pod in pods if pod.controller_uid == uid and selector.matches(pod.metadata.labels)
    ]


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    reconciler = ReplicaSetReconciler(shared)
    part = ControllerSpec.of(NAME, reconciler, workers=4, guard=reconciler.guard)
    part.controller.watch(shared.replica_sets)
    part.controller.watch(shared.pods, mapping=map_func(lambda pod: _owners(shared, pod)))
    return part


def _owners(shared: SharedInformers, pod: SlimPod) -> Iterable[Request]:
    """Return the ReplicaSet of a pod; of one without a controller, all that might adopt it."""
    namespace = pod.metadata.namespace
    owner = controller_of(pod.metadata.owner_references or ())
    if owner is not None:
        ours = is_of_kind(owner, REPLICA_SET.group, REPLICA_SET.kind)
        return [Request(namespace, owner.name)] if ours else []
    if pod.is_deleting or not pod.metadata.labels:
        return []
    return [
        Request(namespace, found.metadata.name)
        for found in shared.replica_sets.lister.namespace(namespace).list()
        if LabelSelector.from_json(found.spec.selector).matches(pod.metadata.labels)
    ]
