"""How many pods a budget allows to evict. Pure.

What an eviction in flight has taken is not counted: the dev server evicts at once, so the pod is
already being deleted when the next one is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.controllers.deployments.bounds import scaled
from kubeloop.objects.conditions import Condition, with_condition
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject, ObjectMeta

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from elasti.devcluster.controllers.pods import Pod

BUDGETS = GroupVersionResource("policy", "v1", "poddisruptionbudgets")


class BudgetSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What must stay, or may go: a number or a percentage."""

    selector: JsonObject | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class BudgetStatus(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How many may go now."""

    observed_generation: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disruptions_allowed: int = 0
    conditions: tuple[Condition, ...] | None = None


class Budget(msgspec.Struct, frozen=True, gc=False):
    """A PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


def judge(budget: Budget, pods: Sequence[Pod], scale: int, now: dt.datetime) -> BudgetStatus:
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
    return BudgetStatus(
        observed_generation=generation,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
        disruptions_allowed=allowed,
        conditions=with_condition(budget.status.conditions, condition, now=now),
    )


def _expected(spec: BudgetSpec, pods: int, scale: int) -> tuple[int, int]:
    """Return how many pods there should be, and how many of them healthy."""
    if spec.max_unavailable is not None:
        return scale, max(0, scale - scaled(spec.max_unavailable, scale, round_up=True))
    if isinstance(spec.min_available, str):
        return scale, scaled(spec.min_available, scale, round_up=True)
    return pods, spec.min_available or 0
