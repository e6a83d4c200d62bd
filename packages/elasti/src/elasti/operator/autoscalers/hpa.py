"""The HorizontalPodAutoscaler.

Kubernetes stops an HPA whose target has zero replicas, so nothing has to be done, unless it may
scale to zero itself (`minReplicas: 0`): then it goes on, and may undo what we do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from elasti.api.conditions import Reason
from elasti.api.rbac import PolicyRule
from elasti.operator.autoscalers.base import Autoscaler, AutoscalerConflict
from elasti.operator.model.findings import Finding
from kubeloop.client.errors import NotFound

if TYPE_CHECKING:
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject

_FRESH = 300.0
_MAX_KNOWN = 10_000


class Hpa(Autoscaler):
    """Reads HPAs, each now and then: there is no watch on them, and people may change them."""

    type = "hpa"
    rules = (
        PolicyRule(
            "autoscaling", ("horizontalpodautoscalers",), ("get",), "warn of minReplicas: 0"
        ),
    )

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._known: dict[tuple[str, str], tuple[float, int | None]] = {}

    async def warnings(self, namespace: str, name: str) -> list[Finding]:
        """Warn of one that scales to zero by itself. Raises KubeError."""
        if await self.minimum(namespace, name) != 0:
            return []
        return [
            Finding(
                Reason.HPA_SCALES_TO_ZERO,
                f"HPA {name} has minReplicas: 0, so it stays active while the target sleeps and"
                " may wake it or put it to sleep by itself; set minReplicas to 1",
                refuses=False,
            )
        ]

    async def minimum(self, namespace: str, name: str) -> int | None:
        """Return an HPA's `minReplicas`, at most five minutes old; None if the HPA does not exist.

        Raises KubeError.
        """
        now = asyncio.get_running_loop().time()
        known = self._known.get((namespace, name))
        if known is None or now - known[0] >= _FRESH:
            known = now, await self._read(namespace, name)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[namespace, name] = known
        return known[1]

    async def _read(self, namespace: str, name: str) -> int | None:
        try:
            found = await self.objects.get(name, namespace=namespace)
        except NotFound:
            return None
        minimum = found["spec"].get("minReplicas")
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
