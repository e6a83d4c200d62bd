"""`elasti doctor`: each judgement by plain values, and whole examinations of clusters."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from typing import Any

import pytest
from tests.cli.environment import CommandEnvironment

from elasti._version import __version__
from elasti.api.crd import custom_resource_definition
from elasti.api.names import DRAIN_KEY, LEASE_NAME
from elasti.api.types import (
    AutoscalerSpec,
    ElastiService,
    ElastiServiceSpec,
    ScaleTargetRef,
    StatusCondition,
)
from elasti.api.types import ElastiServiceStatus as Status
from elasti.cli.doctor.elastiservices import (
    judge_autoscalers,
    judge_policies,
    judge_proxies,
    judge_services,
)
from elasti.cli.doctor.findings import DoctorFinding, FindingLevel, exit_code, lines, verdict
from elasti.cli.doctor.installation import (
    found_elsewhere,
    judge_definition,
    judge_lease,
    judge_programs,
    judge_resolvers,
    judge_server,
)
from elasti.cli.doctor.permissions import Permission, as_rules, program_rights
from elasti.cli.exits import ExitCode
from elasti.cli.install.bundle import bundle
from elasti.cli.install.choices import Choices
from elasti.operator.autoscalers.hpa import Hpa
from elasti.operator.autoscalers.keda import Keda
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.times import format_micro_time

INSTANCE = "app.kubernetes.io/instance"
NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
OK, HINT, WARNING, PROBLEM = (
    FindingLevel.OK,
    FindingLevel.HINT,
    FindingLevel.WARNING,
    FindingLevel.PROBLEM,
)


def levels(findings: Iterable[DoctorFinding]) -> list[FindingLevel]:
    return [finding.level for finding in findings]


# Findings


def finding(level: FindingLevel) -> DoctorFinding:
    return DoctorFinding(level, "topic", "message", "one\ntwo")


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([OK, HINT], ExitCode.OK, "Elasti can work here."),
        ([OK, WARNING], ExitCode.OK, "Elasti works here; 1 warning."),
        ([PROBLEM, PROBLEM, WARNING], ExitCode.FAILED, "2 problems, 1 warning."),
        (
            [FindingLevel.UNCHECKED, OK],
            ExitCode.NOT_ALLOWED,
            "0 warnings, 1 thing could not be checked",
        ),
        ([FindingLevel.UNCHECKED, PROBLEM], ExitCode.FAILED, "1 thing could not be checked"),
    ],
)
def test_the_verdict_and_the_code_follow_the_worst(
    found: list[FindingLevel], code: ExitCode, said: str
):
    findings = list(map(finding, found))
    assert exit_code(findings) is code
    assert said in verdict(findings)


def test_remedies_are_lines_below():
    printed = [text for text, _ in lines([finding(PROBLEM)])]
    assert printed[:3] == ["✗ topic: message", "    one", "    two"]


# The server and the definition


@pytest.mark.parametrize(
    ("version", "level"),
    [("v1.36.4", OK), ("v1.21.0-eks", OK), ("v1.20.9", PROBLEM), ("strange", OK)],
)
def test_old_servers_are_refused(version: str, level: FindingLevel):
    assert judge_server(version).level is level


def served(definition: JsonObject) -> JsonObject:
    established = {"type": "Established", "status": "True"}
    return {**definition, "status": {"conditions": [established]}}


def test_the_definition_is_ours_older_other_or_missing():
    ours = served(custom_resource_definition())
    assert levels(judge_definition(ours)) == [OK]
    assert levels(judge_definition(None)) == [PROBLEM]
    other = served(custom_resource_definition())
    schema = other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["description"] = "another"
    (warned,) = judge_definition(other)
    assert warned.level is WARNING
    del schema["properties"]["spec"]["properties"]["wake"]
    (older,) = judge_definition(other)
    assert older.level is PROBLEM
    assert "spec.wake" in older.message
    assert "kubectl apply" in older.remedy


def test_a_definition_that_is_not_served_is_a_problem():
    named = {"type": "NamesAccepted", "status": "False", "message": "taken"}
    obj = {**custom_resource_definition(), "status": {"conditions": [named]}}
    first = next(iter(judge_definition(obj)))
    assert (first.level, "taken" in first.message) == (PROBLEM, True)


# The programs


def program(name: str, available: int = 2, version: str = "1", **labels: str) -> JsonObject:
    shown = {"app.kubernetes.io/component": name, "app.kubernetes.io/version": version, **labels}
    return {
        "metadata": {"name": f"elasti-{name}", "namespace": "elasti", "labels": shown},
        "spec": {"replicas": 2},
        "status": {"availableReplicas": available},
    }


@pytest.mark.parametrize(
    ("deployments", "expected"),
    [
        ([program("operator"), program("resolver")], [OK, OK, OK]),
        ([program("operator", 1), program("resolver", 0)], [WARNING, PROBLEM, OK]),
        ([program("operator"), program("resolver", version="2")], [OK, OK, WARNING]),
        (
            [program("operator"), program("resolver"), program("dashboard", 0)],
            [OK, OK, PROBLEM, OK],
        ),
        ([program("operator")], [OK, PROBLEM, OK]),
        ([], [PROBLEM, PROBLEM]),
    ],
)
def test_programs_must_be_there_and_of_one_version(deployments: Any, expected: list[FindingLevel]):
    assert levels(judge_programs(deployments, "elasti", "1")) == expected


def test_kubeelastis_operator_beside_ours_is_named():
    theirs = {"metadata": {"name": "elasti-operator-controller-manager", "namespace": "elasti"}}
    first = next(iter(judge_programs([theirs, program("operator")], "elasti", "1")))
    assert "elasti-operator-controller-manager" in first.message
    assert first.level is FindingLevel.WARNING


def test_an_installation_in_another_namespace_is_named():
    assert list(found_elsewhere([], "elasti")) == []
    other = program("operator")
    other["metadata"]["namespace"] = "sleepers"
    (told,) = found_elsewhere([other], "elasti")
    assert "--elasti-namespace sleepers" in told.remedy


def lease(holder: str, age: float) -> JsonObject:
    renewed = format_micro_time(NOW - dt.timedelta(seconds=age))
    return {"spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}}


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (lease("op-1", 3), OK),
        (lease("op-1", 90), PROBLEM),
        (lease("", 1), WARNING),
        (lease("", 60), PROBLEM),
        (None, PROBLEM),
    ],
)
def test_a_missing_leader_is_a_problem(found: JsonObject | None, level: FindingLevel):
    assert judge_lease(found, NOW).level is level


def test_a_ready_resolver_is_needed():
    ready, unready = {"conditions": {"ready": True}}, {"conditions": {"ready": False}}
    assert judge_resolvers([{"endpoints": [ready, unready]}], "s").level is OK
    assert judge_resolvers([{"endpoints": [unready]}], "s").level is PROBLEM
    assert judge_resolvers([], "s").level is PROBLEM


# Rights


def test_rules_gather_the_verbs_of_a_resource():
    rights = [Permission("get", "apps", "deployments"), Permission("list", "apps", "deployments")]
    assert as_rules(rights) == [
        '- {apiGroups: ["apps"], resources: [deployments], verbs: [get, list]}'
    ]


def test_programs_need_only_what_the_cluster_serves():
    rights = program_rights("operator", (), "elasti", {"apps", "coordination.k8s.io"})
    assert {right.group for right in rights} == {"", "apps", "coordination.k8s.io"}
    confined = program_rights("operator", ("blue", "green"), "elasti", {"apps"})
    assert {right.namespace for right in confined if right.group} == {"blue", "green"}
    assert all(right.namespace for right in confined)
    known = program_rights("operator", ("blue",), "elasti", {"discovery.k8s.io"})
    assert Permission("watch", "discovery.k8s.io", "endpointslices", "elasti") in known


# ElastiServices


def elastiservice(*conditions: StatusCondition, **changes: Any) -> ElastiService:
    ref = ScaleTargetRef("apps/v1", "Deployment", "web")
    meta = ObjectMeta(name="web", namespace="shop", generation=changes.pop("generation", 1))
    spec = ElastiServiceSpec(ref, "web", **changes)
    return ElastiService(spec, meta, Status(observed_generation=1, conditions=conditions))


def failing(message: str) -> StatusCondition:
    return StatusCondition("TriggersHealthy", "False", "Failing", message)


FINE = StatusCondition("Ready", "True", "Valid")
BAD_KEY = StatusCondition(
    "Ready", "False", "InvalidSpec", "spec.triggers[0].metadata: cpu: unknown key; x"
)
HEADLESS = {"metadata": {"name": "web"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}


@pytest.mark.parametrize(
    ("es", "services", "expected"),
    [
        (elastiservice(FINE), None, [OK]),
        (elastiservice(StatusCondition("Ready", "False", "Headless", "x")), None, [PROBLEM]),
        (elastiservice(StatusCondition("Ready", "True", "Valid", "no probe")), None, [HINT, OK]),
        (elastiservice(FINE, generation=2), None, [WARNING]),
        (elastiservice(FINE, StatusCondition("ScaleContested", "True", "Undone")), None, [WARNING]),
        (elastiservice(FINE, StatusCondition("DozeStuck", "True", "Deferred")), None, [WARNING]),
        (
            elastiservice(FINE, StatusCondition("TriggersHealthy", "False", "Failing")),
            None,
            [WARNING],
        ),
        (elastiservice(BAD_KEY, failing("triggers[0]: cpu: unknown key; x")), None, [PROBLEM]),
        (
            elastiservice(
                BAD_KEY, failing("triggers[0]: cpu: unknown key; x; triggers[1]: refused")
            ),
            None,
            [PROBLEM, WARNING],
        ),
        (elastiservice(), None, [PROBLEM]),
        (elastiservice(), {}, [PROBLEM, PROBLEM]),
        (elastiservice(), {("shop", "web"): HEADLESS}, [PROBLEM, PROBLEM, PROBLEM]),
    ],
)
def test_each_elastiservice_is_judged(
    es: ElastiService, services: Any, expected: list[FindingLevel]
):
    assert levels(judge_services([es], services)) == expected


def test_a_selector_with_our_key_and_no_elastiservice_is_a_problem():
    drained = {("shop", "web"): {"spec": {"selector": {"app": "web", DRAIN_KEY: "true"}}}}
    found = next(iter(judge_services([], drained)))
    assert found.level is FindingLevel.PROBLEM
    assert "kubectl patch service web -n shop" in found.remedy
    assert levels(judge_services([elastiservice(FINE)], drained)) == [OK]


def test_no_elastiservice_is_not_a_problem():
    assert levels(judge_services([], {})) == [OK]


def scaler(name: str, **spec: Any) -> JsonObject:
    target = {"kind": "Deployment", "name": "web"}
    return {
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"scaleTargetRef": target, **spec},
    }


def test_autoscalers_that_would_undo_a_sleep_are_named():
    plain = elastiservice(FINE)
    named = elastiservice(FINE, autoscaler=AutoscalerSpec("keda", "web"))
    assert levels(judge_autoscalers([plain], {Hpa: [scaler("h")]})) == []
    assert levels(judge_autoscalers([plain], {Hpa: [scaler("h", minReplicas=0)]})) == [WARNING]
    (told,) = judge_autoscalers([plain], {Keda: [scaler("web")]})
    assert (told.level, "type: keda, name: web" in told.remedy) == (PROBLEM, True)
    assert levels(judge_autoscalers([named], {Keda: [scaler("web")]})) == []
    assert levels(judge_autoscalers([named], {Keda: [scaler("other")]})) == [PROBLEM]


# The network


def policy(*ingress: JsonObject, types: Any = None, **labels: str) -> JsonObject:
    spec: JsonObject = {"podSelector": {"matchLabels": labels}, "ingress": list(ingress)}
    return {
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": spec | ({"policyTypes": types} if types else {}),
    }


def allowing(**peer: Any) -> JsonObject:
    return {"from": [peer]}


NAMED = {"matchLabels": {"kubernetes.io/metadata.name": "elasti"}}


@pytest.mark.parametrize(
    ("found", "warned"),
    [
        (policy(app="web"), True),
        (policy(app="other"), False),
        (policy(types=["Egress"], app="web"), False),
        (policy({}, app="web"), False),
        (policy(allowing(podSelector={}), app="web"), True),
        (policy(allowing(namespaceSelector={}), app="web"), False),
        (policy(allowing(namespaceSelector=NAMED), app="web"), False),
        (policy(allowing(namespaceSelector={"matchLabels": {"team": "x"}}), app="web"), True),
        (policy(allowing(ipBlock={"cidr": "10.0.0.0/8"}), app="web"), False),
    ],
)
def test_policies_that_keep_the_resolver_out_are_named(found: JsonObject, warned: bool):
    targets = {"shop": [("Deployment web", {"app": "web", "tier": "front"})]}
    told = list(judge_policies([found], targets, ("elasti", {"purpose": "sleep"})))
    assert bool(told) is warned


def test_the_implementation_of_services_is_reported():
    def named(*names: str) -> list[JsonObject]:
        return [{"metadata": {"name": name}} for name in names]

    assert judge_proxies(named("kube-proxy")).level is OK
    assert "Cilium" in judge_proxies(named("cilium")).message
    assert judge_proxies([]).level is judge_proxies(named("cilium")).level is HINT


# On a cluster


async def _installed(environment: CommandEnvironment, namespace: str) -> None:
    client = environment.rig.client
    for part in bundle(Choices(namespace=namespace, with_definition=False)):
        if part.needs is not None:
            continue
        resource = await client.resource_for(part.obj["apiVersion"], part.obj["kind"])
        await resource.apply(part.obj, field_manager="test", force=True)
    now = format_micro_time(dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    spec = {"holderIdentity": "op-1", "leaseDurationSeconds": 15, "renewTime": now}
    await client.resource("coordination.k8s.io/v1/leases", namespace=namespace).create(
        {"metadata": {"name": LEASE_NAME}, "spec": spec}
    )


def examined(
    environment: CommandEnvironment, *arguments: str, **options: Any
) -> tuple[int, dict[str, Any]]:
    result = environment.run("doctor", "-o", "json", *arguments, **options)
    return result.exit_code, json.loads(result.stdout)


def by_topic(found: dict[str, Any]) -> dict[str, str]:
    return {item["topic"]: item["level"] for item in found["findings"]}


def test_an_installation_is_found_healthy(environment: CommandEnvironment):
    environment.call(_installed(environment, "doctored"))
    environment.call(environment.rig.web(0, "well", triggers=[environment.prometheus.trigger()]))
    environment.call(environment.rig.becomes("Proxy", "well"))
    arguments = ["-n", environment.namespace, "--elasti-namespace", "doctored"]

    async def available() -> bool:
        deployments = environment.rig.client.resource("apps/v1/deployments", namespace="doctored")
        found = [item async for item in deployments.items()]
        return all((item.get("status") or {}).get("availableReplicas") == 2 for item in found)

    environment.eventually(available)
    _, found = examined(environment, *arguments)
    topics = by_topic(found)
    for topic in (
        "API server",
        "definition",
        "your rights",
        "operator",
        "resolver",
        "versions",
        "leader",
        "resolver endpoints",
        "operator's rights",
        "resolver's rights",
        "ElastiServices",
    ):
        assert topics[topic] == "ok", found
    text = environment.run("doctor", *arguments).stdout
    assert "op-1" in text
    assert f"all {__version__}" in text


def test_rights_that_a_program_lacks_are_listed(environment: CommandEnvironment):
    async def weaken() -> None:
        bindings = environment.rig.client.resource(
            "rbac.authorization.k8s.io/v1/clusterrolebindings"
        )
        for item in [item async for item in bindings.items()]:
            if (item["metadata"].get("labels") or {}).get(INSTANCE) == "weakened":
                await bindings.delete(item["metadata"]["name"])

    environment.call(_installed(environment, "weakened"))
    environment.call(weaken())
    code, found = examined(environment, "--elasti-namespace", "weakened")
    (told,) = [item for item in found["findings"] if item["topic"] == "operator's rights"]
    assert (code, told["level"]) == (1, "problem")
    assert "endpointslices" in told["remedy"]


def test_a_cluster_without_elasti_gets_the_install_command(environment: CommandEnvironment):
    code, found = examined(environment, kubeconfig=environment.bare)
    topics = by_topic(found)
    assert code == 1
    assert (topics["definition"], topics["operator"], topics["resolver"]) == ("problem",) * 3
    assert "leader" not in topics
    assert not found["ok"]


def test_a_user_without_rights_is_not_shown_that_all_is_well(environment: CommandEnvironment):
    code, found = examined(environment, kubeconfig=environment.nobody)
    topics = by_topic(found)
    assert code == ExitCode.NOT_ALLOWED
    assert (topics["ElastiServices"], topics["programs"]) == ("unchecked", "unchecked")
    assert topics["your rights"] == "warning"
    assert not found["ok"]


RULE = {"apiGroups": ["elasti.truefoundry.com"], "resources": ["*"], "verbs": ["*"]}


def test_a_missing_definition_is_noticed_even_where_it_may_not_be_read(
    environment: CommandEnvironment,
):
    path = environment.bare_user("half-blind", RULE)
    code, found = examined(environment, kubeconfig=path)
    assert code == 1
    assert by_topic(found)["definition"] == "problem"


def test_without_a_cluster_there_is_nothing_to_examine(environment: CommandEnvironment):
    result = environment.run("doctor", kubeconfig=environment.nowhere)
    assert result.exit_code == ExitCode.NO_CLUSTER
    assert "connection refused" in result.stderr


def test_trouble_of_one_elastiservice_is_found(environment: CommandEnvironment):
    environment.call(environment.rig.service("sick", clusterIP="None"))
    environment.call(environment.rig.elastiservice("sick"))
    environment.call(environment.rig.tells("Ready", "TargetMissing", "sick"))
    code, found = examined(environment, "-n", environment.namespace)
    topic = f"ElastiService {environment.namespace}/sick"
    told = next(item for item in found["findings"] if item["topic"] == topic)
    assert (code, told["level"]) == (1, "problem")
    assert "Deployment sick" in told["message"]


def test_a_policy_that_keeps_the_resolver_out_is_found(environment: CommandEnvironment):
    environment.call(environment.rig.web(0, "guarded"))
    body = {
        "metadata": {"name": "closed"},
        "spec": {"podSelector": {"matchLabels": {"app": "guarded"}}, "policyTypes": ["Ingress"]},
    }
    policies = environment.rig.client.resource(
        "networking.k8s.io/v1/networkpolicies", namespace=environment.namespace
    )
    environment.call(policies.create(body))
    _, found = examined(environment, "-n", environment.namespace)
    assert by_topic(found)[f"NetworkPolicy {environment.namespace}/closed"] == "warning"
