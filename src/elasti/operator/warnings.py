"""What lets a target sleep but may surprise.

Other Services on the same pods, no readiness probe, an HPA that scales to zero by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.api.names import PRIVATE_LABEL
from elasti.operator.conditions import Finding
from elasti.scaling.autoscalers import Hpas
from kubeloop.client.errors import KubeError
from kubeloop.controller.reconcile import Request

if TYPE_CHECKING:
    from elasti.operator.informer_manager import Scope
    from elasti.operator.observation import Facts
    from elasti.operator.pod_labels import PodLabels
    from elasti.operator.projections import Service
    from kubeloop.client.client import Client

BY_SELECTOR = "selector"


def index_by_selector(service: Service) -> list[str]:
    """File a Service under one pair of its selector, by which its pods' labels find it."""
    if (service.metadata.labels or {}).get(PRIVATE_LABEL) or not service.spec.selector:
        return []
    key, value = min(service.spec.selector.items())
    return [f"{service.metadata.namespace}/{key}={value}"]


class Warnings:
    """Looks for surprises."""

    def __init__(self, client: Client, services: Scope[Service], labels: PodLabels) -> None:
        self._services = services
        self._pod_labels = labels
        self._hpas = Hpas(client)

    async def about(self, facts: Facts) -> list[Finding]:
        """Return the warnings for one ElastiService."""
        found = []
        if others := self._others(facts):
            found.append(
                Finding(
                    "SharedPods",
                    f"other Services lead to the same pods ({', '.join(others)}): their traffic does"
                    " not wake the target; give each an ElastiService of its own",
                    refuses=False,
                )
            )
        if facts.target is not None and facts.target.probed is False:
            found.append(
                Finding(
                    "NoReadinessProbe",
                    f"the pods of {facts.es.spec.scale_target_ref.name} have no readiness probe, so"
                    " they count as ready before they listen; add one",
                    refuses=False,
                )
            )
        return found + await self._about_hpa(facts)

    def _others(self, facts: Facts) -> list[str]:
        request = Request(facts.namespace, facts.es.metadata.name)
        if facts.target is None:
            self._pod_labels.forget(request)
            return []
        labels = facts.target.pod_labels
        self._pod_labels.put(request, labels)
        names = {
            service.metadata.name
            for key, value in labels.items()
            for service in self._services.by_index(BY_SELECTOR, f"{facts.namespace}/{key}={value}")
            if (service.spec.selector or {}).items() <= labels.items()
        }
        return sorted(names - {facts.es.spec.service})

    async def _about_hpa(self, facts: Facts) -> list[Finding]:
        autoscaler = facts.es.spec.autoscaler
        if autoscaler is None or autoscaler.type != "hpa":
            return []
        try:
            minimum = await self._hpas.minimum(facts.namespace, autoscaler.name)
        except KubeError:
            return []
        if minimum != 0:
            return []
        return [
            Finding(
                "HPAScalesToZero",
                f"HPA {autoscaler.name} has minReplicas: 0, so it goes on while the target sleeps and"
                " may wake it or put it to sleep by itself; set minReplicas to 1",
                refuses=False,
            )
        ]
