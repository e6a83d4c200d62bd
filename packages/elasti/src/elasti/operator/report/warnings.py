"""What lets a target sleep but may surprise its user.

Other Services on the same pods, no readiness probe, an HPA that scales to zero by itself.
`PodLabels` indexes the labels of every target's pods: a Service that comes, goes or changes its
selector concerns not only the ElastiServices that name it, but all whose pods it selects, or
selected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.api.names import PRIVATE_LABEL
from elasti.operator.autoscalers.keda import HpaReader
from elasti.operator.report.conditions import Finding
from kubeloop.client.errors import KubeError
from kubeloop.controller.reconcile import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elasti.operator.handover.observe import Facts
    from elasti.operator.watch.informer_manager import Scope
    from kubeloop.client.client import Client
    from kubeloop.objects.core import Service


class PodLabels:
    """The labels of the pods of every ElastiService's target. One writer: the leader's reconciler."""

    def __init__(self) -> None:
        self._labels: dict[Request, Mapping[str, str]] = {}
        self._having: dict[tuple[str, str, str], set[Request]] = {}

    def put(self, request: Request, labels: Mapping[str, str]) -> None:
        """Note the labels that a target gives its pods now."""
        if self._labels.get(request) == labels:
            return
        self.forget(request)
        self._labels[request] = labels
        for key, value in labels.items():
            self._having.setdefault((request.namespace, key, value), set()).add(request)

    def forget(self, request: Request) -> None:
        """The ElastiService is gone; safe where it is not known."""
        for key, value in self._labels.pop(request, {}).items():
            pair = request.namespace, key, value
            having = self._having[pair]
            having.discard(request)
            if not having:
                del self._having[pair]

    def selected_by(self, namespace: str, selector: Mapping[str, str]) -> Iterator[Request]:
        """Iterate over the ElastiServices whose pods a selector finds; an empty one finds none."""
        if not selector:
            return
        pairs = ((namespace, key, value) for key, value in selector.items())
        fewest = min((self._having.get(pair, set()) for pair in pairs), key=len)
        for request in sorted(fewest):
            if selector.items() <= self._labels[request].items():
                yield request


BY_SELECTOR = "selector"


def index_by_selector(service: Service) -> list[str]:
    """File a Service under one pair of its selector, by which its pods' labels find it."""
    if (service.metadata.labels or {}).get(PRIVATE_LABEL) or not service.spec.selector:
        return []
    key, value = min(service.spec.selector.items())
    return [f"{service.metadata.namespace}/{key}={value}"]


class ServiceWarnings:
    """Looks for surprises."""

    def __init__(self, client: Client, services: Scope[Service], labels: PodLabels) -> None:
        self._services = services
        self._pod_labels = labels
        self._hpas = HpaReader(client)

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
