"""The disruption controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.controllers.budgets.plan import BUDGETS, Budget, judge
from elasti.devcluster.controllers.parts import Part
from elasti.devcluster.controllers.statuses import status_patch, write_status
from kubeloop.controller.mapping import map_func
from kubeloop.controller.reconcile import Request
from kubeloop.objects.owners import controller_of
from kubeloop.objects.selectors import LabelSelector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.controllers.hub import Hub
    from elasti.devcluster.controllers.pods import Pod
    from kubeloop.objects.meta import OwnerReference

NAME = "disruption"
_SHOWN = ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")


class BudgetReconciler:
    """Counts for one budget."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._cache = hub.informer(BUDGETS, Budget)
        self._budgets = hub.resource(BUDGETS)

    async def __call__(self, request: Request) -> None:
        """Count and write."""
        budget = self._cache.lister.find(*request)
        if budget is None:
            return
        selector = LabelSelector.from_json(budget.spec.selector)
        pods = self._hub.pods.lister.namespace(request.namespace).list(selector)
        status = judge(budget, pods, self._scale(pods), self._hub.clock.now())
        if patch := status_patch(budget.status, status, always=_SHOWN):
            await write_status(self._budgets, budget, patch)

    def _scale(self, pods: Iterable[Pod]) -> int:
        """Return how many pods the controllers of these are asked for, each counted once."""
        scales: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod.metadata.owner_references or ())
            if owner is not None and owner.uid not in scales:
                scales.update(self._scale_of(owner, pod.metadata.namespace))
        return sum(scales.values())

    def _scale_of(self, owner: OwnerReference, namespace: str) -> dict[str, int]:
        if owner.kind == "StatefulSet":
            found = self._hub.stateful_sets.lister.find(namespace, owner.name)
            return {owner.uid: found.spec.replicas} if found is not None else {}
        replica_set = self._hub.replica_sets.lister.find(namespace, owner.name)
        if owner.kind != "ReplicaSet" or replica_set is None:
            return {}
        parent = controller_of(replica_set.metadata.owner_references or ())
        if parent is None or parent.kind != "Deployment":
            return {owner.uid: replica_set.spec.replicas}
        deployment = self._hub.deployments.lister.find(namespace, parent.name)
        return {parent.uid: deployment.spec.replicas} if deployment is not None else {}


def make(hub: Hub) -> Part:
    """Return the controller."""
    part = Part.of(NAME, BudgetReconciler(hub))
    budgets = hub.informer(BUDGETS, Budget)
    part.controller.watch(budgets)

    def matching(pod: Pod) -> Iterable[Request]:
        namespace = pod.metadata.namespace
        for budget in budgets.lister.namespace(namespace).list():
            if LabelSelector.from_json(budget.spec.selector).matches(pod.metadata.labels):
                yield Request(namespace, budget.metadata.name)

    part.controller.watch(hub.pods, mapping=map_func(matching))
    return part
