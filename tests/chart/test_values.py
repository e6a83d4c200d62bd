"""What users write: KubeElasti's values, wrong ones, and any that the schema lets pass."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml
from hypothesis import HealthCheck, Phase, example, given, settings

from elasti._version import __version__
from tests.chart.drawing import NAMESPACES, values
from tests.chart.rendering import (
    CHART,
    KUBEELASTI_VALUES,
    JsonObject,
    RenderError,
    container,
    found,
    helm,
    render,
    tool,
)
from tests.controlplane.rig import ControlPlane

# KubeElasti's values.yaml


def test_kubeelastis_values_install_our_programs():
    objects = render(KUBEELASTI_VALUES)
    for program in ("operator", "resolver"):
        ours = container(objects, program)
        assert ours["image"] == f"elasti:{__version__}"
        assert ours["command"] == ["elasti", program]
        assert ours["resources"] == {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        }
    variables = {item["name"]: item.get("value") for item in container(objects, "resolver")["env"]}
    assert variables["HEADER_FOR_HOST"] == "X-Envoy-Decorator-Operation"
    assert (variables["REQ_TIMEOUT"], variables["QUEUE_SIZE"]) == ("600", "50000")
    assert found(objects, "Deployment", "elasti-resolver")["spec"]["replicas"] == 1


def test_values_that_kubeelasti_has_in_another_place_are_named_and_not_refused():
    """Its own end-to-end suite sets `enableMonitoring` where no chart reads it."""
    printed = helm(
        "install", "elasti", str(CHART), "--dry-run=client", "--set=enableMonitoring=true"
    )
    assert "enableMonitoring: without effect; set global.enableMonitoring" in printed
    assert "ServiceMonitor" not in printed


def test_kubeelastis_reverse_proxy_port_opens_no_port(tmp_path):
    values = yaml.safe_load(KUBEELASTI_VALUES.read_text())
    values["elastiResolver"]["reverseProxyService"]["port"] = 4711
    assert "4711" not in json.dumps(render(values))


def test_the_notes_name_what_means_something_else_here():
    given = ("global.secretName=login", "elastiResolver.service.type=NodePort")
    printed = helm(
        "install", "elasti", str(CHART), "--dry-run=client", f"--values={KUBEELASTI_VALUES}",
        *(f"--set={value}" for value in (*given, "elastiController.nameOverride=mine")),
    )  # fmt: skip
    notes = printed.partition("NOTES:")[2]
    assert (
        "elastiController.manager.resources.limits.memory: 80Mi is too little; 256Mi is used"
        in notes
    )
    assert "elastiResolver.proxy.env.queueRetryDuration: without effect" in notes
    assert "elastiController.manager.image, global.image: without effect" in notes
    assert "global.secretName: without effect" in notes
    assert "elastiResolver.service.type: without effect" in notes
    assert "elastiController.nameOverride: without effect" in notes
    plain = helm("install", "elasti", str(CHART), "--dry-run=client").partition("NOTES:")[2]
    assert "KubeElasti" not in plain


# Wrong ones


@pytest.mark.parametrize(
    "wrong",
    [
        {"operator": {"replicas": 3}},
        {"image": {"tag": "a b"}},
        {"elastiController": {"replicas": 0}},
        {"elastiController": {"manager": {"env": {"pollingInterval": "soon"}}}},
        {"elastiResolver": {"proxy": {"env": {"queueSize": "many"}}}},
        {"elastiResolver": {"envFromSecrets": {"A": "login/password"}}},
        {"global": {"allowedNamespaces": ["Shop"]}},
        {"metrics": {"serviceMonitor": True}},
        {"dashboard": {"enabled": True}},
    ],
    ids=json.dumps,
)
def test_a_value_that_does_not_fit_is_refused_by_the_schema(wrong: JsonObject):
    with pytest.raises(RenderError, match="schema"):
        render(wrong)


@pytest.mark.parametrize(
    "text", ["8999-20000", "20000-65536", "30000-20000", "20000-20098", "20000-60000"]
)
def test_a_range_of_ports_that_does_not_fit_is_refused_with_the_remedy(text: str):
    with pytest.raises(RenderError, match=r"portRange: .*(9000-65535|100 to 40000)"):
        render({"portRange": text})


def test_a_range_that_policies_would_not_follow_is_refused():
    with pytest.raises(RenderError, match="write portRange"):
        render({"elastiController": {"env": {"ELASTI_PORT_RANGE": "30000-40000"}}})


# Any


MONITORS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")


@pytest.fixture(scope="module")
def server(controlplane: ControlPlane) -> ControlPlane:
    """The control plane, with the namespaces that values name and the Prometheus operator's kinds."""
    for name in NAMESPACES:
        controlplane.kubectl("create", "namespace", name)
    for kind in MONITORS:
        group, plural = "monitoring.coreos.com", f"{kind.lower()}s"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
        }
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [version],
            },
        }
        controlplane.kubectl("apply", "-f", "-", stdin=json.dumps(definition))
        controlplane.kubectl("wait", "--for=condition=Established", f"crd/{plural}.{group}")
    return controlplane


EVERYTHING = {
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
    "elastiResolver": {"autoscaling": {"enabled": True, "minReplicas": 9}},
}


@pytest.mark.controlplane
# The same draws each time, and no shrinking: a draw takes most of a second.
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@example({})
@example(EVERYTHING)
@example({"global": {"imagePullSecrets": ["3", {"name": "3"}], "labels": {"a": "1"}}})
@given(values())
def test_whatever_the_schema_lets_pass_is_rendered_and_accepted(
    server: ControlPlane, drawn: JsonObject
):
    objects = render(drawn)
    stdin = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    server.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=stdin)


# What is made of the chart


def test_the_chart_has_the_packages_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_helm_finds_nothing_to_complain_about():
    helm("lint", "--strict", str(CHART))


def test_the_readme_is_of_these_values():
    command = [tool("helm-docs"), f"--chart-search-root={CHART}", "--dry-run", "--log-level=error"]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert made.strip() == (CHART / "README.md").read_text().strip(), "make chart-docs"


def test_the_charts_own_tests_pass():
    done = subprocess.run(
        [tool("helm-unittest"), "--color=false", str(CHART)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
