"""A Service of two address families is put to sleep only behind resolvers of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.operator.states import service_state

from elasti.api.states import State
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.api.wire import ActivityReport
from elasti.operator.handover.listing import SlicePublisher
from elasti.operator.handover.observe import observation_of
from elasti.operator.model.facts import Facts
from elasti.operator.model.targets import UpdateObjInfo
from elasti.operator.report.status import status_of
from elasti.operator.settings import OperatorSettings
from kubeloop.aio.clock import SystemClock
from kubeloop.objects.core import (
    EndpointConditions,
    EndpointSlice,
    Service,
    ServiceEndpoint,
    ServiceSpec,
)
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.owners import ObjectReference

POD = ObjectReference(kind="Pod", name="resolver", uid="pod-1")
READY = EndpointConditions(ready=True)
FOUR = ServiceEndpoint(("10.1.0.1",), READY, target_ref=POD)
SIX = ServiceEndpoint(("fd00::1",), READY, target_ref=POD)
SPEC = ElastiServiceSpec(
    service="web", scale_target_ref=ScaleTargetRef("apps/v1", "Deployment", "web")
)
ES = ElastiService(metadata=ObjectMeta(name="web", namespace="shop"), spec=SPEC)


def service(*families: str) -> Service:
    return Service(metadata=ObjectMeta(name="web", namespace="shop"), spec=ServiceSpec(ip_families=families))  # fmt: skip


@pytest.mark.parametrize("state", [State.SERVE, State.ENGAGING, State.WAKING])
@pytest.mark.parametrize(
    ("families", "resolvers", "covered"),
    [
        (("IPv4",), (FOUR,), True),
        (("IPv4", "IPv6"), (FOUR, SIX), True),
        (("IPv4", "IPv6"), (FOUR,), False),
        (("IPv6",), (FOUR,), False),
        (("IPv4",), (), False),
    ],
)
def test_a_resolver_is_there_only_if_one_is_in_every_family(state, families, resolvers, covered):
    known = service_state(state, listed=resolvers)
    facts = Facts(es=ES, now=0.0, service=service(*families), resolvers=resolvers)
    assert observation_of(facts, known, OperatorSettings()).resolver is covered


def test_the_missing_family_is_named():
    known = service_state(State.SERVE)
    facts = Facts(
        es=ES,
        now=0.0,
        service=service("IPv4", "IPv6"),
        target=UpdateObjInfo(spec_replicas=1, uid="t", version="1"),
        resolvers=(FOUR,),
    )
    status = status_of(facts, known, (), SystemClock().now())
    (found,) = (entry for entry in status.conditions if entry.type == "MaySleep")
    assert (found.status, found.reason) == ("False", "NoResolver")
    assert "IPv6" in found.message
    assert "PreferDualStack" in found.message


class OnlyFour:
    """A resolver that listens on one family of its pod's addresses."""

    async def owns(self, address: str, port: int, namespace: str, service: str) -> bool:
        return address == "10.1.0.1"

    async def activity(
        self, address: str, namespace: str, service: str, *, hold: bool | None = None
    ) -> ActivityReport | None:
        raise AssertionError

    async def reachable(self, address: str, ended: Callable[[], None]) -> bool:
        raise AssertionError


class Slices:
    """What is created of slices."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def resource(self, *_what: object) -> Slices:
        return self

    async def create(self, piece: EndpointSlice, **_options: object) -> EndpointSlice:
        self.addresses += [endpoint.addresses[0] for endpoint in piece.endpoints or ()]
        return piece


async def test_each_address_of_a_resolver_answers_for_itself():
    slices: Any = Slices()
    no_resolvers: Any = None
    publisher = SlicePublisher(slices, OnlyFour(), no_resolvers)
    both = service("IPv4", "IPv6")
    known = service_state()
    facts = Facts(es=ES, now=0.0, service=both, resolvers=(FOUR, SIX), ports={80: 20000})
    await publisher.publish(facts, known)
    assert known.listing.listed == (FOUR,)
    assert slices.addresses == ["10.1.0.1"]
    assert known.listing.probe_failures == 1
