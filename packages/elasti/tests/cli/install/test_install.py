"""`elasti install`: what it asks, makes, refuses and tidies up. No pod runs here."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.clusters import Cluster, cluster_on
from tests.cli.environment import Terminal

from elasti._version import __version__
from elasti.api.names import API_VERSION, ELASTISERVICES, FINALIZER, KIND
from elasti.cli.install.apply import reference
from elasti.cli.install.bundle import bundle
from elasti.cli.install.choices import OPTIONS_ANNOTATION, Choices
from elasti.cli.install.inventory import InstalledOperator
from elasti.cli.install.rollout import _timed_out, rollout
from elasti.cli.main import main
from elasti.cli.rendering import LiveOutput, Progress
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch

DEPLOYMENTS = "apps/v1/deployments"
RBAC = "rbac.authorization.k8s.io"
# The dev cluster has no admission policies.
REFS = [reference(part.obj) for part in bundle(Choices()) if part.needs is None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_on(tmp_path, nodes=0) as made:
        yield made


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for all the calls that must not change it."""
    with cluster_on(tmp_path_factory.mktemp("empty"), nodes=0) as made:
        yield made
        assert not made.names("apiextensions.k8s.io/v1/customresourcedefinitions")
        assert not made.names(DEPLOYMENTS)


def installed(cluster: Cluster, *arguments: str) -> str:
    return cluster.ok("install", "--no-wait", *arguments)


# Asking


def test_a_dry_run_names_every_object_and_makes_none(empty: Cluster):
    said = empty.ok("install", "--dry-run")
    assert [line.removesuffix(" would be created") for line in said.splitlines()] == REFS
    assert "elasti" not in empty.names("v1/namespaces")
    assert not empty.names("apiextensions.k8s.io/v1/customresourcedefinitions")


def test_server_warnings_are_printed_as_kubectl_prints_them(cluster: Cluster):
    said = cluster.run("install", "--no-wait").stderr.splitlines()
    assert said
    assert all(line.startswith("Warning: ") and "https://" not in line for line in said)


def test_a_dry_run_shows_the_very_fields_that_would_change(cluster: Cluster):
    installed(cluster)
    said = cluster.ok("install", "--dry-run", "--image", "elasti:2", "--env", "operator:A=b")
    *changed, last = said.splitlines()
    assert last == f"{len(REFS) - 2} objects unchanged"
    pod = "  spec.template.spec.containers"
    assert changed == [
        "Deployment elasti/elasti-operator would be changed",
        f"{pod}[operator].image: elasti:{__version__} -> elasti:2",
        f'{pod}[operator].env[A]: (none) -> {{"name":"A","value":"b"}}',
        "Deployment elasti/elasti-resolver would be changed",
        f"{pod}[resolver].image: elasti:{__version__} -> elasti:2",
    ]


def test_a_dry_run_shows_what_would_be_removed(cluster: Cluster):
    installed(cluster)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    said = cluster.ok("install", "--dry-run", "--namespaced", "--watch-namespace", "shop")
    assert "Role shop/elasti-operator would be created" in said
    assert "ClusterRoleBinding elasti-operator would be removed" in said
    assert "elasti-operator" in cluster.names(f"{RBAC}/v1/clusterrolebindings")


def test_a_cluster_that_pulls_images_needs_one(empty: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("elasti.cli.install.installer._DEV_CAPABILITIES", "/nowhere")
    result = empty.run("install", "--dry-run")
    assert result.exit_code == 1
    assert "--image is missing" in result.output


# Making


def test_it_makes_everything_and_the_second_time_nothing(cluster: Cluster):
    first = installed(cluster)
    assert all(f"{ref} created" in first for ref in REFS)
    second = installed(cluster)
    assert all(f"{ref} unchanged" in second for ref in REFS)


def test_what_was_changed_by_hand_is_changed_back(cluster: Cluster):
    installed(cluster)
    role = cluster.get(f"{RBAC}/v1/clusterroles", "elasti-resolver")
    assert role is not None
    cluster.apply({**_named(role), "rules": role["rules"][:1]})
    assert "ClusterRole elasti-resolver changed" in installed(cluster)
    again = cluster.get(f"{RBAC}/v1/clusterroles", "elasti-resolver")
    assert again is not None
    assert again["rules"] == role["rules"]


def _named(obj: dict[str, Any]) -> dict[str, Any]:
    kept = {"name": obj["metadata"]["name"], "labels": obj["metadata"]["labels"]}
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": kept}


def test_the_policies_let_the_api_server_of_the_cluster_through(cluster: Cluster):
    installed(cluster)
    endpoints = cluster.get("discovery.k8s.io/v1/endpointslices", "kubernetes", "default")
    assert endpoints is not None
    (server,) = (port["port"] for port in endpoints["ports"])
    assert server not in (443, 6443)
    for name in ("elasti-operator", "elasti-resolver"):
        policy = cluster.get("networking.k8s.io/v1/networkpolicies", name, "elasti")
        assert policy is not None
        assert {"protocol": "TCP", "port": server} in policy["spec"]["egress"][1]["ports"]


def test_without_dns_the_resolver_gets_the_operators_address(cluster: Cluster):
    def url() -> str:
        found = cluster.get(DEPLOYMENTS, "elasti-resolver", "elasti")
        assert found is not None
        (container,) = found["spec"]["template"]["spec"]["containers"]
        variables = {item["name"]: item.get("value", "") for item in container["env"]}
        return variables.get("ELASTI_OPERATOR_URL", "")

    installed(cluster)
    service = cluster.get("v1/services", "elasti-operator-controller-service", "elasti")
    assert service is not None
    assert url() == f"http://{service['spec']['clusterIP']}:8013"
    assert installed(cluster).count("unchanged") == len(REFS)
    installed(cluster, "--env", "resolver:ELASTI_OPERATOR_URL=http://there:1")
    assert url() == "http://there:1"
    installed(cluster)
    assert url() == "http://there:1"
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {"k8s-app": "kube-dns"},
            },
            "spec": {"ports": [{"port": 53, "protocol": "UDP"}]},
        }
    )
    installed(cluster, "--reset")
    assert url() == ""


def test_rights_that_are_no_longer_needed_are_named_with_no_wait(cluster: Cluster):
    installed(cluster)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    said = installed(cluster, "--namespaced", "--watch-namespace", "shop")
    assert "ClusterRole elasti-operator is no longer needed" in said
    assert "elasti-operator" in cluster.names(f"{RBAC}/v1/clusterroles")


def test_it_says_after_the_time_what_pods_wait_for(cluster: Cluster):
    result = cluster.run("install", "--timeout", "2")
    assert result.exit_code == 7
    assert "Error: not ready after 2 s: elasti-operator: 0 of 2 available" in result.output
    assert "kubectl -n elasti describe pods" in result.output


# Keeping

GIVEN = [
    "--image", "registry.example.com/elasti:9", "--operator-replicas", "3",
    "--env", "operator:POLLING_INTERVAL=10s", "--env", "resolver:REQ_TIMEOUT=60",
]  # fmt: skip


def state_of(cluster: Cluster) -> dict[str, tuple[str, int, dict[str, str]]]:
    found = {}
    for name in ("elasti-operator", "elasti-resolver"):
        obj = cluster.get(DEPLOYMENTS, name, "elasti")
        assert obj is not None
        (container,) = obj["spec"]["template"]["spec"]["containers"]
        variables = {item["name"]: item.get("value", "") for item in container["env"]}
        found[name] = (container["image"], obj["spec"]["replicas"], variables)
    return found


def test_a_plain_install_keeps_image_replicas_and_variables(cluster: Cluster):
    installed(cluster, *GIVEN)
    before = state_of(cluster)
    assert before["elasti-operator"][:2] == ("registry.example.com/elasti:9", 3)
    said = installed(cluster)
    assert state_of(cluster) == before
    assert said.count("unchanged") == len(REFS)
    assert said.splitlines()[0] == (
        "Options kept, without --reset: --image registry.example.com/elasti:9 --operator-replicas 3"
        " --env operator:POLLING_INTERVAL=10s --env resolver:REQ_TIMEOUT=60"
    )


def test_variables_in_any_order_roll_no_pod(cluster: Cluster):
    def generations() -> list[int]:
        found = [
            cluster.get(DEPLOYMENTS, f"elasti-{name}", "elasti")
            for name in ("operator", "resolver")
        ]
        return [obj["metadata"]["generation"] for obj in found if obj is not None]

    names = ("ZULU", "ALPHA", "MIKE")
    plain = [f"--env={program}:{name}=1" for program in ("operator", "resolver") for name in names]
    secret = [f"--env-secret=operator:{name}_KEY=login/key" for name in names]
    installed(cluster, *plain, *secret)
    before = generations()
    said = installed(cluster)
    assert said.count("unchanged") == len(REFS)
    assert generations() == before
    assert installed(cluster, *reversed(plain), *reversed(secret)).count("unchanged") == len(REFS)
    assert generations() == before


def test_an_option_given_again_replaces_that_one_alone(cluster: Cluster):
    installed(cluster, *GIVEN)
    said = installed(cluster, "--operator-replicas", "2", "--env", "operator:POLLING_INTERVAL=20s")
    image, replicas, variables = state_of(cluster)["elasti-operator"]
    assert (image, replicas) == ("registry.example.com/elasti:9", 2)
    assert variables["POLLING_INTERVAL"] == "20s"
    assert state_of(cluster)["elasti-resolver"][2]["REQ_TIMEOUT"] == "60"
    assert "--operator-replicas" not in said
    assert "POLLING_INTERVAL=10s" not in said.splitlines()[0]


def test_a_change_is_shown_before_it_is_made(cluster: Cluster):
    installed(cluster)
    said = installed(cluster, "--image", "elasti:2").splitlines()
    pod = "    spec.template.spec.containers"
    assert said[:5] == [
        "This changes Elasti in namespace elasti:",
        "  Deployment elasti/elasti-operator",
        f"{pod}[operator].image: elasti:{__version__} -> elasti:2",
        "  Deployment elasti/elasti-resolver",
        f"{pod}[resolver].image: elasti:{__version__} -> elasti:2",
    ]
    assert "Deployment elasti/elasti-operator changed" in said[5:]


def test_reset_begins_from_the_defaults(cluster: Cluster):
    installed(cluster, *GIVEN, "--no-authentication")
    installed(cluster, "--reset")
    image, replicas, variables = state_of(cluster)["elasti-operator"]
    assert (image, replicas) == (f"elasti:{__version__}", 2)
    assert "POLLING_INTERVAL" not in variables
    assert "ELASTI_AUTHENTICATE" not in variables


def default_triggers(cluster: Cluster) -> str:
    return state_of(cluster)["elasti-operator"][2].get("ELASTI_DEFAULT_TRIGGERS", "")


def test_a_new_installation_lets_targets_without_triggers_sleep(cluster: Cluster):
    installed(cluster)
    assert default_triggers(cluster) == "network"
    installed(cluster, "--image", "elasti:2")
    assert default_triggers(cluster) == "network"
    installed(cluster, "--default-trigger", "none")
    installed(cluster, "--image", "elasti:3")
    installed(cluster, "--reset")
    assert default_triggers(cluster) == ""


def test_default_triggers_come_back_with_the_rights_for_them(cluster: Cluster):
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    installed(cluster)
    installed(cluster, "--namespaced", "--watch-namespace", "shop")
    assert default_triggers(cluster) == ""
    installed(cluster, "--reset")
    assert default_triggers(cluster) == "network"


def test_an_earlier_installation_has_no_default_triggers(cluster: Cluster):
    installed(cluster, "--default-trigger", "none")
    note = MergePatch({"metadata": {"annotations": {OPTIONS_ANNOTATION: "{}"}}})
    deployments = cluster.client.resource(DEPLOYMENTS, namespace="elasti")
    cluster.call(deployments.patch("elasti-operator", note))
    assert "--default-trigger none" in installed(cluster)
    assert default_triggers(cluster) == ""


def test_where_elastiservices_were_before_there_are_no_default_triggers(cluster: Cluster):
    cluster.apply(bundle(Choices(with_namespace=False))[0].obj)
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    meta = {"name": "web", "namespace": "default"}
    spec = {"service": "web", "scaleTargetRef": ref}
    cluster.apply({"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec})
    installed(cluster)
    assert default_triggers(cluster) == ""


def test_a_namespaced_installation_reads_no_kubelets_and_says_so(cluster: Cluster):
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    said = installed(cluster, "--namespaced", "--watch-namespace", "shop")
    assert "Kubelets are not read" in said
    assert default_triggers(cluster) == ""
    assert not [line for line in said.splitlines() if "kubelet-stats" in line]


def test_namespaces_and_flags_are_kept_too(cluster: Cluster):
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    installed(cluster, "--namespaced", "--watch-namespace", "shop", "--no-authentication")
    before = state_of(cluster)
    said = installed(cluster)
    assert state_of(cluster) == before
    assert "--namespaced --watch-namespace shop --no-authentication" in said.splitlines()[0]
    assert not {"elasti-operator", "elasti-resolver"} & cluster.names(f"{RBAC}/v1/clusterroles")


def test_an_unreadable_note_of_the_options_is_ignored(cluster: Cluster):
    installed(cluster)
    note = {"elasti.truefoundry.com/install-options": '{"operator_replicas": "many"}'}
    meta = {"name": "elasti-operator", "namespace": "elasti", "annotations": note}
    cluster.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta})
    assert installed(cluster).count("unchanged") == len(REFS)


def test_doctor_is_named_with_the_namespace_of_the_installation(cluster: Cluster):
    assert "See: elasti doctor\n" in installed(cluster)
    cluster.ok("uninstall", "--yes")
    assert "See: elasti doctor --elasti-namespace team\n" in installed(cluster, "-n", "team")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("operator:POLING_INTERVAL=3s", "did you mean POLLING_INTERVAL?"),
        ("resolver:ELASTI_DRAIN_TIMOUT=3s", "did you mean ELASTI_DRAIN_TIMEOUT?"),
        ("operator:REQ_TIMEOUT=60", "is a variable of the resolver: write resolver:REQ_TIMEOUT"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(empty: Cluster, given, words):
    result = empty.run("install", "--dry-run", "--env", given)
    assert result.exit_code == 2
    assert words in result.output
    assert empty.run("install", "--dry-run", "--env", "operator:HTTPS_PROXY=x").exit_code == 0


# Refusing


def test_two_operators_for_one_namespace_are_refused(cluster: Cluster):
    installed(cluster)
    result = cluster.run("install", "--namespace", "other")
    assert result.exit_code == 1
    assert "installed in namespace elasti and watches every namespace" in result.output
    assert "elasti uninstall --namespace elasti" in result.output
    assert "other" not in cluster.names("v1/namespaces")


def test_two_operators_that_never_meet_are_welcome(cluster: Cluster):
    for name in ("shop", "blog"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        installed(cluster, "-n", f"for-{name}", "--namespaced", "--watch-namespace", name)
    result = cluster.run("install", "-n", "third", "--namespaced", "--watch-namespace", "blog")
    assert result.exit_code == 1
    assert "installed in namespace for-blog and watches blog" in result.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--doze", "--image", "example.com/elasti:v0.0.9"), "is older than this command"),
        (("--no-doze",), "--no-doze, and these targets doze"),
        (("--reset",), "--no-doze, and these targets doze"),
    ],
)
def test_no_target_is_left_dozing(cluster: Cluster, options: tuple[str, ...], why: str):
    installed(cluster, "--doze")
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    meta, spec = {"name": "web", "namespace": "shop"}, {"service": "web", "scaleTargetRef": target}
    cluster.apply({"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec})

    def report(doze: JsonObject | None) -> None:
        status = cluster.client.resource(ELASTISERVICES).subresource("status")
        patch = MergePatch({"status": {"doze": doze}})
        cluster.call(status.patch("web", patch, namespace="shop"))

    report({"state": "Dozing", "since": "2030-01-01T00:00:00Z"})
    result = cluster.run("install", "--no-wait", *options)
    assert result.exit_code == 1
    assert why in result.output
    assert "shop/web" in result.output
    assert "elasti suspend" in result.output
    installed(cluster)
    report(None)
    installed(cluster, *options)


def test_no_service_is_left_asleep_by_watching_less(cluster: Cluster):
    installed(cluster)
    for name in ("shop", "blog"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        meta = {"name": "web", "namespace": name, "finalizers": [FINALIZER]}
        spec = {"service": "web", "scaleTargetRef": target}
        cluster.apply({"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec})
    result = cluster.run("install", "--no-wait", "--watch-namespace", "shop")
    assert result.exit_code == 1
    assert "no operator would watch these ElastiServices: blog/web" in result.output
    installed(cluster, "--watch-namespace", "shop", "--watch-namespace", "blog")
    result = cluster.run("install", "--dry-run", "--watch-namespace", "blog")
    assert result.exit_code == 1
    assert "no operator would watch these ElastiServices: shop/web" in result.output
    installed(cluster, "--reset")


def resolver_variables(cluster: Cluster, namespace: str) -> str:
    found = cluster.get("apps/v1/deployments", "elasti-resolver", namespace)
    assert found is not None
    return str(found["spec"]["template"]["spec"]["containers"][0]["env"])


def test_kubeelasti_elsewhere_is_named_with_the_way_to_take_its_place(cluster: Cluster):
    labels = {"app.kubernetes.io/part-of": "elasti", "control-plane": "controller-manager"}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "old"}},
        deployment("elasti-operator-controller-manager", "old", labels),
    )
    result = cluster.run("install")
    assert result.exit_code == 1
    assert "KubeElasti is installed in namespace old" in result.output
    assert "elasti install --namespace old" in result.output
    said = installed(cluster, "--namespace", "old")
    assert "its shared port stays open" in said
    assert "ELASTI_RESOLVER_PROXY_PORT" in resolver_variables(cluster, "old")
    installed(cluster, "--namespace", "old", "--no-shared-port")
    assert "ELASTI_RESOLVER_PROXY_PORT" not in resolver_variables(cluster, "old")


def test_a_deployment_that_cannot_become_ours_is_found_before_anything_changes(cluster: Cluster):
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elasti"}},
        deployment("elasti-resolver", "elasti", {"app": "elasti-resolver", "release": "x"}),
    )
    result = cluster.run("install", "--no-wait")
    assert result.exit_code == 1
    assert "Deployment elasti/elasti-resolver is refused" in result.output
    assert "wake its sleeping targets first" in result.output
    assert "kubectl delete deployment elasti-resolver -n elasti\n" in result.output
    # Orphaned pods do not live on: the new Deployment has their selector, adopts them and replaces them.
    assert "orphan" not in result.output
    assert not cluster.names("apiextensions.k8s.io/v1/customresourcedefinitions")


def deployment(name: str, namespace: str, labels: dict[str, str]) -> dict[str, Any]:
    containers = [{"name": "main", "image": "x", "command": ["sleep", "1"]}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }


@pytest.mark.parametrize("option", ["--dry-run", "--no-wait"])
def test_a_namespace_that_is_not_there_is_named(empty: Cluster, option: str):
    result = empty.run("install", option, "--no-namespace")
    assert result.exit_code == 3
    assert "namespace elasti does not exist" in result.output
    result = empty.run("install", option, "--namespaced", "--watch-namespace", "shop")
    assert result.exit_code == 3
    assert "kubectl create namespace shop" in result.output
    assert not empty.names(DEPLOYMENTS)


@pytest.mark.parametrize("option", ["--dry-run", "--no-wait"])
def test_without_rights_nothing_is_changed_and_the_rule_is_named(empty: Cluster, option: str):
    result = empty.run("install", option, kubeconfig=empty.user("nobody"))
    assert result.exit_code == 4
    assert "Traceback" not in result.output
    assert 'resources: ["deployments"]' in result.output
    everything_but = {"apiGroups": ["*"], "verbs": ["*"], "resources": _ALL_BUT_POLICIES}
    result = empty.run("install", option, kubeconfig=empty.user("some", everything_but))
    assert result.exit_code == 4
    assert 'resources: ["networkpolicies"]' in result.output
    assert "elasti" not in empty.names("v1/namespaces")


_ALL_BUT_POLICIES = [
    "namespaces", "customresourcedefinitions", "serviceaccounts", "clusterroles", "roles", "services", "secrets",
    "clusterrolebindings", "rolebindings", "deployments", "poddisruptionbudgets", "priorityclasses",
    "validatingadmissionpolicies", "validatingadmissionpolicybindings",
]  # fmt: skip


def test_a_user_with_rights_in_one_namespace_can_install_there(cluster: Cluster):
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
        next(part.obj for part in bundle(Choices()) if part.obj["kind"].startswith("Custom")),
    )
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    mine = cluster.user("mine", everything, namespace="shop")
    call = ["-n", "shop", "--namespaced", "--watch-namespace", "shop", "--no-crd", "--no-namespace"]
    asked = cluster.ok("install", "--dry-run", *call, kubeconfig=mine)
    assert "Deployment shop/elasti-operator would be created" in asked
    cluster.ok("install", "--no-wait", *call, kubeconfig=mine)
    assert cluster.names(DEPLOYMENTS) == {"elasti-operator", "elasti-resolver"}


def test_without_the_definition_it_does_not_wait_without_effect(empty: Cluster):
    result = empty.run("install", "--no-crd")
    assert result.exit_code == 6
    assert "elasti crd | kubectl apply" in result.stderr


def test_without_a_cluster_it_says_so(empty: Cluster):
    result = empty.run("install", kubeconfig=empty.nowhere())
    assert result.exit_code == 5
    assert "127.0.0.1:9" in result.output
    result = empty.run("install", "--context", "other")
    assert result.exit_code == 5
    assert "other" in result.output


@pytest.mark.parametrize(
    "wrong", [["--timeout", "0"], ["--timeout", "soon"], ["--namespaced"], ["--env", "A=b"], ["it"]]
)
def test_a_wrong_call_is_a_usage_error(empty: Cluster, wrong: list[str]):
    assert empty.run("install", *wrong).exit_code == 2


# How far it is


def deployment_at(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "d", "generation": 2},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 2, **status},
    }


ALL = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}


@pytest.mark.parametrize(
    ("status", "done", "words"),
    [
        (ALL, True, "2 of 2 available"),
        ({**ALL, "observedGeneration": 1}, False, "0 of 2 new, 2 available"),
        ({**ALL, "updatedReplicas": 1}, False, "1 of 2 new, 2 available"),
        ({**ALL, "replicas": 3}, False, "2 of 2 new, 2 available"),
        ({**ALL, "availableReplicas": 1}, False, "1 of 2 available"),
        ({}, False, "0 of 2 available"),
    ],
)
def test_a_rollout_is_done_when_every_pod_is_new_and_available(status, done, words):
    seen = rollout(deployment_at(**status))
    assert (seen.is_done, seen.words) == (done, words)


def test_lasting_problems_of_pods_are_shown_and_passing_ones_are_not():
    def pod(waiting: dict[str, str], **meta: Any) -> dict[str, Any]:
        return {
            "metadata": {"name": "p", **meta},
            "status": {"containerStatuses": [{"state": {"waiting": waiting}}]},
        }

    pull = {"reason": "ErrImagePull", "message": "not found"}
    pods = [pod(pull), pod({"reason": "ContainerCreating"}), pod(pull, deletionTimestamp="now")]
    refused = {"type": "ReplicaFailure", "status": "True", "message": "quota"}
    seen = rollout(deployment_at(conditions=[refused]), pods)
    assert seen.troubles == ("no pod can be created: quota", "pod p: ErrImagePull: not found")


def test_a_crash_loop_is_shown_with_the_way_to_its_log():
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    pod = {
        "metadata": {"name": "p"},
        "status": {"containerStatuses": [{"state": {"waiting": waiting}}]},
    }
    late = rollout(deployment_at(), [pod])
    failure = _timed_out([late], "team", 180.0)
    assert f"kubectl -n team logs deployment/{late.name}" in failure.remedy


def test_those_who_may_view_or_edit_may_do_so_with_elastiservices(cluster: Cluster):
    installed(cluster)
    group = "elasti.truefoundry.com"

    def verbs(role: str) -> set[str]:
        rules = (cluster.get(f"{RBAC}/v1/clusterroles", role) or {})["rules"]
        return {verb for rule in rules if group in rule["apiGroups"] for verb in rule["verbs"]}

    cluster.eventually(lambda: "create" in verbs("edit") & verbs("admin"))
    assert verbs("view") == {"get", "list", "watch"}


@pytest.mark.parametrize(
    ("theirs", "ours", "meet"),
    [((), (), True), (("a",), (), True), (("a",), ("b",), False), (("a", "b"), ("b",), True)],
)
def test_installations_meet_where_both_watch(theirs, ours, meet):
    assert InstalledOperator("x", theirs, is_ours=True).overlaps(ours) is meet


# As a person sees it


def test_interrupted_it_says_that_it_can_go_on(tmp_path: Path):
    with cluster_on(tmp_path, nodes=0) as cluster:
        process = subprocess.Popen(
            [sys.executable, "-m", "elasti", "install", "--kubeconfig", str(cluster.admin)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        said = ""
        while "0 of 2 available" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest.endswith("Stopped half-way. Run it again to continue.\n")


def test_on_a_terminal_states_change_in_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    output = Terminal()
    progress = Progress(LiveOutput(output))
    with progress.waiting() as waiting:
        waiting.show("operator", "1 of 2")
        waiting.show("resolver", "2 of 2")
    progress.done("Role a", "created")
    assert "\x1b[32mcreated" in output.getvalue()
    # The moving lines are cut by the terminal, replaced in place, and gone in the end.
    assert output.getvalue().count("operator: 1 of 2\n") == 2
    assert output.getvalue().count("\x1b[1F\x1b[J") == 1
    assert "\x1b[2F\x1b[JRole a" in output.getvalue()


@pytest.mark.parametrize("name", ["install", "uninstall", "manifests"])
def test_the_guide_explains_every_option(name: str):
    guide = (Path(__file__).parents[5] / "docs/guide/installing.md").read_text()
    command = main.get_command(click.Context(main), name)
    assert command is not None
    for parameter in command.params:
        long = next(option for option in parameter.opts if option.startswith("--"))
        if long not in ("--help", "--output"):
            assert f"`{long}" in guide, long


# Beside Helm


def of_helm(cluster: Cluster) -> None:
    """Let the installation be as if our chart had made it, with Helm's record of a release."""
    cluster.ok("install", "--no-wait", "--env", "operator:A=1")
    marks = {
        "metadata": {
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"meta.helm.sh/release-name": "edge", OPTIONS_ANNOTATION: None},
        }
    }

    async def marked() -> None:
        deployments = cluster.client.resource(DEPLOYMENTS, namespace="elasti")
        await deployments.patch("elasti-operator", MergePatch(marks))

    cluster.call(marked())
    record = {"name": "sh.helm.release.v1.edge.v1", "namespace": "elasti"}
    labels = {"owner": "helm", "name": "edge"}
    meta = {**record, "labels": labels}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta})


def test_a_release_of_helm_is_left_to_helm(cluster: Cluster):
    of_helm(cluster)
    for call in (["install"], ["install", "--dry-run"], ["uninstall", "--yes"]):
        result = cluster.run(*call)
        assert result.exit_code == 1
        assert "Elasti in namespace elasti is the Helm release edge" in result.output
        assert f"helm {'un' if 'un' in call[0] else 'upgrade'}" in result.output
    elsewhere = cluster.run("install", "--namespace", "other")
    assert "helm uninstall edge --namespace elasti" in elsewhere.output


def test_a_release_of_helm_is_taken_over_and_forgotten(cluster: Cluster):
    of_helm(cluster)
    said = cluster.ok("install", "--no-wait", "--from-helm")
    assert "Helm release edge removed from Helm's records" in said
    assert cluster.names("v1/secrets") == {"elasti-tls"}
    assert "unchanged" in cluster.ok("install", "--no-wait")
