from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.builders import a_pod

from devkube.controllers.endpoint_slice_plan import (
    FAMILY,
    MAX_ENDPOINTS,
    SliceDraft,
    labels_for,
    plan_slices,
)
from devkube.controllers.objects import SlimPod
from kubeloop.objects.core import EndpointSlice, Service
from kubeloop.objects.meta import ObjectMeta, OwnerReference

NODES: dict[str, dict[str, str] | None] = {"node-1": {}}


def a_service(**spec: Any) -> Service:
    return msgspec.convert(
        {
            "metadata": {"name": "web", "namespace": "default", "uid": "uid-svc"},
            "spec": {
                "selector": {"app": "web"},
                "clusterIP": "10.96.0.1",
                "ipFamilies": ["IPv4"],
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
                **spec,
            },
        },
        Service,
    )


def a_backend(number: int, *, port: int = 8080, **options: Any) -> SlimPod:
    address = options.pop("ip", f"10.0.{number // 250}.{number % 250 + 1}")
    ports = [{"name": "http", "containerPort": port}]
    return a_pod(f"p{number}", ip=address, ports=ports, **options)


class Cluster:
    """Slices that follow the plans."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.slices: dict[str, EndpointSlice] = {}
        self.writes = 0
        self._names = 0

    def sync(self, pods: list[SlimPod]) -> int:
        """Plan and carry out; returns the number of writes."""
        plan = plan_slices(self.service, pods, list(self.slices.values()), NODES)
        for item in plan.delete:
            del self.slices[item.metadata.name]
        for draft in (*plan.update, *plan.create):
            self._put(draft)
        return len(plan.create) + len(plan.update) + len(plan.delete)

    def _put(self, draft: SliceDraft) -> None:
        if draft.present is not None:
            name = draft.present.metadata.name
        else:
            self._names += 1
            name = f"web-{self._names}"
        owner = OwnerReference("v1", "Service", "web", "uid-svc")
        meta = ObjectMeta(name=name, labels=labels_for(self.service), owner_references=(owner,))
        self.slices[name] = EndpointSlice(
            FAMILY, meta, tuple(draft.endpoints) or None, draft.ports or None
        )

    def addresses(self) -> list[tuple[int | None, str]]:
        return sorted(
            (port.port, address)
            for item in self.slices.values()
            for endpoint in item.endpoints or ()
            for port in item.ports or ()
            for address in endpoint.addresses
        )


numbers = st.lists(st.tuples(st.integers(0, 260), st.booleans(), st.sampled_from([8080, 9090])))


@given(steps=st.lists(numbers, min_size=1, max_size=5))
def test_slices_list_exactly_the_pods_each_with_its_own_port(
    steps: list[list[tuple[int, bool, int]]],
) -> None:
    cluster = Cluster(a_service())
    for step in steps:
        chosen = {number: (ready, port) for number, ready, port in step}
        pods = [a_backend(n, ready=ready, port=port) for n, (ready, port) in chosen.items()]
        cluster.sync(pods)
        wanted = sorted((port, f"10.0.{n // 250}.{n % 250 + 1}") for n, (_, port) in chosen.items())
        assert cluster.addresses() == wanted
        assert all(len(item.endpoints or ()) <= MAX_ENDPOINTS for item in cluster.slices.values())
        assert cluster.slices
        assert cluster.sync(pods) == 0


def test_a_hundred_and_one_endpoints_need_two_slices() -> None:
    cluster = Cluster(a_service())
    cluster.sync([a_backend(n) for n in range(101)])
    assert sorted(len(item.endpoints or ()) for item in cluster.slices.values()) == [1, 100]


def test_a_slice_is_recycled_and_not_replaced() -> None:
    cluster = Cluster(a_service())
    cluster.sync([])
    (name,) = cluster.slices
    cluster.sync([a_backend(1)])
    assert list(cluster.slices) == [name]
    cluster.sync([a_backend(2, port=9090)])
    assert list(cluster.slices) == [name]
    cluster.sync([])
    assert list(cluster.slices) == [name]
    assert cluster.slices[name].ports is None


@pytest.mark.parametrize(
    ("pod", "conditions"),
    [
        (a_backend(1), (True, True, False)),
        (a_backend(1, ready=False), (False, False, False)),
        (a_backend(1, ready=None), (False, False, False)),
        (a_backend(1, deleting=True), (False, True, True)),
        (a_backend(1, ready=False, deleting=True), (False, False, True)),
    ],
)
def test_conditions_mirror_the_pod(pod: SlimPod, conditions: tuple[bool, bool, bool]) -> None:
    plan = plan_slices(a_service(), [pod], [], NODES)
    found = plan.create[0].endpoints[0].conditions
    assert (found.ready, found.serving, found.terminating) == conditions


def test_publish_not_ready_addresses_makes_everything_ready() -> None:
    service = a_service(publishNotReadyAddresses=True)
    pods = [a_backend(1, ready=False), a_backend(2, deleting=True), a_backend(3, node="gone")]
    plan = plan_slices(service, pods, [], NODES)
    found = [endpoint.conditions for endpoint in plan.create[0].endpoints]
    assert [c.ready for c in found] == [True, True, True]
    assert [c.serving for c in found] == [False, True, True]


@pytest.mark.parametrize(
    "pod",
    [a_backend(1, phase="Succeeded"), a_backend(1, ip=""), a_backend(1, node="gone")],
    ids=["it ended", "it has no address", "its node is gone"],
)
def test_a_pod_is_not_listed_when(pod: SlimPod) -> None:
    plan = plan_slices(a_service(), [pod], [], NODES)
    assert [draft.endpoints for draft in plan.create] == [[]]


def test_slices_of_a_service_that_was_made_again_are_not_reused() -> None:
    cluster = Cluster(a_service())
    cluster.sync([a_backend(1)])
    again = msgspec.structs.replace(
        cluster.service, metadata=ObjectMeta(name="web", namespace="default", uid="uid-2")
    )
    plan = plan_slices(again, [a_backend(1)], list(cluster.slices.values()), NODES)
    assert (len(plan.create), len(plan.update), len(plan.delete)) == (1, 0, 1)


def test_changed_labels_of_a_service_are_written() -> None:
    cluster = Cluster(a_service())
    cluster.sync([a_backend(1)])
    metadata = msgspec.structs.replace(cluster.service.metadata, labels={"team": "blue"})
    cluster.service = msgspec.structs.replace(cluster.service, metadata=metadata)
    assert cluster.sync([a_backend(1)]) == 1
    (item,) = cluster.slices.values()
    assert (item.metadata.labels or {})["team"] == "blue"


def test_a_services_own_labels_never_say_who_manages_the_slice() -> None:
    service = a_service()
    own = {"endpointslice.kubernetes.io/managed-by": "me", "service.kubernetes.io/headless": ""}
    metadata = msgspec.structs.replace(service.metadata, labels=own)
    assert labels_for(msgspec.structs.replace(service, metadata=metadata)) == {
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }


def test_target_ports_are_numbers_names_or_the_port_itself() -> None:
    ports = [
        {"name": "a", "port": 80, "targetPort": "http"},
        {"name": "b", "port": 81, "targetPort": 7000},
        {"name": "c", "port": 82},
        {"name": "d", "port": 83, "targetPort": "unknown"},
    ]
    plan = plan_slices(a_service(ports=ports), [a_backend(1)], [], NODES)
    assert [(port.name, port.port) for port in plan.create[0].ports] == [
        ("a", 8080),
        ("b", 7000),
        ("c", 82),
    ]
