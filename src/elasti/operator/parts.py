"""What the leader's reconciler is made of, gathered in one value."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasti.api.types import ElastiService
    from elasti.operator.decisions import Decisions
    from elasti.operator.definition import Definition
    from elasti.operator.directory import Directory
    from elasti.operator.finalize import Finalizer
    from elasti.operator.handover import Handover
    from elasti.operator.informer_manager import Scope
    from elasti.operator.memory import Memories
    from elasti.operator.observation import Observer
    from elasti.operator.pacer import Pacer
    from elasti.operator.ports import PortBook
    from elasti.operator.reporting import Reporter
    from elasti.operator.resolvers import Resolvers
    from elasti.operator.resting import RestingPorts
    from elasti.operator.settings import Settings
    from elasti.operator.warnings import Warnings
    from elasti.scaling.decide import Evidence
    from elasti.scaling.scale_handler import ScaleHandler
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.controller.reconcile import Request


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The collaborators of one tenure."""

    client: Client
    elastiservices: Scope[ElastiService]
    directory: Directory
    memories: Memories
    observer: Observer
    handover: Handover
    decisions: Decisions
    ports: PortBook
    resting: RestingPorts
    scales: ScaleHandler
    resolvers: Resolvers
    finalizer: Finalizer
    warnings: Warnings
    definition: Definition
    reporter: Reporter
    pacer: Pacer
    evidence: Callable[[Request], Sequence[Evidence]]
    settings: Settings
    clock: Clock
