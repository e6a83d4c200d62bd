"""Reading, noting, observing: the one place where they meet.

A snapshot is read; what it lacks is made (resolver ports, a turn to be woken); the records keep
what they need of it; and `observe`, which is pure, says what is known.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from elasti.api.conditions import Reason
from elasti.operator.handover.children import published_ports
from elasti.operator.handover.observe import Judgement, lacks_ports, observe, partners_settled
from elasti.operator.handover.ports import PortsExhausted, port_owner
from elasti.operator.pacing import RateSpacer
from elasti.operator.report.conditions import Finding

if TYPE_CHECKING:
    from elasti.api.types import ElastiService
    from elasti.operator.dependencies import LeaderDependencies
    from elasti.operator.handover.cluster_reader import ClusterReader
    from elasti.operator.handover.observe import ClusterSnapshot, Facts
    from elasti.operator.handover.state import ServiceState
    from elasti.operator.watch.targets import WatchedTarget


class Observer:
    """Observes ElastiServices. One for the leader."""

    def __init__(self, deps: LeaderDependencies, reader: ClusterReader) -> None:
        self._deps = deps
        self._reader = reader
        self._wakes_without_resolver = RateSpacer()

    async def observe(
        self, es: ElastiService, state: ServiceState, watched: WatchedTarget
    ) -> Facts:
        """Read everything, and judge it. Raises KubeError."""
        snapshot = await self._reader.read(es, state, watched)
        # Nothing waits from here on, so that no event falls between what was read and what is noted.
        if lacks_ports(snapshot):
            snapshot = self._with_ports(snapshot)
        if snapshot.service is not None:
            labels = snapshot.target.pod_labels if snapshot.target is not None else {}
            self._deps.pod_labels.put(snapshot.request, labels)
        state.note(snapshot)
        facts = self.judge(snapshot, state)
        if facts.lacks_loss_slot:
            self._reserve_loss_slot(facts, state)
            facts = self.judge(snapshot, state)
        return facts

    def judge(self, snapshot: ClusterSnapshot, state: ServiceState) -> Facts:
        """Observe again what was read before, after something that is remembered has changed."""
        request, settle = snapshot.request, self._deps.settings.engage_settle
        others = [other for other in self._deps.directory.sharing(request) if other != request]
        judgement = Judgement(
            self._deps.decisions.together(request),
            partners_settled(map(self._deps.states.find, others), snapshot.now, settle),
        )
        return observe(snapshot, state, self._deps.settings, judgement)

    def _with_ports(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Assign resolver ports; those that are published or reported already come first."""
        es, service = snapshot.es, snapshot.service
        assert service is not None
        owner = port_owner(es)
        self._deps.ports.claim(owner, published_ports(snapshot.slices, service))
        self._deps.ports.claim(owner, {p.port: p.resolver_port for p in es.status.resolver_ports})
        name = f"{snapshot.namespace}/{service.metadata.name}"
        wanted = [port.port for port in service.tcp_ports]
        try:
            ports = self._deps.ports.assign(owner, name, wanted, asyncio.get_running_loop().time())
        except PortsExhausted as error:
            found = (Finding(Reason.PORTS_EXHAUSTED, str(error)), *snapshot.findings)
            return dataclasses.replace(snapshot, ports={}, findings=found)
        return dataclasses.replace(snapshot, ports=ports)

    def _reserve_loss_slot(self, facts: Facts, state: ServiceState) -> None:
        state.handover.reserve_loss_slot(self._wakes_without_resolver.reserve(facts.now))
        lost = facts.resolvers_lost_for
        message = f"no resolver has been ready for {lost:.0f} s; the target is woken"
        self._deps.reporter.warning(facts.es, "NoResolver", message)
