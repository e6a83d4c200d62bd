"""Resolvers that leave while a park is decided on: what they have seen counts, or nothing is parked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.operator.states import service_state

from elasti.api.states import State
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.api.wire import ActivityReport
from elasti.operator.handover.execute import ask_resolvers
from elasti.operator.handover.listing import SlicePublisher
from elasti.operator.handover.observe import observation_of
from elasti.operator.model.facts import Decision, Facts, Verdict
from elasti.operator.model.state import Activity
from elasti.operator.settings import OperatorSettings
from kubeloop.objects.core import (
    EndpointConditions,
    EndpointSlice,
    Service,
    ServiceEndpoint,
    ServiceSpec,
)
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.owners import ObjectReference

QUIET = ActivityReport(held=0, open=0)
SETTINGS = OperatorSettings(engage_settle=15.0)
META = ObjectMeta(name="web", namespace="shop")
SPEC = ElastiServiceSpec(
    service="web", scale_target_ref=ScaleTargetRef("apps/v1", "Deployment", "web")
)
SERVICE = Service(metadata=META, spec=ServiceSpec())
KEY = ("shop", "web")


def resolver(number: int) -> ServiceEndpoint:
    pod = ObjectReference(kind="Pod", name=f"r{number}", uid=f"pod-{number}")
    return ServiceEndpoint((f"10.0.0.{number}",), EndpointConditions(ready=True), target_ref=pod)


ONE, TWO, THREE = resolver(1), resolver(2), resolver(3)


class Cluster:
    """Resolvers, as far as a hand-over asks for them, and slices, which are written and forgotten."""

    def __init__(self) -> None:
        self.there = {ONE, TWO, THREE}
        self.reports: dict[str, ActivityReport | None] = {}
        self.asked: list[str] = []

    def resource(self, *_what: object) -> Cluster:
        return self

    async def create(self, piece: EndpointSlice, **_options: object) -> EndpointSlice:
        return piece

    def exists(self, address: str) -> bool:
        return any(address in endpoint.addresses for endpoint in self.there)

    async def owns(self, address: str, port: int, namespace: str, service: str) -> bool:
        return True

    async def reachable(self, address: str, ended: Callable[[], None]) -> bool:
        return True

    async def activity(
        self, address: str, namespace: str, service: str, *, hold: bool | None = None
    ) -> ActivityReport | None:
        self.asked.append(address)
        return self.reports.get(address, QUIET)


class ListingRig:
    """One ElastiService on its way to sleep."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        fake: Any = self.cluster
        self.publisher = SlicePublisher(fake, fake, fake)
        self.state = service_state(State.ENGAGING, engaged_at=0.0)

    async def publish(self, now: float, *ready: ServiceEndpoint) -> Facts:
        facts = Facts(
            es=ElastiService(metadata=META, spec=SPEC),
            now=now,
            service=SERVICE,
            resolvers=ready,
            ports={80: 20000},
            decision=Decision(Verdict.SLEEP, "idle"),
        )
        await self.publisher.publish(facts, self.state)
        return facts

    async def ask(self) -> Activity:
        asked = tuple(self.state.listing.to_query.values())
        return await ask_resolvers(self.cluster, {KEY: asked}, since=15.0)


@pytest.fixture
def rig() -> ListingRig:
    return ListingRig()


async def test_one_that_leaves_is_asked_for_what_it_has_seen(rig: ListingRig):
    await rig.publish(0.0, ONE, TWO)
    await rig.publish(5.0, ONE)
    rig.cluster.reports["10.0.0.2"] = ActivityReport(held=0, open=1)
    assert await rig.ask() is Activity.BUSY
    rig.cluster.reports["10.0.0.2"] = ActivityReport(held=0, open=0, last_arrival_age=20.0)
    assert await rig.ask() is Activity.QUIET
    assert rig.cluster.asked[-2:] == ["10.0.0.1", "10.0.0.2"]


async def test_arrivals_at_a_resolver_that_is_gone_are_unknown(rig: ListingRig):
    await rig.publish(0.0, ONE, TWO)
    rig.cluster.there = {ONE}
    rig.cluster.reports["10.0.0.2"] = None
    await rig.publish(5.0, ONE)
    assert await rig.ask() is Activity.UNKNOWN


async def test_the_next_try_has_nothing_to_do_with_it(rig: ListingRig):
    await rig.publish(0.0, ONE, TWO)
    await rig.publisher.remove((), rig.state)
    rig.state.enter(State.SERVE, "")
    rig.state.enter(State.ENGAGING, "idle")
    rig.cluster.reports["10.0.0.2"] = None
    await rig.publish(100.0, ONE)
    assert await rig.ask() is Activity.QUIET


async def test_while_a_target_wakes_those_on_their_way_out_are_asked_and_no_dead_ones(
    rig: ListingRig,
):
    rig.state.enter(State.WAKING, "wanted")
    await rig.publish(0.0, ONE, TWO, THREE)
    rig.cluster.there = {ONE, TWO}
    rig.cluster.reports["10.0.0.2"] = ActivityReport(held=3, open=3)
    rig.cluster.reports["10.0.0.3"] = None
    await rig.publish(5.0, ONE)
    assert await rig.ask() is Activity.BUSY
    assert "10.0.0.3" not in rig.cluster.asked


@pytest.mark.virtual_time
async def test_nodes_must_know_a_resolver_that_stays(rig: ListingRig):
    """All who were listed when it began have left: nobody has been in rotation for the settle."""
    loop = asyncio.get_running_loop()
    began = rig.state.handover.engaged_at = loop.time()
    await rig.publish(began, ONE)
    await asyncio.sleep(10)
    await rig.publish(loop.time(), ONE, TWO)
    await asyncio.sleep(6)
    facts = await rig.publish(loop.time(), TWO)
    assert not observation_of(facts, rig.state, SETTINGS).engage_settled
    assert observation_of(facts, rig.state, SETTINGS).resolver
    await asyncio.sleep(10)
    facts = await rig.publish(loop.time(), TWO)
    assert observation_of(facts, rig.state, SETTINGS).engage_settled


async def test_a_resolver_listed_a_moment_ago_does_not_count(rig: ListingRig):
    await rig.publish(0.0, ONE)
    facts = Facts(
        es=ElastiService(metadata=META, spec=SPEC), now=99.0, service=SERVICE, resolvers=(TWO,)
    )
    assert not observation_of(facts, rig.state, SETTINGS).resolver
