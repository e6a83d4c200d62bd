"""The hand-over between pods and resolver, on the dev cluster's server and controllers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.devcluster.controllers.support import deployment, eventually
from tests.elasti.operator.rig import FakePrometheus, FakeResolver, Rig, loopback

from elasti.api.names import WAKE_ANNOTATION, private_service_name, resolver_slice_name
from elasti.api.wire import ActivityReport
from elasti.operator.settings import OnResolverLoss
from kubeloop.objects.patches import MergePatch


async def test_a_target_at_zero_is_proxied_woken_and_released(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        assert await rig.addresses() == [rig.resolver.address]
        assert (await rig.status())["mode"] == "proxy"
        code, reply = await rig.wake(operator, "web")
        assert (code, reply["outcome"]) == (202, "scaling")
        assert await rig.replicas() == 1
        await rig.becomes("Serve")
        assert await rig.slice() is None
        assert (await rig.status())["mode"] == "serve"
        assert (await rig.status())["lastScaledUpTime"]


async def test_an_idle_target_is_parked_behind_the_resolver(rig: Rig, prometheus: FakePrometheus):
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Proxy")
        assert await rig.replicas() == 0
        assert await rig.addresses() == [rig.resolver.address]
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


async def test_a_changed_service_changes_its_companions(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        spec = {"selector": {"app": "other"}, "ports": [{"name": "web", "port": 1111}]}
        await rig.cluster.services.patch("web", MergePatch({"spec": spec}))

        async def follows() -> bool:
            private = await rig.cluster.services.get(private_service_name("web"))
            found = await rig.slice()
            return (
                private["spec"]["selector"] == {"app": "other"}
                and private["spec"]["ports"][0]["port"] == 1111
                and [p["name"] for p in (found or {})["ports"]] == ["web"]
            )

        await eventually(follows)
        assert [p["port"] for p in (await rig.status())["resolverPorts"]] == [1111]


async def test_traffic_during_the_settle_keeps_the_target_awake(
    rig: Rig, prometheus: FakePrometheus
):
    key = (rig.namespace, "web")
    rig.resolver.reports[key] = ActivityReport(held=0, open=1, last_arrival_age=60.0)
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await eventually(lambda: _truth(rig.resolver.asked))
        await rig.becomes("Serve")
        assert await rig.replicas() == 1
        assert await rig.slice() is None
        # It tries again after a cooldown, and goes when nothing is open.
        rig.resolver.reports[key] = ActivityReport(held=0, open=0, last_arrival_age=60.0)
        await rig.becomes("Proxy")


async def test_a_resolver_that_does_not_say_keeps_the_target_awake(
    rig: Rig, prometheus: FakePrometheus
):
    rig.resolver.reports[rig.namespace, "web"] = None
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await eventually(lambda: _truth(len(rig.resolver.asked) >= 2))
        assert await rig.replicas() == 1


async def test_a_resolver_that_is_not_this_services_is_never_listed(rig: Rig):
    rig.resolver.answers_probes = False
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        assert await rig.slice() is None
        rig.resolver.answers_probes = True
        await eventually(rig.addresses)


async def test_no_ready_resolver_means_no_park(rig: Rig, prometheus: FakePrometheus):
    await rig.list_resolvers()
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await eventually(lambda: _seconds_of_polls(prometheus, 12))
        assert await rig.state() == "Serve"
        assert await rig.replicas() == 1
        assert (await rig.condition("ResolverAvailable"))["status"] == "False"
        await rig.list_resolvers(rig.resolver.endpoint())
        await rig.becomes("Proxy")


async def test_a_lost_resolver_wakes_what_sleeps(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        await rig.list_resolvers()
        await rig.becomes("Serve")
        assert await rig.replicas() == 1
        reasons = {event["reason"] for event in await rig.cluster.list("events")}
        assert "NoResolver" in reasons


async def test_a_lost_resolver_may_be_waited_for(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(on_resolver_loss=OnResolverLoss.WAIT):
        await rig.becomes("Proxy")
        await rig.list_resolvers()

        async def told() -> bool:
            return (await rig.condition("ResolverAvailable")).get("status") == "False"

        await eventually(told)
        await asyncio.sleep(1.0)  # twice the grace: nothing must happen in it
        assert await rig.replicas() == 0


async def test_the_slice_follows_the_resolvers(rig: Rig):
    await rig.web(replicas=0)
    other = FakeResolver(rig.client, loopback(), rig.resolver.admin_port)
    async with rig.operator(), other.running():
        await rig.becomes("Proxy")
        await rig.list_resolvers(rig.resolver.endpoint(), other.endpoint())
        both = sorted([rig.resolver.address, other.address])
        await eventually(lambda: _equal(rig.addresses(), both))
        await rig.list_resolvers(rig.resolver.endpoint(ready=False), other.endpoint())
        await eventually(lambda: _equal(rig.addresses(), [other.address]))


async def test_the_last_resolver_stays_listed_while_it_drains(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(resolver_loss_grace=60.0):
        await rig.becomes("Proxy")
        await rig.list_resolvers(rig.resolver.endpoint(ready=False))

        async def told() -> bool:
            return (await rig.condition("ResolverAvailable")).get("status") == "False"

        await eventually(told)
        assert await rig.addresses() == [rig.resolver.address]
        await rig.list_resolvers()
        await eventually(lambda: _equal(rig.addresses(), []))


async def test_scaling_by_hand_is_followed_both_ways(rig: Rig):
    await rig.web(replicas=1)
    async with rig.operator():
        await rig.becomes("Serve")
        await rig.scale(0)
        await rig.becomes("Proxy")
        assert await rig.addresses() == [rig.resolver.address]
        await rig.scale(2)
        await rig.becomes("Serve")
        assert await rig.replicas() == 2
        assert await rig.slice() is None


async def test_pods_that_are_not_ready_keep_the_resolver_in_front(rig: Rig):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=1)
    async with rig.operator() as operator:
        await rig.becomes("Waking")
        await eventually(rig.addresses)
        code, reply = await rig.wake(operator, "web")
        assert (code, reply["outcome"]) == (202, "already-up")
        rig.cluster.kubelet.may_be_ready = lambda pod: True
        rig.cluster.kubelet.look_again()
        await rig.becomes("Serve")


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


async def test_a_crash_looping_target_does_not_stay_up_for_ever(
    rig: Rig, prometheus: FakePrometheus
):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=0, triggers=[prometheus.trigger()])
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        await rig.wake(operator, "web")
        await rig.becomes("Waking")
        await rig.becomes("Proxy")
        assert await rig.replicas() == 0


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
        await eventually(lambda: _equal(rig.addresses(), [rig.resolver.address]))
        adopted = await rig.slice()
        assert adopted is not None
        assert adopted["metadata"]["uid"] == slice_before["metadata"]["uid"]
        assert adopted["ports"][0]["port"] != 8012
        private = await rig.cluster.services.get(private_service_name("web"))
        assert private["metadata"]["uid"] == before["metadata"]["uid"]
        assert not private["metadata"].get("annotations")
        assert private["metadata"]["ownerReferences"][0]["name"] == "web"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"clusterIP": "None"}, "HeadlessService"),
        ({"type": "ExternalName", "externalName": "example.com"}, "ExternalNameService"),
        ({"internalTrafficPolicy": "Local"}, "InternalTrafficPolicyLocal"),
        ({"publishNotReadyAddresses": True}, "PublishNotReadyAddresses"),
        ({"selector": None}, "NoSelector"),
        ({"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}, "NoTCPPort"),
    ],
)
async def test_what_cannot_sleep_is_refused_and_left_alone(
    rig: Rig, prometheus: FakePrometheus, spec: dict[str, Any], reason: str
):
    await rig.cluster.deployments.create(_at_zero("web"))
    await rig.service(**spec)
    await rig.elastiservice(triggers=[prometheus.trigger()])
    async with rig.operator():

        async def refused() -> bool:
            return (await rig.condition("Ready")).get("reason") == reason

        await eventually(refused)
        assert (await rig.condition("Ready"))["status"] == "False"
        assert await rig.slice() is None
        assert await rig.replicas() == 0


async def test_the_older_elastiservice_owns_a_service(rig: Rig):
    await rig.web(replicas=0)
    await asyncio.sleep(1.1)  # creation times are whole seconds
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    await rig.elastiservice("second", service="web", scaleTargetRef=target)
    async with rig.operator():
        await rig.becomes("Proxy")

        async def refused() -> bool:
            return (await rig.condition("Ready", "second")).get("reason") == "ServiceOwnedByAnother"

        await eventually(refused)
        await rig.elastiservices.delete("web")
        # The first one wakes the target on its way out; then the Service is the second one's.
        await rig.becomes("Serve", "second")
        assert (await rig.condition("Ready", "second"))["status"] == "True"


async def test_everything_may_appear_later(rig: Rig):
    await rig.elastiservice()
    async with rig.operator():

        async def missing() -> bool:
            return (await rig.condition("Ready")).get("reason") == "TargetMissing"

        await eventually(missing)
        await rig.cluster.deployments.create(_at_zero("web"))

        async def service_missing() -> bool:
            return (await rig.condition("Ready")).get("reason") == "ServiceMissing"

        await eventually(service_missing)
        await rig.service()
        await rig.becomes("Proxy")
        await rig.cluster.services.delete("web")
        await eventually(service_missing)
        await rig.service()
        await rig.becomes("Proxy")
        await eventually(rig.addresses)


async def test_services_of_one_target_sleep_only_together(rig: Rig, prometheus: FakePrometheus):
    async with FakePrometheus().running() as other:
        other.value = 5.0
        await rig.web(triggers=[prometheus.trigger()])
        await rig.service("api", selector={"app": "web"})
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        await rig.elastiservice("api", scaleTargetRef=target, triggers=[other.trigger()])
        async with rig.operator():
            await eventually(lambda: _seconds_of_polls(prometheus, 16))
            assert await rig.replicas() == 1
            other.value = 0.0
            await rig.becomes("Proxy")
            await rig.becomes("Proxy", "api")
            assert await rig.addresses("web") == [rig.resolver.address]
            assert await rig.addresses("api") == [rig.resolver.address]


async def _truth(value: object) -> bool:
    return bool(value)


async def _equal(awaitable: object, wanted: object) -> bool:
    return await awaitable == wanted  # type: ignore[misc]


async def _seconds_of_polls(prometheus: FakePrometheus, queries: int) -> bool:
    return len(prometheus.queries) >= queries


def _at_zero(name: str) -> dict[str, object]:
    return deployment(name, 0)


async def test_a_service_that_becomes_impossible_is_woken_and_let_go(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        await rig.cluster.services.patch(
            "web", MergePatch({"spec": {"internalTrafficPolicy": "Local"}})
        )
        await rig.becomes("Serve")
        assert await rig.replicas() == 1
        assert await rig.slice() is None
        assert (await rig.condition("Ready"))["reason"] == "InternalTrafficPolicyLocal"


async def test_outside_the_enabled_period_targets_are_up(rig: Rig, prometheus: FakePrometheus):
    never = {"schedule": "0 0 29 2 *", "duration": "1m"}
    await rig.web(replicas=0, triggers=[prometheus.trigger()], enabledPeriod=never)
    async with rig.operator():
        await rig.becomes("Serve")
        assert await rig.replicas() == 1


async def test_an_invalid_spec_is_told_and_never_sleeps(rig: Rig, prometheus: FakePrometheus):
    wrong = {"schedule": "every day", "duration": "1h"}
    await rig.web(triggers=[prometheus.trigger()], enabledPeriod=wrong)
    async with rig.operator():

        async def told() -> bool:
            return (await rig.condition("Ready")).get("reason") == "InvalidSpec"

        await eventually(told)
        assert "enabledPeriod.schedule" in (await rig.condition("Ready"))["message"]
        await eventually(lambda: _seconds_of_polls(prometheus, 16))
        assert await rig.replicas() == 1


async def test_a_slice_that_somebody_deletes_comes_back(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        before = await rig.slice()
        assert before is not None
        await rig.cluster.slices.delete(resolver_slice_name("web"))

        async def back() -> bool:
            found = await rig.slice()
            return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

        await eventually(back)
        ports = [p["port"] for p in before["ports"]]
        assert [p["port"] for p in (await rig.slice() or {})["ports"]] == ports


async def test_an_operator_confined_to_other_namespaces_leaves_it_alone(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(watch_namespaces=("elasti",)) as operator:
        code, _ = await rig.wake(operator, "web")
        assert code == 404
        assert await rig.status() == {}
    async with rig.operator(watch_namespaces=("elasti", rig.namespace)):
        await rig.becomes("Proxy")
