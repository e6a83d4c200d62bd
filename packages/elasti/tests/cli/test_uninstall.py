"""`elasti uninstall`: what it refuses, keeps and removes, and that it goes on where it ended."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.clusters import Cluster, cluster_on

from elasti.api.crd import custom_resource_definition
from elasti.api.names import (
    API_VERSION,
    ELASTISERVICES,
    FINALIZER,
    KEEP_AWAKE_ANNOTATION,
    KIND,
    PLURAL,
    QUARANTINE_CONFIG_MAP,
    WAKE_ANNOTATION,
)
from elasti.cli.install.inventory import KINDS
from elasti.cli.rendering import Progress
from elasti.cli.uninstall.survey import UninstallSurvey, announcement, refusal
from elasti.cli.uninstall.targets import UninstallTargets
from elasti.cli.uninstall.uninstaller import _not_woken
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.times import unix_seconds

CRDS = "apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{PLURAL}.elasti.truefoundry.com"
DEPLOYMENTS = "apps/v1/deployments"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_on(tmp_path, nodes=0) as made:
        yield made


# The dev cluster has no admission policies.
SERVED = [kind for kind in KINDS if not kind.resource.startswith("admissionregistration")]


def left_of(cluster: Cluster) -> list[str]:
    """Return whatever of an installation is still there."""
    return [
        f"{kind.kind} {name}"
        for kind in SERVED
        for name in sorted(cluster.names(kind.resource))
        if name.startswith("elasti-")
    ]


def namespace(name: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def elastiservice(name: str, *, place: str = "default", held: bool = False) -> JsonObject:
    meta: JsonObject = {"name": name, "namespace": place}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": meta | ({"finalizers": [FINALIZER]} if held else {}),
        "spec": {
            "service": name,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        },
    }


def asleep(cluster: Cluster, name: str) -> None:
    """Let an ElastiService be as if its target slept, with nobody who could wake it."""
    cluster.apply(elastiservice(name, held=True))
    status: JsonObject = {"status": {"mode": "proxy", "state": "Proxy", "replicas": 0}}

    async def written() -> None:
        objects = cluster.client.resource(ELASTISERVICES, namespace="default")
        found = await objects.get(name)
        await objects.subresource("status").replace({**found, **status})

    cluster.call(written())
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
        },
        deployment(name),
    )


def deployment(name: str) -> JsonObject:
    labels = {"app": name}
    containers = [{"name": "main", "image": "x", "command": ["sleep", "1"]}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }


def test_it_removes_all_but_the_namespace_and_says_so_when_nothing_is_there(cluster: Cluster):
    cluster.ok("install", "--no-wait")
    resting = {"name": QUARANTINE_CONFIG_MAP, "namespace": "elasti"}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": resting})
    said = cluster.ok("uninstall", "--yes")
    assert left_of(cluster) == []
    assert QUARANTINE_CONFIG_MAP not in cluster.names("v1/configmaps")
    assert CRD not in cluster.names(CRDS)
    assert "elasti" in cluster.names("v1/namespaces")
    assert said.index("Deployment elasti/elasti-operator removed") < said.index("ServiceAccount")
    assert said.rstrip().endswith("kubectl delete namespace elasti")
    assert cluster.ok("uninstall") == "Nothing of Elasti is in namespace elasti.\n"


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_a_no_or_no_answer_changes_nothing(cluster: Cluster, answer: str):
    cluster.ok("install", "--no-wait")
    cluster.apply(elastiservice("web"))
    before = left_of(cluster)
    result = cluster.run("uninstall", input=answer)
    assert result.exit_code == 1
    assert "nothing was removed" in result.stderr
    assert "ElastiServices deleted: 1" in result.output
    assert "kubectl get elastiservices -A -o yaml" in result.output
    assert left_of(cluster) == before
    assert cluster.names(ELASTISERVICES) == {"web"}


@pytest.mark.parametrize("seed", range(3))
def test_an_uninstall_that_was_killed_goes_on_where_it_ended(cluster: Cluster, seed: int):
    cluster.ok("install", "--no-wait")
    order = [(kind, name) for kind in SERVED for name in sorted(_ours(cluster, kind))]
    gone = random.Random(seed).randrange(1, len(order))
    for kind, name in order[:gone]:
        place = "" if kind.is_clusters else "elasti"
        resource = cluster.client.resource(kind.resource)
        cluster.call(resource.delete(name, namespace=place or None))
    cluster.ok("uninstall", "--yes")
    assert left_of(cluster) == []
    assert CRD not in cluster.names(CRDS)


def _ours(cluster: Cluster, kind: Any) -> set[str]:
    return {name for name in cluster.names(kind.resource) if name.startswith("elasti-")}


def test_elastiservices_end_also_where_no_operator_works(cluster: Cluster):
    cluster.ok("install", "--no-wait")
    cluster.apply(elastiservice("web", held=True), elastiservice("blog"))
    said = cluster.ok("uninstall", "--yes", "--timeout", "60")
    assert "no operator works in the cluster" in said
    assert CRD not in cluster.names(CRDS)
    assert left_of(cluster) == []


def test_what_cannot_be_woken_is_not_left_dark(cluster: Cluster):
    cluster.ok("install", "--no-wait")
    asleep(cluster, "web")
    before = left_of(cluster)
    result = cluster.run("uninstall", "--yes", "--timeout", "4")
    assert result.exit_code == 7
    assert "not awake after 4 s: default/web" in result.output
    assert "--force" in result.output
    # The operator that stood in did what operators do; nothing is less than before.
    assert {*before} <= {*left_of(cluster)}
    assert cluster.names(ELASTISERVICES) == {"web"}


def test_what_is_woken_does_not_fall_asleep_while_it_starts(cluster: Cluster):
    cluster.ok("install", "--no-wait")
    asleep(cluster, "web")
    survey: Any = SimpleNamespace(elastiservices=True, watches=())
    silent: Any = None
    targets = UninstallTargets(cluster.client, survey, silent)
    cluster.call(targets.ask_to_wake(300))
    found = cluster.get(ELASTISERVICES, "web", "default")
    assert found is not None
    asked = found["metadata"]["annotations"]
    kept = unix_seconds(asked[KEEP_AWAKE_ANNOTATION]) - unix_seconds(asked[WAKE_ANNOTATION])
    assert kept == pytest.approx(300, abs=1)
    cluster.call(targets.let_go())
    left = cluster.get(ELASTISERVICES, "web", "default")
    assert left is not None
    assert KEEP_AWAKE_ANNOTATION not in left["metadata"]["annotations"]


def test_with_force_it_goes_on_all_the_same(cluster: Cluster):
    cluster.ok("install", "--no-wait")
    asleep(cluster, "web")
    cluster.ok("uninstall", "--yes", "--force", "--timeout", "2")
    assert left_of(cluster) == []
    assert CRD not in cluster.names(CRDS)


def test_kept_elastiservices_stay_without_a_finalizer(cluster: Cluster):
    cluster.ok("install", "--no-wait")
    cluster.apply(elastiservice("web", held=True))
    said = cluster.ok("uninstall", "--yes", "--keep-crd")
    assert "ElastiServices kept, with their targets awake: 1" in said
    found = cluster.get(ELASTISERVICES, "web", "default")
    assert found is not None
    assert not found["metadata"].get("finalizers")
    assert left_of(cluster) == []
    assert "Nothing of Elasti" in cluster.ok("uninstall", "--keep-crd")


def test_wake_only_stops_the_programs_and_removes_nothing_else(cluster: Cluster):
    cluster.ok("install", "--no-wait")
    cluster.apply(elastiservice("web", held=True))
    before = left_of(cluster)
    cluster.ok("uninstall", "--yes", "--wake-only")
    found = cluster.get(ELASTISERVICES, "web", "default")
    assert found is not None
    assert not found["metadata"].get("finalizers")
    assert {*before} - {*left_of(cluster)} == {
        item for item in before if item.startswith("Deployment ")
    }
    assert CRD in cluster.names(CRDS)


def test_a_definition_that_others_need_is_not_removed(cluster: Cluster):
    cluster.apply(namespace("shop"), namespace("blog"))
    for name in ("shop", "blog"):
        cluster.ok(
            "install", "--no-wait", "-n", f"for-{name}", "--namespaced", "--watch-namespace", name
        )
    result = cluster.run("uninstall", "--yes", "-n", "for-shop")
    assert result.exit_code == 1
    assert "another installation needs it (namespace for-blog)" in result.output
    assert "--keep-crd" in result.output
    cluster.ok("uninstall", "--yes", "-n", "for-shop", "--keep-crd")
    said = cluster.ok("uninstall", "-n", "for-shop")
    assert "Nothing of Elasti is in namespace for-shop" in said
    cluster.apply(elastiservice("web", place="default"))
    result = cluster.run("uninstall", "--yes", "-n", "for-blog")
    assert result.exit_code == 1
    assert "would be lost with it: default/web" in result.output
    assert "elasti-operator" in cluster.names(DEPLOYMENTS)


def test_a_definition_of_another_installation_stays(cluster: Cluster):
    cluster.apply(custom_resource_definition())
    cluster.ok("install", "--no-wait", "--no-crd")
    said = cluster.ok("uninstall", "--yes")
    assert "`elasti install` did not make it" in said
    assert CRD in cluster.names(CRDS)


def test_without_a_definition_the_rest_goes(cluster: Cluster):
    cluster.ok("install", "--no-wait", "--no-crd")
    cluster.ok("uninstall", "--yes")
    assert left_of(cluster) == []


def test_without_rights_and_without_a_cluster_it_says_so(cluster: Cluster):
    cluster.ok("install", "--no-wait")
    before = left_of(cluster)
    result = cluster.run("uninstall", "--yes", kubeconfig=cluster.user("nobody"))
    assert result.exit_code == 4
    assert "verbs:" in result.output
    readers = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    result = cluster.run("uninstall", "--yes", kubeconfig=cluster.user("reader", readers))
    assert result.exit_code == 4
    assert left_of(cluster) == before
    result = cluster.run("uninstall", "--yes", kubeconfig=cluster.nowhere())
    assert result.exit_code == 5
    assert cluster.run("uninstall", "--timeout", "0").exit_code == 2


DOZING = {
    "state": "Dozing",
    "since": "2030-01-01T00:00:00Z",
    "selector": "app=web",
    "containers": [{"template": "abc", "name": "main", "cpu": "900m", "dozedCpu": "1m"}],
}


def test_what_keeps_small_requests_is_named_with_the_command(cluster: Cluster):
    """An operator restores them; this is for the case that none can."""
    cluster.ok("install", "--no-wait")
    asleep(cluster, "web")
    requests = {"resources": {"requests": {"cpu": "1m"}}}
    labels = {"app": "web", "pod-template-hash": "abc"}
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default", "labels": labels},
            "spec": {"containers": [{"name": "main", "image": "x", **requests}]},
        }
    )

    async def written() -> None:
        objects = cluster.client.resource(ELASTISERVICES, namespace="default")
        found = await objects.get("web")
        status = {"mode": "serve", "state": "Serve", "replicas": 1, "doze": DOZING}
        await objects.subresource("status").replace({**found, "status": status})

    cluster.call(written())
    result = cluster.run("uninstall", "--yes", "--timeout", "4")
    assert result.exit_code == 7
    assert (
        "requests are not restored; run kubectl patch pod web -n default --subresource resize"
        """ -p '{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"900m"}}}]}}'"""
    ) in result.output


# In words


def survey_of(**more: Any) -> UninstallSurvey:
    given: dict[str, Any] = {
        "namespace": "elasti",
        "watches": (),
        "elastiservices": (),
        "objects": (),
        "has_definition": True,
        **more,
    }
    return UninstallSurvey(**given)


def test_the_plan_counts_who_sleeps():
    sleeping = {**elastiservice("web"), "status": {"state": "Proxy"}}
    awake = {**elastiservice("blog"), "status": {"state": "Serve"}}
    lines = list(announcement(survey_of(elastiservices=(sleeping, awake)), keep=False))
    assert "  ElastiServices deleted: 2 (asleep or dozing, and woken first: 1)" in lines
    assert "  the CustomResourceDefinition goes last" in lines
    napping = {**elastiservice("shop"), "status": {"state": "Serve", "doze": DOZING}}
    both = announcement(survey_of(elastiservices=(sleeping, napping, awake)), keep=False)
    assert "  ElastiServices deleted: 3 (asleep or dozing, and woken first: 2)" in both
    kept = list(announcement(survey_of(elastiservices=(sleeping, awake)), keep=True))
    assert "  the CustomResourceDefinition is kept" in kept


@pytest.mark.parametrize(
    ("states", "loss"),
    [
        (("Proxy", "Serve"), "Without Elasti their Services would not answer requests"),
        (("Serve",), "Without Elasti their pods would keep small requests"),
    ],
)
def test_what_is_lost_is_what_a_user_would_notice(states: tuple[str, ...], loss: str):
    left = [{**elastiservice("web"), "status": {"state": one, "doze": DOZING}} for one in states]
    assert loss in str(_not_woken(left, 9))


def test_nothing_is_refused_if_no_other_installation_needs_it():
    assert refusal(survey_of(), keep=False) is None
    assert refusal(survey_of(needed_by="others"), keep=True) is None
    assert refusal(survey_of(needed_by="others", has_definition=False), keep=False) is None
    assert refusal(survey_of(needed_by="others"), keep=False) is not None


def test_progress_says_every_state_once(capsys: pytest.CaptureFixture[str]):
    progress = Progress()
    with progress.waiting() as waiting:
        for state in ("1", "1", "2", "2", "1"):
            waiting.show("pods", state)
    progress.done("Role [a]", "removed")
    assert capsys.readouterr().out == "pods: 1\npods: 2\npods: 1\nRole [a] removed\n"
