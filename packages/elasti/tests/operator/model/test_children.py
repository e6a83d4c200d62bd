"""What the operator writes for a Service: slices and the private Service."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from tests.operator.values import READY, WEB, elastiservice

from elasti.api.types import (
    AUTOSCALER_KINDS,
    AutoscalerSpec,
    ElastiServiceSpec,
    ScaleTargetRef,
)
from elasti.operator.autoscalers import AUTOSCALERS
from elasti.operator.autoscalers.base import Autoscalers
from elasti.operator.handover import plan as plans
from elasti.operator.model.children import (
    private_differs,
    private_service,
    published_ports,
    resolver_slices,
    slice_differs,
)
from elasti.operator.model.facts import Facts
from kubeloop.objects.core import (
    ServiceEndpoint,
)


def test_every_autoscaler_of_the_api_has_a_module():
    assert [kind.type for kind in AUTOSCALERS] == list(AUTOSCALER_KINDS)


def test_an_unknown_autoscaler_is_not_paused():
    ref = ScaleTargetRef("apps/v1", "Deployment", "web")
    spec = ElastiServiceSpec(ref, "web", autoscaler=AutoscalerSpec("vpa", "web"))
    client: Any = None
    assert Autoscalers(client, ()).pausable(spec) is None


def test_both_families_are_published_with_all_tcp_ports():
    resolvers = [
        ServiceEndpoint(("10.1.0.2",), READY, "n1", "z1"),
        ServiceEndpoint(("10.1.0.1",), READY, "n2", "z2"),
        ServiceEndpoint(("fd00::1",), READY, "n1", "z1"),
    ]
    four, six = resolver_slices(WEB, resolvers, {80: 20001, 5432: 20002})
    assert (four.address_type, six.address_type) == ("IPv4", "IPv6")
    assert four.metadata.name != six.metadata.name
    assert [e.addresses[0] for e in four.endpoints or ()] == ["10.1.0.1", "10.1.0.2"]
    for piece in (four, six):
        assert {p.name: p.port for p in piece.ports or ()} == {"http": 20001, "db": 20002}
        assert [owner.uid for owner in piece.metadata.owner_references or ()] == ["s1"]
    assert published_ports([four, six], WEB) == {80: 20001, 5432: 20002}


def test_a_family_that_the_service_lacks_is_left_out():
    only_four = msgspec.structs.replace(
        WEB, spec=msgspec.structs.replace(WEB.spec, ip_families=("IPv4",))
    )
    slices = resolver_slices(only_four, [ServiceEndpoint(("fd00::1",), READY)], {80: 1, 5432: 2})
    assert slices == ()


def test_the_order_of_endpoints_and_ports_does_not_matter():
    resolvers = [ServiceEndpoint(("10.1.0.2",), READY), ServiceEndpoint(("10.1.0.1",), READY)]
    (piece,) = resolver_slices(WEB, resolvers, {80: 20001, 5432: 20002})
    turned = msgspec.structs.replace(
        piece,
        endpoints=tuple(reversed(piece.endpoints or ())),
        ports=tuple(reversed(piece.ports or ())),
    )
    assert not slice_differs(turned, piece)
    assert slice_differs(msgspec.structs.replace(piece, endpoints=()), piece)


def test_a_private_service_differs_from_a_copy_of_the_public_one():
    wanted = private_service(WEB)
    assert not private_differs(wanted, wanted)
    assert private_differs(WEB, wanted)
    annotated = msgspec.structs.replace(
        wanted, metadata=msgspec.structs.replace(wanted.metadata, annotations={"a": "b"})
    )
    assert private_differs(annotated, wanted)


def test_private_services_are_written_only_where_they_differ():
    facts = Facts(es=elastiservice(), now=0.0, service=WEB)
    (create,) = plans.companions(facts)
    assert create == plans.PutPrivate(private_service(WEB), exists=False)
    assert plans.companions(dataclasses.replace(facts, private=private_service(WEB))) == ()
    (replace,) = plans.companions(dataclasses.replace(facts, private=WEB))
    assert isinstance(replace, plans.PutPrivate)
    assert replace.exists
