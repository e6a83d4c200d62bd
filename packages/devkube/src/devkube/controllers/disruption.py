"""The disruption controller: how many pods a PodDisruptionBudget allows to evict.

What an eviction in flight has taken is not counted: the dev server evicts at once, so the pod is
already being deleted when the next one is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from devkube.controllers.context import ControllerSpec
from devkube.controllers.deployment_rolling import scaled
from devkube.controllers.workloads import status_patch, write_status
from kubeloop.controller.reconcile import Request
from kubeloop.controller.sources import map_func
from kubeloop.objects.conditions import Condition, with_condition
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.owners import controller_of
from kubeloop.objects.selectors import LabelSelector

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Sequence

    from devkube.controllers.context import SharedInformers
    from devkube.controllers.objects import SlimPod
    from kubeloop.objects.meta import OwnerReference


BUDGETS = GroupVersionResource("policy", "v1", "poddisruptionbudgets")


class DisruptionBudgetSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What must stay, or may go: a number or a percentage."""

    selector: JsonObject | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class DisruptionBudgetStatus(
    msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False
):
    """How many may go now."""

    observed_generation: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disruptions_allowed: int = 0
    conditions: tuple[Condition, ...] | None = None


class DisruptionBudget(msgspec.Struct, frozen=True, gc=False):
    """A PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


def judge(
    budget: DisruptionBudget, pods: Sequence[SlimPod], scale: int, now: dt.datetime
) -> DisruptionBudgetStatus:
    """Return the status; `scale` is how many pods their controllers are asked for."""
    expected, desired = _expected(budget.spec, len(pods), scale)
    healthy = sum(pod.is_ready and not pod.is_deleting for pod in pods)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    generation = budget.metadata.generation
    condition = Condition(
        type="DisruptionAllowed",
        status="True" if allowed else "False",
        reason="SufficientPods" if allowed else "InsufficientPods",
        observed_generation=generation,
    )
    return DisruptionBudgetStatus(
        observed_generation=generation,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
        disruptions_allowed=allowed,
        conditions=with_condition(budget.status.conditions, condition, now=now),
    )


def _expected(spec: DisruptionBudgetSpec, pods: int, scale: int) -> tuple[int, int]:
    """Return how many pods there should be, and how many of them healthy."""
    if spec.max_unavailable is not None:
        return scale, max(0, scale - scaled(spec.max_unavailable, scale, round_up=True))
    if isinstance(spec.min_available, str):
        return scale, scaled(spec.min_available, scale, round_up=True)
    return pods, spec.min_available or 0


NAME = "disruption"
_SHOWN = ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")


class BudgetReconciler:
    """Counts for one budget."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._cache = shared.informer(BUDGETS, DisruptionBudget)
        self._budgets = shared.resource(BUDGETS)

    async def __call__(self, request: Request) -> None:
        """Count and write."""
        budget = self._cache.lister.find(*request)
        if budget is None:
            return
        selector = LabelSelector.from_json(budget.spec.selector)
        pods = self._shared.pods.lister.namespace(request.namespace).list(selector)
        status = judge(budget, pods, self._scale(pods), self._shared.clock.now())
        if patch := status_patch(budget.status, status, always=_SHOWN):
            await write_status(self._budgets, budget, patch)

    def _scale(self, pods: Iterable[SlimPod]) -> int:
        """Return how many pods the controllers of these are asked for, each counted once."""
        scales: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod.metadata.owner_references or ())
            if owner is not None and owner.uid not in scales:
                scales.update(self._scale_of(owner, pod.metadata.namespace))
        return sum(scales.values())

    def _scale_of(self, owner: OwnerReference, namespace: str) -> dict[str, int]:
        if owner.kind == "StatefulSet":
            found = self._shared.stateful_sets.lister.find(namespace, owner.name)
            return {owner.uid: found.spec.replicas} if found is not None else {}
        replica_set = self._shared.replica_sets.lister.find(namespace, owner.name)
        if owner.kind != "ReplicaSet" or replica_set is None:
            return {}
        parent = controller_of(replica_set.metadata.owner_references or ())
        if parent is None or parent.kind != "Deployment":
            return {owner.uid: replica_set.spec.replicas}
        deployment = self._shared.deployments.lister.find(namespace, parent.name)
        return {parent.uid: deployment.spec.replicas} if deployment is not None else {}


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    part = ControllerSpec.of(NAME, BudgetReconciler(shared))
    budgets = shared.informer(BUDGETS, DisruptionBudget)
    part.controller.watch(budgets)

    def matching(pod: SlimPod) -> Iterable[Request]:
        namespace = pod.metadata.namespace
        for budget in budgets.lister.namespace(namespace).list():
            if LabelSelector.from_json(budget.spec.selector).matches(pod.metadata.labels):
                yield Request(namespace, budget.metadata.name)

    part.controller.watch(shared.pods, mapping=map_func(matching))
    return part
