"""Reads what a doze depends on: the target's pods, autoscalers on it, LimitRanges, the memory in use.

Nothing of it is watched. A target that is awake is read at most once a minute, one that dozes at each
reconcile.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from elasti.api.types import ElastiService
from elasti.operator.doze import refusals
from elasti.operator.doze.requests import RESOURCES
from elasti.operator.model.doze import DozePod, DozeView
from elasti.operator.model.facts import ClusterSnapshot
from elasti.operator.model.findings import Finding
from elasti.operator.model.state import ServiceState
from elasti.operator.model.targets import target_of
from elasti.operator.scale_handler import NotScalable, ScaleHandler
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.directory import Directory
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, KubeError, NoMatch, NotFound
from kubeloop.objects.core import PODS
from kubeloop.objects.quantities import Quantity

FRESH = 60.0
_HPAS = "autoscaling/v2/horizontalpodautoscalers"
_VPAS = "autoscaling.k8s.io/v1/verticalpodautoscalers"


@dataclasses.dataclass(eq=False, kw_only=True)
class DozeReader:
    """Reads. Raises KubeError."""

    client: Client
    scales: ScaleHandler
    directory: Directory
    settings: OperatorSettings

    async def read(self, found: ClusterSnapshot, state: ServiceState) -> DozeView | None:
        """Return what a doze depends on; None for a target that neither dozes nor may now."""
        es, record = found.es, state.doze.status
        wanted = es.spec.sleep.mode != "Zero"
        if record is None and (not wanted or found.at_zero or found.target is None):
            return None
        if (kept := state.doze.kept(found.now, FRESH)) is not None:
            return kept
        if record is None and not self.settings.doze:
            return DozeView(findings=(refusals.NOT_ENABLED,))
        selector = await self._selector(es)
        view = DozeView(
            selector=record.selector if record is not None else selector,
            # A scale that cannot be read now says nothing.
            moved=record is not None and selector not in ("", record.selector),
        )
        if not view.selector:
            return None
        pods = self.client.resource(PODS, DozePod).items(
            selector=view.selector, namespace=found.namespace
        )
        view = view._replace(pods=tuple([pod async for pod in pods if pod.is_live]))
        if wanted and not self.settings.doze:
            view = view._replace(findings=(refusals.NOT_ENABLED,))
        elif wanted:
            try:
                view = await self._with_limits(view, es)
                view = view._replace(findings=await self._refusals(found, view))
            except Forbidden as error:
                view = view._replace(findings=(refusals.forbidden(error),))
        # Those that come, or start, are to be looked at.
        if view.pods and all(pod.is_ready for pod in view.pods):
            state.doze.keep(view, found.now)
        return view

    async def _selector(self, es: ElastiService) -> str:
        try:
            return await self.scales.selector(target_of(es))
        except (NotFound, NoMatch, NotScalable, Forbidden):
            return ""  # then there is no target, which its conditions say

    async def _with_limits(self, view: DozeView, es: ElastiService) -> DozeView:
        namespace = es.metadata.namespace
        minimum, ratio = dict[str, Quantity](), dict[str, Quantity]()
        for limits in await self._list("v1/limitranges", namespace):
            for item in limits["spec"].get("limits") or ():
                for resource in RESOURCES if item.get("type") == "Container" else ():
                    if (least := (item.get("min") or {}).get(resource)) is not None:
                        known = minimum.get(resource, Quantity(0))
                        minimum[resource] = max(known, Quantity.parse(least))
                    if (most := (item.get("maxLimitRequestRatio") or {}).get(resource)) is not None:
                        lowest = Quantity.parse(most)
                        ratio[resource] = min(ratio.get(resource, lowest), lowest)
        usage: dict[tuple[str, str], int] = {}
        if es.spec.sleep.doze.memory == "Usage":
            for pod in await self._list("metrics.k8s.io/v1beta1/pods", namespace):
                for container in pod.get("containers") or ():
                    used = Quantity.parse((container.get("usage") or {}).get("memory", "0"))
                    usage[pod["metadata"]["name"], container["name"]] = int(used)
        return view._replace(minimum=minimum, ratio=ratio, usage=usage)

    async def _refusals(self, found: ClusterSnapshot, view: DozeView) -> tuple[Finding, ...]:
        es, namespace = found.es, found.namespace
        info = await self.client.mapper.by_kind("v1", "Pod")
        if "resize" not in info.subresources:
            return (refusals.UNSUPPORTED,)
        others = [one.name for one in self.directory.sharing(found.request) if one != found.request]
        hpas, vpas = await self._list(_HPAS, namespace), await self._list(_VPAS, namespace)
        listed = [
            *refusals.spec_refusals(es.spec, others),
            *(refusals.hpa_refusal(hpa, es) for hpa in hpas),
            *(refusals.vpa_refusal(vpa, es) for vpa in vpas),
            *refusals.pod_refusals(es, view),
        ]
        # One of a kind is enough.
        by_reason = {one.reason: one for one in reversed(listed) if one is not None}
        return tuple(by_reason.values())[::-1]

    async def _list(self, resource: str, namespace: str) -> list[Any]:
        """List objects of a kind that a cluster need not have. Raises KubeError."""
        try:
            items = self.client.resource(resource).items(namespace=namespace)
            return [item async for item in items]
        except (NotFound, NoMatch):
            return []
        except KubeError as error:
            if resource.startswith("metrics.") and not isinstance(error, Forbidden):
                return []  # memory is kept then
            raise
