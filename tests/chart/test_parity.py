"""The chart's templates give the objects of `elasti manifests`, option by option."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from elasti.api.crd import custom_resource_definition
from elasti.cli.install.choices import OPTIONS, Choices
from elasti.cli.main import main
from tests.chart.rendering import CHART, JsonObject, comparable, found, is_hook, render

AFFINITY = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
        ]
    }
}


def both(**values: Any) -> JsonObject:
    return {"elastiController": values, "elastiResolver": values, "dashboard": values}


# What is written on a command line, and in values.
MATRIX: dict[str, tuple[list[str], JsonObject]] = {
    "defaults": ([], {}),
    "namespaced": (
        ["--namespaced", "--watch-namespace=shop", "--watch-namespace=blog"],
        {"global": {"allowedNamespaces": ["shop", "blog"]}},
    ),
    "watch_namespaces": (["--watch-namespace=shop"], {"watchNamespaces": ["shop"]}),
    "authentication": (["--no-authentication"], {"authentication": False}),
    "operator_replicas": (["--operator-replicas=3"], {"elastiController": {"replicas": 3}}),
    "resolver_replicas": (["--resolver-replicas=1"], {"elastiResolver": {"replicas": 1}}),
    "with_definition": (["--no-crd"], {"crds": {"install": False}}),
    "image": (
        ["--image=registry.example.com/elasti:1"],
        {"image": {"repository": "registry.example.com/elasti", "tag": "1"}},
    ),
    "variables": (
        [
            "--env=operator:POLLING_INTERVAL=10s",
            "--env=resolver:POD_IP=10.0.0.1",
            "--env=resolver:A=b",
        ],
        {
            "elastiController": {"manager": {"env": {"pollingInterval": "10s"}}},
            "elastiResolver": {"env": {"POD_IP": "10.0.0.1", "A": "b"}},
        },
    ),
    "secret_variables": (
        ["--env-secret=operator:A=login/password"],
        {"elastiController": {"envFromSecrets": {"A": {"name": "login", "key": "password"}}}},
    ),
    "resources": (
        ["--resources=operator:limits.memory=1Gi", "--resources=resolver:limits.cpu=2"],
        {
            "elastiController": {"manager": {"resources": {"limits": {"memory": "1Gi"}}}},
            "elastiResolver": {"proxy": {"resources": {"limits": {"cpu": "2"}}}},
        },
    ),
    "kubelet_stats": (["--no-kubelet-stats"], {"kubeletStats": {"enabled": False}}),
    "kubelet_insecure_tls": (
        ["--kubelet-insecure-tls"],
        {"kubeletStats": {"insecureTLS": True}},
    ),
    "default_triggers": (["--default-trigger=none"], {"defaultTriggers": []}),
    "port_range": (["--port-range=20000-59999"], {"portRange": "20000-59999"}),
    "shared_port": (["--shared-port"], {"sharedPort": {"enabled": True}}),
    "tls": (["--tls=required"], {"tls": {"required": True}}),
    "tls_secret": (["--tls-secret=of-cert-manager"], {"tls": {"secretName": "of-cert-manager"}}),
    "doze": (["--doze"], {"doze": {"enabled": True}}),
    "enrolment": (["--enrolment"], {"enrolment": {"enabled": True}}),
    "target_ref": (["--target-ref=None"], {"resolver": {"endpoints": {"targetRef": "None"}}}),
    "traffic_path": (["--no-traffic-path"], {"trafficPath": {"enabled": False}}),
    "waiting_page": (["--waiting-page"], {"waitingPage": {"enabled": True}}),
    "client_connections": (
        ["--max-connections-per-client=500"],
        {"elastiResolver": {"proxy": {"env": {"maxConnectionsPerClient": "500"}}}},
    ),
    "unlimited_clients": (
        ["--unlimited-clients=10.0.0.0/8", "--unlimited-clients=fd00::/8"],
        {"elastiResolver": {"proxy": {"env": {"unlimitedClients": "10.0.0.0/8,fd00::/8"}}}},
    ),
    "dashboard_hosts": (
        [
            "--dashboard=elasti.example.com",
            "--dashboard=localhost:8443",
            "--resources=dashboard:limits.memory=1Gi",
        ],
        {
            "dashboard": {
                "enabled": True,
                "hosts": ["elasti.example.com", "localhost:8443"],
                "resources": {"limits": {"memory": "1Gi"}},
            }
        },
    ),
    "pull_secrets": (
        ["--image-pull-secret=one", "--image-pull-secret=two"],
        {"global": {"imagePullSecrets": [{"name": "one"}, "two"]}},
    ),
    "labels": (["--label=team=edge"], {"global": {"labels": {"team": "edge"}}}),
    "node_selector": (["--node-selector=pool=infra"], both(nodeSelector={"pool": "infra"})),
    "tolerations": (
        ["--toleration=dedicated=infra:NoSchedule", "--toleration=spot"],
        both(
            tolerations=[
                {"key": "dedicated", "operator": "Equal", "value": "infra", "effect": "NoSchedule"},
                {"key": "spot", "operator": "Exists"},
            ]
        ),
    ),
    "affinity": (["--affinity={affinity}"], both(affinity=AFFINITY)),
    "operator_policy": (["--no-operator-policy"], {"operatorPolicy": {"enabled": False}}),
    "egress_policies": (["--no-egress-policies"], {"networkPolicy": {"egress": False}}),
    "egress_ports": (
        ["--egress-port=16443", "--egress-port=80"],
        {"networkPolicy": {"egressPorts": [16443, 80]}},
    ),
    "autoscaling": (
        ["--resolver-autoscaling=2-6@60"],
        {
            "elastiResolver": {
                "autoscaling": {
                    "enabled": True,
                    "minReplicas": 2,
                    "maxReplicas": 6,
                    "targetCPUUtilizationPercentage": 60,
                }
            }
        },
    ),
}
# Helm makes namespaces itself, on demand; and what is read from a cluster is no option.
NOT_THE_CHARTS = {"namespace", "with_namespace", "operator_url", "api_ports"}


def manifests(namespace: str, options: list[str], tmp_path: Path) -> list[JsonObject]:
    (tmp_path / "affinity.yaml").write_text(yaml.safe_dump(AFFINITY))
    called = [option.format(affinity=tmp_path / "affinity.yaml") for option in options]
    result = CliRunner().invoke(
        main, ["manifests", "-o", "json", "--no-namespace", f"--namespace={namespace}", *called]
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["items"]


def charts(values: JsonObject, namespace: str) -> list[JsonObject]:
    return [obj for obj in render(values, namespace) if not is_hook(obj)]


def assert_equal(options: list[str], values: JsonObject, namespace: str, tmp_path: Path) -> None:
    ours = comparable(manifests(namespace, options, tmp_path))
    theirs = comparable(charts(values, namespace))
    assert sorted(theirs) == sorted(ours)
    for key, obj in ours.items():
        assert theirs[key] == obj, key


@pytest.mark.parametrize("option", MATRIX)
@pytest.mark.parametrize("namespace", ["elasti"])
def test_the_chart_and_the_command_give_the_same_objects(
    option: str, namespace: str, tmp_path: Path
):
    assert_equal(*MATRIX[option], namespace, tmp_path)


def test_without_tls_both_leave_the_same_out(tmp_path: Path):
    assert_equal(["--tls=off"], {"tls": {"enabled": False}}, "elasti", tmp_path)


def merged(one: JsonObject, other: JsonObject) -> JsonObject:
    both = {**one, **other}
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict):
            both[name] = merged(one[name], other[name])
    return both


# Enrolment is for the whole cluster.
@pytest.mark.parametrize("without", [{"namespaced"}, {"watch_namespaces", "enrolment"}])
def test_all_options_at_once_give_the_same_objects(without: set[str], tmp_path: Path):
    options: list[str] = []
    values: JsonObject = {}
    for name in MATRIX.keys() - without:
        options += MATRIX[name][0]
        values = merged(values, MATRIX[name][1])
    assert_equal(options, values, "team", tmp_path)


def test_every_choice_of_an_installation_is_in_the_matrix():
    fields = {field.name for field in dataclasses.fields(Choices)}
    assert fields - NOT_THE_CHARTS == MATRIX.keys() - {"defaults"}
    assert {*OPTIONS} <= fields


def test_the_definition_is_the_programs_own():
    assert yaml.safe_load((CHART / "files/crd.yaml").read_text()) == custom_resource_definition(), (
        "elasti crd > charts/elasti/files/crd.yaml"
    )
    kept = found(render({}), "CustomResourceDefinition")
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    gone = found(render({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert "annotations" not in gone["metadata"]
