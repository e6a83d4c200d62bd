"""`elasti enable`: which Service it takes, what it asks back, and what it writes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.cli.environment import CommandEnvironment
from tests.controllers.support import deployment

from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.cli.enable import already_there, choose_service
from elasti.cli.exits import ExitCode, Failure
from elasti.operator.enrolment.finder import WorkloadRef
from kubeloop.objects.core import Service, ServicePort, ServiceSpec
from kubeloop.objects.meta import ObjectMeta

WEB = WorkloadRef("Deployment", "web")
LABELS = {"app": "web", "tier": "front"}


def service(name: str, **spec: Any) -> Service:
    given = {"selector": {"app": "web"}, "ports": (ServicePort(80),), "cluster_ip": "10.0.0.1"}
    return Service(ObjectMeta(name=name), ServiceSpec(**given | spec))


def choose(*services: Service, named: str | None = None) -> tuple[str, str]:
    return choose_service(WEB, LABELS, services, named, namespace="shop")


# Which Service


def test_the_only_service_that_selects_the_pods_is_taken():
    name, why = choose(service("web"), service("other", selector={"app": "other"}))
    assert name == "web"
    assert "the only Service that selects the pods of deployment/web (app=web,tier=front)" in why


def test_what_cannot_be_used_is_left_out_and_named():
    name, why = choose(service("web"), service("web-pods", cluster_ip="None"))
    assert name == "web"
    assert "Service web-pods is headless" in why


def test_two_services_are_answered_with_the_commands_to_choose():
    with pytest.raises(Failure, match="2 Services select the pods") as found:
        choose(service("web"), service("admin"))
    assert found.value.code is ExitCode.FAILED
    assert found.value.remedy.split("\n") == [
        "  elasti enable deployment/web -n shop --service admin",
        "  elasti enable deployment/web -n shop --service web",
    ]
    assert choose(service("web"), service("admin"), named="admin")[0] == "admin"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"cluster_ip": "None"}, "is headless"),
        ({"ports": ()}, "has no TCP port"),
        ({"ports": (ServicePort(53, protocol="UDP"),)}, "has no TCP port"),
        ({"internal_traffic_policy": "Local"}, "internalTrafficPolicy"),
    ],
)
@pytest.mark.parametrize("named", [None, "web"])
def test_a_service_that_cannot_be_used_is_refused_with_the_cure(
    spec: dict[str, Any], words: str, named: str | None
):
    with pytest.raises(Failure) as found:
        choose(service("web", **spec), named=named)
    assert words in found.value.message + found.value.remedy


def test_no_service_is_answered_with_what_there_is_and_how_to_make_one():
    with pytest.raises(Failure, match="no Service in namespace shop selects") as found:
        choose(service("other", selector={"app": "other"}), service("all", selector=None))
    assert found.value.code is ExitCode.NOT_FOUND
    assert "kubectl expose deployment/web -n shop" in found.value.remedy
    assert "Service other selects app=other" in found.value.remedy
    assert "Service all" not in found.value.remedy


def test_a_named_service_must_lead_to_the_pods():
    with pytest.raises(Failure, match="no Service other in namespace shop selects"):
        choose(service("web"), service("other", selector={"app": "other"}), named="other")


# What is there


def present(name: str, target: str, of: str, cooldown: int = 900) -> ElastiService:
    ref = ScaleTargetRef("apps/v1", "Deployment", target)
    return ElastiService(
        ElastiServiceSpec(ref, of, cooldown_period=cooldown), ObjectMeta(name=name)
    )


def test_the_same_elastiservice_is_not_a_failure():
    there = [present("web", "web", "web")]
    assert "already" in already_there(WEB, "web", there, None, namespace="shop")
    assert "already" in already_there(WEB, "web", there, 900, namespace="shop")
    assert already_there(WEB, "web", [present("x", "x", "x")], None, namespace="shop") == ""


@pytest.mark.parametrize(
    ("es", "after", "words"),
    [
        (present("web", "web", "web"), 60, '{"spec": {"cooldownPeriod": 60}}'),
        (present("web", "other", "other"), None, "for deployment/other and Service other"),
        (present("other", "other", "web"), None, "for deployment/other and Service web"),
    ],
)
def test_another_one_is_not_changed(es: ElastiService, after: int | None, words: str):
    with pytest.raises(Failure, match="it is not changed") as found:
        already_there(WEB, "web", [es], after, namespace="shop")
    assert words in found.value.message + found.value.remedy


# On a cluster


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["web"], "is not a workload; write deployment/web"),
        (["service/web"], "is not a workload"),
        (["deployment/Web"], "is not a valid name"),
        (["deployment/web", "--after", "soon"], "is not a duration"),
        (["deployment/web", "--after", "0"], "not between 1s and 168h"),
        (["deployment/web", "--after", "9999h"], "not between 1s and 168h"),
    ],
)
def test_a_wrong_call_is_a_usage_error(
    environment: CommandEnvironment, arguments: list[str], words: str
):
    result = environment.run("enable", *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.output


def test_one_command_from_a_deployment_to_an_elastiservice(environment: CommandEnvironment):
    rig = environment.rig
    environment.call(rig.cluster.deployments.create(deployment("one", 1)))
    missing = environment.run("enable", "deployment/one")
    assert missing.exit_code == ExitCode.NOT_FOUND
    environment.call(rig.service("one"))
    document = yaml.safe_load(environment.ok("enable", "deploy/one", "--after", "1h", "--dry-run"))
    assert document["spec"]["cooldownPeriod"] == 3600
    assert "triggers" not in document["spec"]
    assert environment.run("get", "one").exit_code == ExitCode.NOT_FOUND, "it was a dry run"
    said = environment.ok("enable", "deployment/one", "--after", "1h")
    assert "elastiservice/one created" in said
    assert "kubectl patch elastiservice one" in said, "this installation has no default triggers"
    assert "already" in environment.ok("enable", "deployments.apps/one")
    assert environment.run("enable", "deployment/one", "--after", "5m").exit_code == ExitCode.FAILED
    ports = [{"name": "http", "port": 81}]
    second = {"metadata": {"name": "second"}, "spec": {"selector": {"app": "one"}, "ports": ports}}
    environment.call(rig.cluster.services.create(second))
    assert "already" in environment.ok("enable", "deployment/one"), "which Service it is, is known"
    found = environment.call(rig.elastiservices.get("one"))
    assert found["spec"]["cooldownPeriod"] == 3600


def test_what_belongs_to_it_is_a_dependency_or_a_worker(environment: CommandEnvironment):
    rig = environment.rig
    for name in ("front", "store", "worker"):
        environment.call(rig.cluster.deployments.create(deployment(name, 1)))
    environment.call(rig.service("front"))
    environment.call(rig.service("store"))
    call = ("enable", "deployment/front", "--dry-run", "--with")
    served = environment.run(*call, "store,worker")
    assert served.exit_code == ExitCode.FAILED
    assert "Service store leads to" in served.stderr
    assert "elasti enable deployment/store" in served.stderr
    environment.ok("enable", "deployment/store")
    spec = yaml.safe_load(environment.ok(*call, "store,worker,worker,store"))["spec"]
    assert spec["dependsOn"] == [{"name": "store"}]
    assert spec["targets"] == [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "worker"}]
    unknown = environment.run(*call, "absent")
    assert unknown.exit_code == ExitCode.NOT_FOUND
    assert "no ElastiService, Deployment or StatefulSet of that name" in unknown.stderr


def test_replicas_that_do_not_wake_are_named(environment: CommandEnvironment):
    rig = environment.rig
    environment.call(rig.cluster.deployments.create(deployment("pair", 2)))
    environment.call(rig.service("pair"))
    result = environment.run("enable", "deployment/pair", "--dry-run")
    assert "2 replicas: it wakes with 1" in result.stderr
    assert "wake.replicas is Previous" in result.stderr
    environment.call(rig.cluster.deployments.create(deployment("single", 1)))
    environment.call(rig.service("single"))
    assert "replicas" not in environment.run("enable", "deployment/single", "--dry-run").stderr


def test_an_hpa_of_the_workload_is_its_autoscaler(environment: CommandEnvironment):
    rig = environment.rig
    environment.call(rig.cluster.deployments.create(deployment("scaled", 1)))
    environment.call(rig.service("scaled"))
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"}
    hpas = rig.client.resource("autoscaling/v2/horizontalpodautoscalers", namespace=rig.namespace)
    environment.call(
        hpas.create(
            {
                "metadata": {"name": "by-cpu"},
                "spec": {"scaleTargetRef": ref, "minReplicas": 1, "maxReplicas": 3},
            }
        )
    )
    result = environment.run("enable", "deployment/scaled", "--dry-run")
    assert "autoscaler hpa/by-cpu: it scales deployment/scaled" in result.stderr
    assert yaml.safe_load(result.stdout)["spec"]["autoscaler"] == {"type": "hpa", "name": "by-cpu"}


@pytest.mark.parametrize(
    ("kubeconfig", "code"),
    [
        ("nowhere", ExitCode.NO_CLUSTER),
        ("bare", ExitCode.NOT_INSTALLED),
        ("nobody", ExitCode.NOT_ALLOWED),
    ],
)
def test_a_wrong_cluster_is_reported_without_a_traceback(
    environment: CommandEnvironment, kubeconfig: str, code: ExitCode
):
    path = getattr(environment, kubeconfig)
    result = environment.run("enable", "deployment/web", "-n", "shop", kubeconfig=path)
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_a_workload_that_is_not_there_is_named(environment: CommandEnvironment):
    result = environment.run("enable", "statefulset/nothing")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "there is no statefulset/nothing in namespace" in result.output
