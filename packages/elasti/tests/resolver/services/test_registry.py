"""The registry and the listeners: what four watches say becomes bound ports and targets."""

from __future__ import annotations

import asyncio
import functools
import socket

import pytest
from tests.log_lines import capture_logs
from tests.resolver.cluster import FakeCluster, endpoint
from tests.resolver.registry_rig import refuses, rig
from tests.resolver.support import free_port

from elasti.api.names import MANAGED_BY, private_service_name
from elasti.api.types import WakeSpec
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.upstream.interface import PortProtocol
from kubeloop.objects.core import MANAGED_BY_LABEL, SERVICE_LABEL
from tests.waiting import eventually


async def test_ports_are_bound_and_closed_as_objects_come_and_go():
    cluster, port = FakeCluster(), free_port()
    async with rig(cluster) as made:
        assert refuses(port)
        cluster.elasti_service("web", ("http", port))
        await eventually(lambda: made.owner(port) == "web")
        assert not refuses(port)
        cluster.objects.delete("web")
        await eventually(lambda: made.owner(port) is None)
        await made.listeners.settled()
        assert refuses(port)
        assert made.service("web") is None


async def test_what_a_port_speaks_comes_from_the_private_service_and_may_change():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("main", port))
    async with rig(cluster) as made:
        await eventually(lambda: made.owner(port) == "web")
        listener = made.listeners._open[port]
        assert listener.claim.protocol.value == "detect"
        cluster.private_service(
            "web", {"name": "main", "port": 80, "appProtocol": "kubernetes.io/h2c"}
        )
        await eventually(lambda: listener.claim.protocol is PortProtocol.HTTP)
        assert made.listeners._open[port] is listener


async def test_what_a_replica_may_hold_is_divided_among_its_workers():
    cluster = FakeCluster()
    cluster.elasti_service("web", ("http", free_port()), wake={"maxHeld": 100})
    cluster.elasti_service("few", ("http", free_port()), wake={"maxHeld": 2})
    async with rig(cluster, workers=4) as made:
        await eventually(lambda: made.service("web") and made.service("few"))
        assert made.service("web").capacity.limit == 25
        assert made.service("few").capacity.limit == 1


async def test_pods_and_spec_reach_the_service():
    cluster = FakeCluster()
    cluster.elasti_service(
        "web", ("http", free_port()), wake={"maxHeld": 7, "timeoutSeconds": 9000}
    )
    async with rig(cluster, bounds=WakeSpec(timeout_seconds=60, max_held=1000)) as made:
        await eventually(lambda: made.service("web") is not None)
        assert made.service("web").capacity.limit == 7
        assert made.service("web").wake.timeout_seconds == 60
        cluster.publish("web", {"http": 20001})
        cluster.endpoints("web", endpoint("10.0.0.1", ready=True), ports={"http": 8080})
        await eventually(lambda: made.service("web").port("http").pick() is not None)
        assert made.service("web").port("http").pick() == ("10.0.0.1", 8080)
        cluster.endpoints("web", ports={"http": 8080})
        await eventually(lambda: made.service("web").port("http").pick() is None)


@pytest.mark.parametrize("first", ["the Service", "its slices"])
async def test_kept_connections_reach_the_pods_of_a_service_that_ends(first: str):
    """The resolver hears of the Service and of its slices by two watches, in either order."""
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port))
    cluster.private_service("web")
    cluster.endpoints("web", endpoint("10.0.0.1", ready=True), ports={"http": 8080})
    cluster.publish("web", {"http": port})
    async with rig(cluster) as made:
        await eventually(lambda: made.service("web") is not None)
        kept = made.service("web").port("http")
        await eventually(lambda: kept.pick() == ("10.0.0.1", 8080))
        # As the operator and Kubernetes do: the slice, the private Service and its slices, the ElastiService.
        cluster.unpublish("web")
        await eventually(lambda: not made.service("web").published)
        name = private_service_name("web")
        gone = [(cluster.services, name), (cluster.slices, f"{name}-x")]
        for source, each in gone if first == "the Service" else reversed(gone):
            source.delete(each)
            await asyncio.sleep(0.1)
        assert kept.pick() == ("10.0.0.1", 8080)
        assert kept.stepping_aside
        cluster.objects.delete("web")
        await eventually(lambda: made.service("web") is None)
        assert kept.pick() == ("10.0.0.1", 8080)


async def test_a_private_service_that_is_made_again_shows_its_pods():
    cluster = FakeCluster()
    cluster.elasti_service("web", ("http", free_port()))
    cluster.private_service("web")
    cluster.publish("web", {"http": 20001})
    async with rig(cluster) as made:
        await eventually(lambda: made.service("web") is not None)
        port = made.service("web").port("http")
        cluster.services.delete(private_service_name("web"))
        await asyncio.sleep(0.1)
        cluster.endpoints("web", endpoint("10.0.0.2", ready=True), ports={"http": 8080})
        cluster.private_service("web")
        await eventually(lambda: port.pick() == ("10.0.0.2", 8080))


async def test_a_published_slice_tells_whether_to_step_aside():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port))
    async with rig(cluster) as made:
        cluster.publish("web", {"http": port}, "10.0.0.9")
        await eventually(lambda: made.service("web") and made.service("web").published)
        assert made.registry.is_listed("10.0.0.9")
        assert not made.registry.is_listed("10.0.0.8")
        cluster.unpublish("web")
        await eventually(lambda: not made.service("web").published)


async def test_a_published_port_counts_when_status_was_lost():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web")
    cluster.publish("web", {"http": port})
    async with rig(cluster) as made:
        await eventually(lambda: made.owner(port) == "web")


async def test_a_new_port_is_open_before_the_slice_leaves_the_old_one_which_stays_until_settled():
    # What happens when the number of a Service's port changes while it is held: the operator asks the
    # new port whose it is before it publishes it, and nodes that are behind go on using the old one.
    cluster, old, new = FakeCluster(), free_port(), free_port()
    cluster.elasti_service("web", ("http", old))
    cluster.publish("web", {"http": old})
    async with rig(cluster, settle=0.3) as made:
        await eventually(lambda: made.owner(old) == "web")
        cluster.elasti_service("web", ("http", new))
        await eventually(lambda: made.owner(new) == "web")
        assert made.owner(old) == "web"
        began = asyncio.get_running_loop().time()
        cluster.publish("web", {"http": new})
        await eventually(lambda: made.owner(old) is None)
        assert asyncio.get_running_loop().time() - began >= 0.3
        assert made.owner(new) == "web"


async def test_the_older_of_two_objects_has_a_port_that_none_was_served_on():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("young", ("http", port), created="2026-02-01T00:00:00Z")
    cluster.elasti_service("old", ("http", port), created="2026-01-01T00:00:00Z")
    async with rig(cluster) as made:
        await eventually(lambda: made.owner(port) == "old")
        cluster.objects.delete("old")
        await eventually(lambda: made.owner(port) == "young")


@pytest.mark.parametrize("created", ["2026-01-01T00:00:00Z", "2026-03-01T00:00:00Z"])
async def test_status_and_slice_of_another_object_leave_a_served_port_open(created):
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port), created="2026-02-01T00:00:00Z")
    cluster.publish("web", {"http": port})
    async with rig(cluster) as made:
        await eventually(lambda: made.owner(port) == "web")
        with capture_logs() as logs:
            for _ in range(3):
                before = made.listeners.contested
                cluster.elasti_service("other", ("http", port), created=created)
                cluster.publish("other", {"http": port})
                await eventually(functools.partial(_is_contested, made, before + 1))
                assert made.owner(port) == "web"
                cluster.objects.delete("other")
                cluster.unpublish("other")
                await eventually(lambda: made.service("other") is None)
                await made.listeners.settled()
                assert made.owner(port) == "web"
        assert not refuses(port)
        assert [(line["event"], line["served"], line["rivals"]) for line in logs] == [
            ("port is contested", "shop/web", ["shop/other"])
        ]


def _is_contested(made, times):
    return made.listeners.contested == times


async def test_a_freed_port_stays_with_its_service_until_its_slice_is_gone_and_settled():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port))
    cluster.publish("web", {"http": port})
    async with rig(cluster, settle=0.3) as made:
        await eventually(lambda: made.owner(port) == "web")
        cluster.objects.delete("web")
        cluster.elasti_service("api", ("http", port))
        await eventually(lambda: made.service("api") is not None and made.service("web") is None)
        await made.listeners.settled()
        assert made.owner(port) == "web"
        assert not refuses(port)
        began = asyncio.get_running_loop().time()
        cluster.unpublish("web")
        await eventually(lambda: made.owner(port) == "api")
        assert asyncio.get_running_loop().time() - began >= 0.3
        assert not made.registry._left


async def test_of_two_objects_for_one_service_the_older_speaks():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port), name="new", created="2026-02-01T00:00:00Z", wake={"maxHeld": 2})  # fmt: skip
    cluster.elasti_service("web", ("http", port), name="old", wake={"maxHeld": 1})
    async with rig(cluster) as made:
        await eventually(lambda: made.service("web") and made.service("web").capacity.limit == 1)
        assert made.registry.object_name(ServiceKey("shop", "web")) == "old"
        cluster.objects.delete("old")
        await eventually(lambda: made.service("web").capacity.limit == 2)
        assert made.registry.object_name(ServiceKey("shop", "web")) == "new"


async def test_an_object_that_changes_its_service_moves_its_port():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port), name="x")
    async with rig(cluster) as made:
        await eventually(lambda: made.owner(port) == "web")
        cluster.elasti_service("api", ("http", port), name="x")
        await eventually(lambda: made.owner(port) == "api")
        assert made.service("web") is None


async def test_a_port_that_cannot_be_bound_is_tried_again():
    cluster, port = FakeCluster(), free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        cluster.elasti_service("web", ("http", port))
        async with rig(cluster) as made:
            await eventually(lambda: made.service("web") is not None)
            await made.listeners.settled()
            assert made.owner(port) is None
            taken.close()
            await eventually(lambda: made.owner(port) == "web")


async def test_the_number_of_watches_does_not_depend_on_the_number_of_services():
    cluster = FakeCluster()
    for number in range(50):
        cluster.elasti_service(f"s{number}")
        cluster.private_service(f"s{number}")
    async with rig(cluster) as made:
        await eventually(lambda: len(made.registry) == 50)
        assert len(cluster.objects.open_streams) == 1
        assert len(cluster.services.open_streams) == 1
        assert len(cluster.slices.open_streams) == 2


async def test_a_service_has_its_share_while_its_port_is_open():
    """Else many connections to others would leave nothing for one that sleeps."""
    cluster, ports = FakeCluster(), [free_port() for _ in range(3)]
    for number, port in enumerate(ports):
        cluster.elasti_service(f"web-{number}", ("http", port))
    async with rig(cluster) as made:
        await eventually(lambda: all(made.owner(port) for port in ports))
        shares = made.path.quotas.clients
        assert len(shares._holders) == 3
        _, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        await eventually(lambda: shares.used == 1)
        assert len(shares._holders) == 3
        cluster.objects.delete("web-0")
        cluster.objects.delete("web-1")
        await eventually(lambda: len(shares._holders) == 2)
        writer.close()
        await eventually(lambda: len(shares._holders) == 1)


async def test_a_slice_of_another_name_or_of_an_unclaimed_port_closes_none():
    """An account that may write slices in one namespace closes no other Service's port."""
    cluster, port, own = FakeCluster(), free_port(), free_port()
    cluster.elasti_service("alice", ("http", port))
    cluster.elasti_service("bob", ("http", own))
    async with rig(cluster) as made:
        await eventually(lambda: made.owner(port) == "alice" and made.owner(own) == "bob")
        cluster.publish("alice", {"http": port})
        labels = {MANAGED_BY_LABEL: MANAGED_BY, SERVICE_LABEL: "bob"}
        ports = [{"name": "http", "port": port, "protocol": "TCP"}]
        cluster.slices.put(
            cluster.slices.build(
                "bobs", labels=labels, ports=ports, endpoints=[endpoint("1.1.1.1")]
            )
        )
        cluster.publish("bob", {"http": own, "more": port})
        await eventually(lambda: made.service("bob").published)
        await made.listeners.settled()
        assert made.owner(port) == "alice"
        assert not refuses(port)
        cluster.unpublish("bob")
        await eventually(lambda: not made.service("bob").published)
        await made.listeners.settled()
        assert made.owner(port) == "alice"
