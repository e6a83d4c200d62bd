"""The HorizontalPodAutoscaler.

Kubernetes stops an HPA whose target has zero replicas, so nothing has to be done, unless it may
scale to zero itself (`minReplicas: 0`): then it goes on, and may undo what we do.
"""

from __future__ import annotations

from elasti.api.conditions import Reason
from elasti.api.rbac import PolicyRule
from elasti.operator.autoscalers.base import Autoscaler, AutoscalerConflict
from kubeloop.objects.meta import JsonObject


class Hpa(Autoscaler):
    """Reads HPAs."""

    type = "hpa"
    rules = (
        PolicyRule(
            "autoscaling", ("horizontalpodautoscalers",), ("get",), "warn of minReplicas: 0"
        ),
    )

    to_zero = (
        Reason.HPA_SCALES_TO_ZERO,
        "HPA {} has minReplicas: 0, so it stays active while the target sleeps and may wake it or put it to sleep by itself; set minReplicas to 1",
    )

    @classmethod
    def least(cls, spec: JsonObject) -> int:
        """Return `minReplicas`; 1 if unset, as in Kubernetes."""
        minimum = spec.get("minReplicas")
        return 1 if minimum is None else int(minimum)

    @classmethod
    def conflict(cls, obj: JsonObject, *, named: bool) -> AutoscalerConflict | None:
        """Return what an HPA that scales to zero by itself would do, named or not."""
        if obj["spec"].get("minReplicas", 1) != 0:
            return None
        return AutoscalerConflict(
            f"HPA {obj['metadata']['name']} has minReplicas: 0, so it may wake the target or put it to"
            " sleep by itself",
            "Set its minReplicas to 1.",
            surely=False,
        )


AUTOSCALER = Hpa
