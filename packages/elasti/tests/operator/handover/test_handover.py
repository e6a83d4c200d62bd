"""The hand-over between pods and resolver, on both servers."""

from __future__ import annotations

import pytest
from tests.controllers.support import deployment, eventually
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import everywhere_fast

from elasti.api.names import WAKE_ANNOTATION, private_service_name, resolver_slice_name
from elasti.api.wire import ActivityReport
from kubeloop.objects.patches import MergePatch

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]


async def test_an_idle_target_is_parked_behind_the_resolver(rig: Rig, prometheus: FakePrometheus):
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Proxy")
        assert await rig.replicas() == 0
        assert await rig.addresses() == [rig.resolver.shown]
        # Once before the park, once after it.
        assert len(rig.resolver.asked) >= 2


async def test_the_slice_is_what_kubernetes_and_resolvers_need(rig: Rig):
    await rig.cluster.deployments.create(_at_zero("web"))
    await rig.service(
        "web",
        ports=[
            {"name": "http", "port": 80, "targetPort": 8080, "appProtocol": "kubernetes.io/h2c"},
            {"name": "db", "port": 5432},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ],
    )
    await rig.elastiservice()
    async with rig.operator():
        await rig.becomes("Proxy")

        async def is_published() -> bool:
            return await rig.slice() is not None

        await eventually(is_published)
        found = await rig.slice()
        assert found is not None
        public = await rig.cluster.services.get("web")
        metadata = found["metadata"]
        assert metadata["labels"] == {
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "elasti",
        }
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == (
            "Service",
            "web",
            public["metadata"]["uid"],
        )
        (endpoint,) = found["endpoints"]
        assert endpoint["conditions"] == {"ready": True, "serving": True, "terminating": False}
        assert (endpoint["nodeName"], endpoint["zone"]) == ("node-1", "zone-a")
        assert endpoint["targetRef"]["uid"] == f"uid-{rig.resolver.address}"
        shown = {p["name"]: p["resolverPort"] for p in (await rig.status())["resolverPorts"]}
        assert set(shown) == {"http", "db"}
        assert {p["name"]: p["port"] for p in found["ports"]} == shown
        assert all(20000 <= port <= 29999 for port in shown.values())
        by_name = {p["name"]: p for p in found["ports"]}
        assert by_name["http"]["appProtocol"] == "kubernetes.io/h2c"
        ready = await rig.condition("Ready")
        assert ready["status"] == "True"
        assert "53/UDP" in ready["message"]


async def test_the_private_service_has_nothing_but_selector_and_ports(rig: Rig):
    await rig.cluster.deployments.create(_at_zero("web"))
    await rig.cluster.services.create(
        {
            "metadata": {
                "name": "web",
                "annotations": {"external-dns/hostname": "web.example"},
                "labels": {"argocd/instance": "shop"},
            },
            "spec": {
                "type": "LoadBalancer",
                "selector": {"app": "web"},
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            },
        }
    )
    await rig.elastiservice()
    async with rig.operator():
        await rig.becomes("Proxy")
        private = await rig.cluster.services.get(private_service_name("web"))
        assert private["spec"]["type"] == "ClusterIP"
        assert private["spec"]["selector"] == {"app": "web"}
        (port,) = private["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (80, "http")
        assert "nodePort" not in port
        assert not private["metadata"].get("annotations")
        assert private["metadata"]["labels"]["elasti.truefoundry.com/private"] == "true"
        assert private["metadata"]["ownerReferences"][0]["kind"] == "Service"


async def test_traffic_during_the_settle_keeps_the_target_awake(
    rig: Rig, prometheus: FakePrometheus
):
    key = (rig.namespace, "web")
    rig.resolver.reports[key] = ActivityReport(held=0, open=1, last_arrival_age=60.0)
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await eventually(lambda: _truth(rig.resolver.asked))
        assert await rig.replicas() == 1
        prometheus.value = 9.0
        await rig.becomes("Serve")
        assert await rig.replicas() == 1
        assert await rig.slice() is None
        # It tries again after a cooldown, and goes when nothing is open.
        rig.resolver.reports[key] = ActivityReport(held=0, open=0, last_arrival_age=60.0)
        prometheus.value = 0.0
        await rig.becomes("Proxy")


async def test_a_resolver_that_does_not_say_keeps_the_target_awake(
    rig: Rig, prometheus: FakePrometheus
):
    rig.resolver.reports[rig.namespace, "web"] = None
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await eventually(lambda: _truth(len(rig.resolver.asked) >= 2))
        assert await rig.replicas() == 1


async def test_a_durable_wake_request_is_acted_on_once(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        note = {"metadata": {"annotations": {WAKE_ANNOTATION: "2030-01-01T00:00:00Z"}}}
        await rig.elastiservices.patch("web", MergePatch(note))
        await rig.becomes("Serve")

        async def cleared() -> bool:
            found = await rig.elastiservices.get("web")
            return WAKE_ANNOTATION not in (found["metadata"].get("annotations") or {})

        await eventually(cleared)


async def test_a_trigger_wakes_what_sleeps(rig: Rig, prometheus: FakePrometheus):
    prometheus.value = 7.0
    await rig.web(replicas=0, triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Serve")
        assert await rig.replicas() == 1


async def test_a_trigger_that_fails_never_lets_a_target_sleep(rig: Rig, prometheus: FakePrometheus):
    prometheus.up = 0.0
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await eventually(lambda: _seconds_of_polls(prometheus, 16))
        assert await rig.replicas() == 1
        found = await rig.condition("TriggersHealthy")
        assert (found["status"], found["reason"]) == ("False", "Failing")
        assert "uptimeFilter" in found["message"]


async def test_kubeelastis_objects_are_adopted_in_place(rig: Rig):
    await rig.cluster.deployments.create(_at_zero("web"))
    public = await rig.service()
    old_private = {
        "metadata": {
            "name": private_service_name("web"),
            "annotations": {"external-dns/hostname": "web.example"},
        },
        "spec": {"selector": {"app": "web"}, "ports": public["spec"]["ports"]},
    }
    before = await rig.cluster.services.create(old_private)
    old_slice = {
        "metadata": {
            "name": resolver_slice_name("web"),
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8012, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.9.9.9"]}],
    }
    slice_before = await rig.cluster.slices.create(old_slice)
    rig.resolver.answers_probes = False
    await rig.elastiservice()
    async with rig.operator():
        await rig.becomes("Proxy")
        assert await rig.addresses() == ["10.9.9.9"]
        rig.resolver.answers_probes = True
        await eventually(lambda: _equal(rig.addresses(), [rig.resolver.shown]))
        adopted = await rig.slice()
        assert adopted is not None
        assert adopted["metadata"]["uid"] == slice_before["metadata"]["uid"]
        assert adopted["ports"][0]["port"] != 8012
        private = await rig.cluster.services.get(private_service_name("web"))
        assert private["metadata"]["uid"] == before["metadata"]["uid"]
        assert not private["metadata"].get("annotations")
        assert private["metadata"]["ownerReferences"][0]["name"] == "web"


async def _truth(value: object) -> bool:
    return bool(value)


async def _equal(awaitable: object, wanted: object) -> bool:
    return await awaitable == wanted  # type: ignore[misc]


async def _seconds_of_polls(prometheus: FakePrometheus, queries: int) -> bool:
    return len(prometheus.queries) >= queries


def _at_zero(name: str) -> dict[str, object]:
    return deployment(name, 0)


async def test_outside_the_enabled_period_targets_are_up(rig: Rig, prometheus: FakePrometheus):
    never = {"schedule": "0 0 29 2 *", "duration": "1m"}
    await rig.web(replicas=0, triggers=[prometheus.trigger()], enabledPeriod=never)
    async with rig.operator():
        await rig.becomes("Serve")
        assert await rig.replicas() == 1


async def test_an_operator_confined_to_other_namespaces_leaves_it_alone(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(watch_namespaces=("elasti",)) as operator:
        code, _ = await rig.wake(operator, "web")
        assert code == 404
        assert await rig.status() == {}
    async with rig.operator(watch_namespaces=("elasti", rig.namespace)):
        await rig.becomes("Proxy")
