"""Observes one ElastiService: reads it, makes what it lacks, and says what is known."""

from __future__ import annotations

import dataclasses

from elasti.api.conditions import Reason
from elasti.api.defaults import DEPENDENCY_TIMEOUT
from elasti.api.types import ElastiService
from elasti.operator.handover.cluster_reader import ClusterReader
from elasti.operator.handover.observe import lacks_ports, observe, partners_settled
from elasti.operator.handover.ports import PortBook, PortsExhausted, port_owner
from elasti.operator.idleness.decisions import Decisions
from elasti.operator.model.children import published_ports
from elasti.operator.model.facts import ClusterSnapshot, Facts, Judgement
from elasti.operator.model.findings import Finding
from elasti.operator.model.state import ServiceState
from elasti.operator.pacing import RateSpacer
from elasti.operator.report.events import EventReporter
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.event_mapping import PodLabels
from elasti.operator.watch.targets import WatchedTarget


@dataclasses.dataclass(eq=False, kw_only=True)
class Observer:
    """Observes ElastiServices. One for the leader.

    A snapshot is read; what it lacks is made (resolver ports, a turn to be woken); the records keep what
    they need of it; and `observe`, which is pure, says what is known.
    """

    reader: ClusterReader
    decisions: Decisions
    ports: PortBook
    pod_labels: PodLabels
    reporter: EventReporter
    settings: OperatorSettings

    def __post_init__(self) -> None:
        self._wakes_without_resolver = RateSpacer()

    async def observe(
        self, es: ElastiService, state: ServiceState, watched: WatchedTarget
    ) -> Facts:
        """Read everything, and judge it. Raises KubeError."""
        snapshot = await self.reader.read(es, state, watched)
        # Nothing waits from here on, so that no event falls between what was read and what is noted.
        if lacks_ports(snapshot) and not es.spec.observes:
            snapshot = self._with_ports(snapshot)
        if snapshot.service is not None:
            labels = snapshot.target.pod_labels if snapshot.target is not None else {}
            self.pod_labels.put(snapshot.request, labels)
        state.note(snapshot)
        facts = self.judge(snapshot, state)
        if facts.lacks_loss_slot:
            self._reserve_loss_slot(facts, state)
            facts = self.judge(snapshot, state)
        return facts

    def judge(self, snapshot: ClusterSnapshot, state: ServiceState) -> Facts:
        """Observe again what was read before, after something that is remembered has changed."""
        request, settle = snapshot.request, self.settings.engage_settle
        others = [other for other in self.decisions.directory.sharing(request) if other != request]
        judgement = Judgement(
            self.decisions.together(request),
            partners_settled(state, map(self.decisions.states.find, others), snapshot.now, settle),
            self._waits_for(snapshot, state),
        )
        return observe(snapshot, state, self.settings, judgement)

    def _waits_for(self, snapshot: ClusterSnapshot, state: ServiceState) -> tuple[str, ...]:
        """Return the dependencies that a wake-up waits for: none once its time for them has passed."""
        since = state.handover.waking_since
        late = since is not None and snapshot.now - since >= DEPENDENCY_TIMEOUT
        if not snapshot.at_zero or late:
            return ()
        serves = self.reader.caches.serves
        found = self.decisions.directory.awaited(snapshot.request, serves, self.decisions.states)
        return tuple(one.name for one in found)

    def _with_ports(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Assign resolver ports; those that are published or reported already come first."""
        es, service = snapshot.es, snapshot.service
        assert service is not None
        owner = port_owner(es)
        self.ports.claim(owner, published_ports(snapshot.slices, service))
        self.ports.claim(owner, {p.port: p.resolver_port for p in es.status.resolver_ports})
        name = f"{snapshot.namespace}/{service.metadata.name}"
        wanted = [port.port for port in service.tcp_ports]
        try:
            ports = self.ports.assign(owner, name, wanted, snapshot.now)
        except PortsExhausted as error:
            found = (Finding(Reason.PORTS_EXHAUSTED, str(error)), *snapshot.findings)
            return dataclasses.replace(snapshot, ports={}, findings=found)
        return dataclasses.replace(snapshot, ports=ports)

    def _reserve_loss_slot(self, facts: Facts, state: ServiceState) -> None:
        state.handover.reserve_loss_slot(self._wakes_without_resolver.reserve(facts.now))
        lost = facts.resolvers_lost_for
        message = f"no resolver has been ready for {lost:.0f} s; the target is woken"
        self.reporter.warning(facts.es, "NoResolver", message)
