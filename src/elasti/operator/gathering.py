"""From one ElastiService to all that is known of it: the observer's facts, completed.

Ports are given, findings made, the decision taken together with everyone who shares the target.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from elasti.api.names import WAKE_ANNOTATION
from elasti.operator import requests
from elasti.operator.children import published_ports
from elasti.operator.conditions import Finding, refusal, service_findings
from elasti.operator.decisions import seconds
from elasti.operator.modes import State
from elasti.operator.ports import Owner, PortsExhausted
from elasti.operator.settings import OnResolverLoss
from kubeloop.controller.reconcile import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.api.types import ElastiService
    from elasti.operator.memory import Memory
    from elasti.operator.observation import Facts
    from elasti.operator.parts import Parts
    from elasti.operator.projections import Service


class Gathering:
    """Completes facts; `enqueue` is called when a target changes."""

    def __init__(self, parts: Parts, enqueue: Callable[[Request], None]) -> None:
        self._parts = parts
        self._enqueue = enqueue

    async def observe(self, es: ElastiService, memory: Memory) -> Facts:
        """Look at everything, and judge it. Raises KubeError."""
        request = Request(es.metadata.namespace, es.metadata.name)
        facts = await self._parts.observer.observe(
            es, memory, lambda _event: self._enqueue(request)
        )
        facts = self._with_ports(facts)
        findings = (*facts.findings, *await self._findings(facts))
        memory.refused = refusal(findings) is not None
        requests.note(es.metadata.annotations, memory, self._parts.clock.now().timestamp())
        self._note_wakes(es, memory)
        return dataclasses.replace(
            facts,
            findings=findings,
            decision=self._parts.decisions.together(request),
            obstacle=self._parts.decisions.obstacle(request),
            partners_settled=self._partners_settled(request),
            lost_wake=self._lost_wake(facts, memory),
        )

    def _with_ports(self, facts: Facts) -> Facts:
        service = facts.service
        if service is None or _has_no_ports(service):
            return facts
        owner = owner_of(facts.es)
        book = self._parts.ports
        book.claim(owner, published_ports(facts.slices, service))
        book.claim(owner, {p.port: p.resolver_port for p in facts.es.status.resolver_ports})
        name = f"{facts.namespace}/{service.metadata.name}"
        wanted = [port.port for port in service.tcp_ports]
        try:
            ports = book.assign(owner, name, wanted, asyncio.get_running_loop().time())
        except PortsExhausted as error:
            return dataclasses.replace(facts, findings=(Finding("PortsExhausted", str(error)),))
        return dataclasses.replace(facts, ports=ports)

    async def _findings(self, facts: Facts) -> list[Finding]:
        es, found = facts.es, []
        details = self._parts.directory.get(Request(facts.namespace, es.metadata.name))
        if details is not None and details.problems:
            found.append(Finding("InvalidSpec", "; ".join(map(str, details.problems))))
        owner = self._parts.directory.owner(facts.namespace, es.spec.service)
        if owner is not None and not self.owns(es):
            found.append(
                Finding(
                    "ServiceOwnedByAnother",
                    f"Service {es.spec.service} belongs to ElastiService {owner.name}, which is"
                    " older; delete one of the two",
                )
            )
        if (outdated := self._parts.definition.finding) is not None:
            found.append(outdated)
        if facts.service is not None:
            found += service_findings(facts.service)
            found += await self._parts.warnings.about(facts)
        return found

    def owns(self, es: ElastiService) -> bool:
        """Whether the Service is this one's to switch, or an older ElastiService's."""
        owner = self._parts.directory.owner(es.metadata.namespace, es.spec.service)
        return owner is None or owner.uid == es.metadata.uid

    def _partners_settled(self, request: Request) -> bool:
        settle, now = self._parts.settings.engage_settle, asyncio.get_running_loop().time()
        for other in self._parts.directory.sharing(request):
            memory = self._parts.memories.find(other)
            if other == request:
                continue
            if memory is None or not (
                memory.settled_engaging(now, settle) or memory.state in (State.PROXY, State.PARKING)
            ):
                return False
        return True

    def _note_wakes(self, es: ElastiService, memory: Memory) -> None:
        asked = (es.metadata.annotations or {}).get(WAKE_ANNOTATION)
        if asked is not None and asked != memory.annotation:
            memory.annotation, memory.wake = asked, True
            requests.overtake(memory)
            memory.last_traffic = max(
                memory.last_traffic, min(seconds(asked), self._parts.clock.now().timestamp())
            )

    def _lost_wake(self, facts: Facts, memory: Memory) -> bool:
        """Whether nobody holds a sleeping target's traffic for too long, and its turn has come."""
        settings = self._parts.settings
        lost = self._parts.resolvers.lost_for()
        if (
            not lost
            or memory.state is not State.PROXY
            or settings.on_resolver_loss is OnResolverLoss.WAIT
        ):
            memory.loss_slot = None if not lost else memory.loss_slot
            return False
        if lost < settings.resolver_loss_grace:
            return False
        if memory.loss_slot is None:
            memory.loss_slot = self._parts.pacer.reserve(facts.now)
            message = f"no resolver has been ready for {lost:.0f} s; the target is woken"
            self._parts.reporter.no_resolver(facts.es, message)
        return facts.now >= memory.loss_slot


def owner_of(es: ElastiService) -> Owner:
    """Return who holds resolver ports."""
    return Owner(es.metadata.creation_timestamp or "", es.metadata.uid)


def _has_no_ports(service: Service) -> bool:
    """Whether a Service can have no resolver ports at all."""
    return refusal(service_findings(service)) is not None
