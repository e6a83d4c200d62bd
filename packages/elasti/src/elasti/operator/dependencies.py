"""What the operator's parts are made of: once for a replica, and more for a tenure as leader."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasti.operator.autoscalers.base import Autoscalers
    from elasti.operator.handover.ports import PortBook
    from elasti.operator.handover.quarantine import PortQuarantine
    from elasti.operator.handover.resolver_client import ResolverClient
    from elasti.operator.handover.state import StateStore
    from elasti.operator.idleness.decide import Evidence
    from elasti.operator.idleness.decisions import Decisions
    from elasti.operator.metrics import OperatorMetrics
    from elasti.operator.report.crd_check import DefinitionCheck
    from elasti.operator.report.events import EventReporter
    from elasti.operator.report.warnings import PodLabels
    from elasti.operator.scale_handler import ScaleHandler
    from elasti.operator.settings import OperatorSettings
    from elasti.operator.wake import TargetWaker
    from elasti.operator.watch.caches import OperatorCaches
    from elasti.operator.watch.directory import Directory
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.controller.reconcile import Request


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What every replica has, leader or not."""

    client: Client
    settings: OperatorSettings
    clock: Clock
    caches: OperatorCaches
    directory: Directory
    scales: ScaleHandler
    autoscalers: Autoscalers
    waker: TargetWaker
    metrics: OperatorMetrics
    reporter: EventReporter

    def wall(self) -> float:
        """Return the time of day, in seconds since 1970."""
        return self.clock.now().timestamp()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaderDependencies(Dependencies):
    """What one tenure has on top.

    `enqueue` asks for a reconcile that cannot wait, `read_soon` for a reading of triggers that were
    never read.
    """

    states: StateStore
    ports: PortBook
    quarantine: PortQuarantine
    pod_labels: PodLabels
    resolver_client: ResolverClient
    definition: DefinitionCheck
    decisions: Decisions
    evidence: Callable[[Request], Sequence[Evidence]]
    enqueue: Callable[[Request], None]
    read_soon: Callable[[Request], None]
