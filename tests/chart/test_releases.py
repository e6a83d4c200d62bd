"""Releases over what is there: Helm 3's, KubeElasti's, and installations of `elasti install`."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasti.api.names import TLS_SECRET
from tests.chart.rendering import (
    CHART,
    KUBEELASTI,
    KUBEELASTI_VALUES,
    JsonObject,
    RenderError,
    helm,
)
from tests.controlplane.binaries import Binaries, Settings
from tests.controlplane.rig import ControlPlane
from tests.realcluster.rig import run

pytestmark = pytest.mark.controlplane

ELASTI = str(Path(sys.executable).with_name("elasti"))
CRD = "crd/elastiservices.elasti.truefoundry.com"
ELASTISERVICE = {
    "apiVersion": "elasti.truefoundry.com/v1alpha1",
    "kind": "ElastiService",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "service": "web",
        "minTargetReplicas": 1,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "triggers": [],
    },
}


class Place:
    """A control plane of a test's own, without nodes: nothing is waited for."""

    def __init__(self, rig: ControlPlane) -> None:
        self.rig = rig

    def helm(self, *arguments: str) -> str:
        return helm(*arguments, "--namespace=elasti", f"--kubeconfig={self.rig.kubeconfig}")

    def elasti(self, *arguments: str) -> str:
        return run([ELASTI, *arguments, f"--kubeconfig={self.rig.kubeconfig}"])

    def get(self, what: str, namespace: str = "elasti") -> JsonObject:
        return json.loads(self.rig.kubectl("get", what, f"--namespace={namespace}", "-o", "json"))

    def names(self, kind: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.get(kind)["items"]]

    def as_helm_3(self) -> None:
        """Make Helm's record of the last revision as Helm 3 wrote it: it had but one way to apply."""
        (name,) = (one for one in self.names("secret") if one.startswith("sh.helm.release"))
        record = self.get(f"secret/{name}")
        release = json.loads(
            gzip.decompress(base64.b64decode(base64.b64decode(record["data"]["release"])))
        )
        assert release.pop("apply_method")
        packed = base64.b64encode(gzip.compress(json.dumps(release).encode()))
        record["data"]["release"] = base64.b64encode(packed).decode()
        self.rig.kubectl("replace", "-f", "-", stdin=json.dumps(record))


@pytest.fixture
def place(controlplane_binaries: Binaries, controlplane_settings: Settings) -> Iterator[Place]:
    with ControlPlane(controlplane_binaries, logs=controlplane_settings.logs) as rig:
        rig.kubectl("create", "namespace", "elasti")
        yield Place(rig)


def variables(deployment: JsonObject) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item.get("value", "") for item in container["env"]}


def test_a_release_of_helm_3_is_upgraded_and_rolled_back(place: Place):
    place.helm(
        "install", "elasti", str(CHART), "--server-side=false", "--set=elastiController.env.A=1"
    )
    place.as_helm_3()
    place.helm("upgrade", "elasti", str(CHART), "--set=elastiController.env.B=2")
    upgraded = variables(place.get("deployment/elasti-operator"))
    assert upgraded.get("B") == "2"
    assert "A" not in upgraded
    forced = ("--server-side=true", "--force-conflicts")
    place.helm("upgrade", "elasti", str(CHART), *forced, "--set=elastiController.env.C=3")
    upgraded = variables(place.get("deployment/elasti-operator"))
    assert upgraded.get("C") == "3"
    place.helm("rollback", "elasti", "1")
    assert variables(place.get("deployment/elasti-operator")).get("A") == "1"


def test_kubeelastis_release_becomes_ours(place: Place):
    place.helm("install", "elasti", str(KUBEELASTI), "--server-side=false")
    place.as_helm_3()
    place.rig.kubectl("wait", "--for=condition=Established", CRD)
    place.rig.kubectl("apply", "-f", "-", stdin=json.dumps(ELASTISERVICE))
    before = {what: place.get(what) for what in (CRD, "deployment/elasti-resolver")}
    with pytest.raises(RenderError, match="would delete"):
        place.helm("upgrade", "elasti", str(CHART), "--set=crds.install=false")
    place.helm("upgrade", "elasti", str(CHART), f"--values={KUBEELASTI_VALUES}")
    for what, obj in before.items():
        assert place.get(what)["metadata"]["uid"] == obj["metadata"]["uid"], what
    resolver = place.get("deployment/elasti-resolver")
    assert resolver["spec"]["selector"] == before["deployment/elasti-resolver"]["spec"]["selector"]
    labels = resolver["spec"]["template"]["metadata"]["labels"]
    assert resolver["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = resolver["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["elasti", "resolver"]
    assert sorted(place.names("deployment")) == ["elasti-operator", "elasti-resolver"]

    def ports() -> list[str]:
        found = place.get("service/elasti-resolver-service")["spec"]["ports"]
        return sorted(port["name"] for port in found)

    # KubeElasti's own slices lead to the shared port, until the new operator has written others.
    assert ports() == ["admin", "proxy"]
    place.helm("upgrade", "elasti", str(CHART), f"--values={KUBEELASTI_VALUES}")
    assert ports() == ["admin"]
    # From now on the definition outlives the release, and the ElastiServices with it.
    place.helm("uninstall", "elasti", "--no-hooks")
    assert place.get("elastiservice/web", "default")["spec"]["service"] == "web"


def test_the_command_and_the_chart_take_over_from_each_other(place: Place):
    place.elasti("install", "--no-wait", "--image=elasti:1", "--env=operator:A=1")
    first = place.get("deployment/elasti-operator")
    with pytest.raises(RenderError, match="has installed Elasti in namespace elasti"):
        place.helm("install", "elasti", str(CHART))
    taking = ("--take-ownership", "--server-side=false", "--set=adopt=true")
    place.helm("install", "elasti", str(CHART), *taking, "--set=elastiController.env.A=1")
    taken = place.get("deployment/elasti-operator")
    assert taken["metadata"]["uid"] == first["metadata"]["uid"]
    assert taken["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    with pytest.raises(AssertionError, match="is the Helm release elasti"):
        place.elasti("install", "--no-wait")
    place.helm("upgrade", "elasti", str(CHART), "--set=elastiController.env.B=2")
    changed = variables(place.get("deployment/elasti-operator"))
    assert "A" not in changed
    assert changed["B"] == "2"
    said = place.elasti(
        "install", "--no-wait", "--from-helm", "--image=elasti:1", "--env=operator:C=3"
    )
    assert "removed from Helm's records" in said
    back = place.get("deployment/elasti-operator")
    assert back["metadata"]["uid"] == first["metadata"]["uid"]
    assert variables(back).keys() & {"A", "B", "C"} == {"C"}
    assert place.names("secret") == [TLS_SECRET]


def test_a_release_leaves_nothing_dozing(place: Place):
    place.helm("install", "elasti", str(CHART), "--set=doze.enabled=true")
    place.rig.kubectl("apply", "-f", "-", stdin=json.dumps(ELASTISERVICE))

    def report(doze: JsonObject | None) -> None:
        patch = json.dumps({"status": {"doze": doze}})
        what = ("elastiservice", "web", "--namespace=default", "--subresource=status")
        place.rig.kubectl("patch", *what, "--type=merge", f"--patch={patch}")

    without = ("upgrade", "elasti", str(CHART), "--set=doze.enabled=false")
    older = ("upgrade", "elasti", str(CHART), "--set=doze.enabled=true,image.tag=0.0.9")
    report({"state": "Dozing", "since": "2030-01-01T00:00:00Z"})
    for arguments, why in (
        (without, "doze.enabled=false, and"),
        (older, "is older than the chart"),
    ):
        with pytest.raises(RenderError, match=f"{why}.*default/web dozes"):
            place.helm(*arguments)
    place.helm("upgrade", "elasti", str(CHART), "--set=doze.enabled=true")
    report(None)
    place.helm(*older)
    place.helm(*without)
