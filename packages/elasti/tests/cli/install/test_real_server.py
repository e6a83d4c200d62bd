"""What Kubernetes' own API server says to an installation, without one being made."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from elasti.api.crd import template_definition
from elasti.api.names import (
    API_VERSION,
    DRAIN_KEY,
    GROUP,
    KEEP_AWAKE_ANNOTATION,
    KIND,
    OPERATOR,
    PLURAL,
    PRIVATE_LABEL,
    SLEEP_ANNOTATION,
    SLEEP_LABEL,
    TEMPLATE_ANNOTATION,
    WAKE_ANNOTATION,
    resolver_slice_name,
)
from elasti.cli.install.access import wake_policy
from elasti.cli.install.apply import reference
from elasti.cli.install.bundle import bundle, definition
from elasti.cli.install.choices import Choices, Program, account
from elasti.cli.install.enrolment_policy import enrolment_policy
from elasti.cli.install.operator_policy import operator_policy
from elasti.cli.main import main
from kubeloop.objects.core import MANAGED_BY_LABEL, SERVICE_LABEL
from tests.controlplane.rig import ControlPlane
from tests.waiting import eventually_blocking

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(120)]


def run(controlplane: ControlPlane, *arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_dry_run_is_accepted_for_every_object(controlplane: ControlPlane):
    watched = controlplane.create_namespace("watched")
    place = controlplane.create_namespace("place")
    access = ("--kubeconfig", str(controlplane.kubeconfig))
    for choices, call in (
        (Choices(), ()),
        (
            Choices(namespace=place, namespaced=True, watch_namespaces=(watched,)),
            ("-n", place, "--namespaced", "--watch-namespace", watched),
        ),
    ):
        said = run(controlplane, "install", "--dry-run", "--image=elasti:1", *access, *call)
        assert "not checked" not in said
        told = [line.split(" would be ")[0] for line in said.splitlines() if line[0] != " "]
        for part in bundle(choices):
            ref = reference(part.obj)
            assert ref in told or f"{ref} unchanged" in told, said


def test_an_image_that_no_node_could_pull_is_refused(controlplane: ControlPlane):
    access = ("--kubeconfig", str(controlplane.kubeconfig))
    result = CliRunner().invoke(main, ["install", "--dry-run", *access])
    assert result.exit_code == 1
    assert "--image is missing" in result.output


def test_kubectl_takes_the_manifests(controlplane: ControlPlane):
    place = controlplane.create_namespace("place")
    for call in ((), ("--namespaced", "--watch-namespace", place, "--no-authentication")):
        manifests = run(controlplane, "manifests", "-n", place, *call)
        dry = ("--server-side", "--dry-run=server", "--force-conflicts", "-f", "-")
        said = controlplane.kubectl("apply", *dry, stdin=manifests)
        assert said.count("serverside-applied") == manifests.count("\n---\n") + 1


FREE = {"annotations": {WAKE_ANNOTATION: "now", KEEP_AWAKE_ANNOTATION: "later"}}
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
REFUSED = (
    {"spec": {"service": "other"}},
    {"spec": {"scaleTargetRef": TARGET | {"name": "other"}}},
    {"metadata": {"annotations": {SLEEP_ANNOTATION: "now"}}},
    {"metadata": {"annotations": {"mine": None}}},
    {"metadata": {"annotations": None}},
    {"metadata": {"labels": {"a": "b"}}},
    {"metadata": {"finalizers": None}},
)


BROKEN: dict[str, dict[str, Any]] = {
    "write apiVersion: apps/v1": {"scaleTargetRef": TARGET | {"apiVersion": "app/v1"}},
    "this kind cannot be scaled": {"scaleTargetRef": TARGET | {"kind": "Service"}},
    "write schedule as five cron fields": {"enabledPeriod": {"schedule": "0 24 * * *"}},
    "write duration like": {"enabledPeriod": {"duration": "8 hours"}},
    "write timezone as an IANA name": {"enabledPeriod": {"timezone": "europe/berlin"}},
    "write either during or dates": {"schedules": [{"name": "a", "keep": "Awake"}]},
    "write during like": {"schedules": [{"name": "a", "keep": "Awake", "during": "nights"}]},
    "write dates like": {"schedules": [{"name": "a", "keep": "Awake", "dates": "Christmas"}]},
    "warmBy needs keep: Awake": {
        "schedules": [
            {"name": "a", "keep": "Free", "during": "Mon 08:00-09:00", "warmBy": True},
        ]
    },
    "doze.zeroAfter needs mode": {"sleep": {"mode": "Doze", "doze": {"zeroAfter": "1h"}}},
    "doze needs mode": {"sleep": {"doze": {"cpu": "2m"}}},
    "write CPU as a quantity": {"sleep": {"mode": "Doze", "doze": {"cpu": "few"}}},
    "write at least 1m": {"sleep": {"mode": "Doze", "doze": {"cpu": "0"}}},
    "write Auto, or whole seconds": {"handover": {"engageSettle": "5m"}},
    "policy: Observe needs suspend: true": {"policy": "Observe"},
    "targets names scaleTargetRef": {"targets": [TARGET]},
    "a http trigger needs metadata.path": {"triggers": [{"type": "http", "metadata": {}}]},
    "a keda trigger needs metadata.scaledObject": {"triggers": [{"type": "keda"}]},
    "a pods trigger needs metadata.metric": {"triggers": [{"type": "pods", "metadata": {}}]},
    "a prometheus trigger needs metadata.query": {"triggers": [{"type": "prometheus"}]},
}
"""An object for each rule of the definition, by how the rule's message begins."""
ACCEPTED: tuple[dict[str, Any], ...] = (
    {"scaleTargetRef": TARGET | {"kind": "deployments"}},
    {"scaleTargetRef": TARGET | {"apiVersion": "argoproj.io/v1alpha1", "kind": "rollouts"}},
    {"scaleTargetRef": TARGET | {"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet"}},
    {"enabledPeriod": {"schedule": "*/5 0-6,22 L JAN-mar MON#2,5L", "duration": "1h30m"}},
    {"enabledPeriod": {"schedule": "0 0 * * 7", "timezone": "America/Argentina/Buenos_Aires"}},
    {"enabledPeriod": {"timezone": "Etc/GMT+5"}},
    {"handover": {}},
    {"handover": {"engageSettle": "Auto"}},
    {"handover": {"engageSettle": 600}},
    {"schedules": [{"name": "a", "keep": "Asleep", "during": "Fri 21:00 - Mon 06:00"}]},
    {"policy": "Observe", "suspend": True},
    {"targets": [TARGET | {"name": f"worker-{number}"} for number in range(16)]},
)


def rules(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
        for part in schema.values():
            yield from rules(part)


def test_every_rule_of_the_definition_refuses_what_breaks_it(controlplane: ControlPlane):
    place = controlplane.create_namespace("place")
    define(controlplane)
    path = f"/apis/{API_VERSION}/namespaces/{place}/{PLURAL}?dryRun=All"

    def made(spec: dict[str, Any]) -> tuple[int, str]:
        spec = {"service": "web", "scaleTargetRef": TARGET, **spec}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}
        answer = controlplane.api.request("POST", path, body)
        return answer.status, answer.text

    for spec in ({}, *ACCEPTED):
        status, said = made(spec)
        assert status == 201, said
    messages = set(rules(definition()["spec"]["versions"][0]["schema"]))
    untested = [text for text in messages if not text.startswith(tuple(BROKEN))]
    assert (untested, len(messages)) == ([], len(BROKEN))
    for message, changes in BROKEN.items():
        status, said = made(changes)
        assert (status, message in said) == (422, True), said


PODS: dict[str, Any] = {"type": "pods", "metadata": {"metric": "requests", "threshold": 1}}
QUERY: dict[str, Any] = {"type": "prometheus", "metadata": {"query": "x", "threshold": 1}}
# What users get wrong in a first ElastiService, and whether `kubectl apply` refuses it.
MISTAKES: dict[str, tuple[dict[str, Any], bool]] = {
    "a Pod": ({"scaleTargetRef": TARGET | {"kind": "Pod"}}, True),
    "a DaemonSet": ({"scaleTargetRef": TARGET | {"kind": "DaemonSet"}}, True),
    "a misspelt kind": ({"scaleTargetRef": TARGET | {"kind": "Deploymnet"}}, True),
    "a misspelt group": ({"scaleTargetRef": TARGET | {"apiVersion": "app/v1"}}, True),
    "a group without a version": ({"scaleTargetRef": TARGET | {"apiVersion": "apps"}}, True),
    "no target name": ({"scaleTargetRef": TARGET | {"name": ""}}, True),
    "a target that does not exist": ({"scaleTargetRef": TARGET | {"name": "wbe"}}, False),
    "no Service name": ({"service": ""}, True),
    "a Service with a capital": ({"service": "Web"}, True),
    "a Service with a port": ({"service": "web:80"}, True),
    "a Service that does not exist": ({"service": "wbe"}, False),
    "a misspelt field": ({"cooldownperiod": 900}, True),
    "a cooldown with a unit": ({"cooldownPeriod": "15m"}, True),
    "a negative cooldown": ({"cooldownPeriod": -1}, True),
    "no replicas": ({"minTargetReplicas": 0}, True),
    "an hour that is not one": ({"enabledPeriod": {"schedule": "0 25 * * *"}}, True),
    "four cron fields": ({"enabledPeriod": {"schedule": "0 8 * *"}}, True),
    "a duration in words": ({"enabledPeriod": {"duration": "8 hours"}}, True),
    "an abbreviated zone": ({"enabledPeriod": {"timezone": "europe/berlin"}}, True),
    "a misspelt zone": ({"enabledPeriod": {"timezone": "Europe/Berln"}}, False),
    "a misspelt trigger": ({"triggers": [QUERY | {"type": "promethues"}]}, True),
    "a misspelt key": ({"triggers": [{**QUERY, "metadata": {"querry": "x"}}]}, True),
    "a query without a threshold": ({"triggers": [{**QUERY, "metadata": {"query": "x"}}]}, False),
    "a port beyond 65535": (
        {"triggers": [{**PODS, "metadata": PODS["metadata"] | {"port": 99999}}]},
        False,
    ),
    "a misspelt autoscaler": ({"autoscaler": {"type": "hpaa", "name": "web"}}, True),
}


def test_at_most_eight_of_twenty_five_mistakes_pass_the_server(controlplane: ControlPlane):
    place = controlplane.create_namespace("place")
    define(controlplane)
    path = f"/apis/{API_VERSION}/namespaces/{place}/{PLURAL}?dryRun=All&fieldValidation=Strict"
    refused: dict[str, bool] = {}
    for name, (changes, _) in MISTAKES.items():
        spec = {"service": "web", "scaleTargetRef": TARGET, **changes}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "web"}, "spec": spec}
        answer = controlplane.api.request("POST", path, body)
        assert answer.status in (201, 400, 422), answer.text
        refused[name] = answer.status != 201
    assert refused == {name: known for name, (_, known) in MISTAKES.items()}
    assert (len(refused), list(refused.values()).count(False) <= 8) == (25, True)


def test_a_stored_object_that_breaks_a_new_rule_can_still_be_written_and_removed(
    controlplane: ControlPlane,
):
    place = controlplane.create_namespace("place")
    lenient = definition()
    for part in ("scaleTargetRef", "enabledPeriod"):
        spec = lenient["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        del spec["properties"][part]["x-kubernetes-validations"]
    apply(controlplane, lenient)
    controlplane.kubectl(
        "wait", "--for=condition=Established", f"crd/{lenient['metadata']['name']}"
    )
    path = f"/apis/{API_VERSION}/namespaces/{place}/{PLURAL}"
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "web", "finalizers": ["a/b"]},
        "spec": {
            "service": "web",
            "scaleTargetRef": TARGET | {"kind": "DaemonSet"},
            "enabledPeriod": {"schedule": "never"},
        },
    }
    try:
        assert controlplane.api.request("POST", path, body).status == 201
    finally:
        define(controlplane)
    web = f"{path}/web"
    merge = "application/merge-patch+json"
    status = {"status": {"mode": "serve"}}
    assert (
        controlplane.api.request("PATCH", f"{web}/status", status, content_type=merge).status == 200
    )
    assert controlplane.api.request("DELETE", web).status == 200
    free = {"metadata": {"finalizers": None}}
    assert controlplane.api.request("PATCH", web, free, content_type=merge).status == 200
    assert controlplane.api.request("GET", web).status == 404


def test_an_account_that_may_only_patch_may_only_wake(controlplane: ControlPlane):
    """The resolver's own account, which a compromised resolver has, is bound by the same policy."""
    place = controlplane.create_namespace("place")
    confined = Choices(namespace=place, namespaced=True, watch_namespaces=(place,))
    kinds = ("ServiceAccount", "Role", "RoleBinding")
    define(controlplane)
    apply(controlplane, *(part.obj for part in bundle(confined) if part.obj["kind"] in kinds))
    meta = {"name": "web", "namespace": place, "annotations": {"mine": "x"}, "finalizers": ["a/b"]}
    spec = {"service": "web", "scaleTargetRef": TARGET}
    apply(controlplane, {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec})
    path = f"/apis/{API_VERSION}/namespaces/{place}/{PLURAL}/web"

    def patched(program: Program, body: dict[str, Any]) -> int:
        token = controlplane.service_account_token(place, account(program))
        kind = "application/merge-patch+json"
        return controlplane.api_as(token).request("PATCH", path, body, content_type=kind).status

    policy = [part.obj for part in wake_policy(Choices(namespace=place))]
    assert patched(Program.RESOLVER, {"metadata": {"labels": {"seen": "before"}}}) == 200
    try:
        apply(controlplane, *policy)
        # It is in force a moment after it was written; until then every try changes something.
        tries = itertools.count()
        eventually_blocking(
            lambda: (
                patched(Program.RESOLVER, {"metadata": {"labels": {"n": f"n{next(tries)}"}}}) == 403
            )
        )
        assert [patched(Program.RESOLVER, body) for body in REFUSED] == [403] * len(REFUSED)
        assert patched(Program.RESOLVER, {"metadata": FREE}) == 200
        assert (
            patched(Program.RESOLVER, {"metadata": {"annotations": {WAKE_ANNOTATION: None}}}) == 200
        )
        assert patched(Program.OPERATOR, {"metadata": {"finalizers": None}}) == 200
    finally:
        items = {"apiVersion": "v1", "kind": "List", "items": policy}
        controlplane.kubectl("delete", "-f", "-", stdin=json.dumps(items))


SERVICE_PORTS = [{"name": "http", "port": 80, "targetPort": 8080}]
STOLEN: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "redirect a Service": (
        "PATCH",
        "/api/v1/namespaces/{place}/services/web",
        {"spec": {"selector": {"app": "thief"}}},
    ),
    "redirect it by another field": (
        "PATCH",
        "/api/v1/namespaces/{place}/services/web",
        {"spec": {"externalIPs": ["192.0.2.1"]}},
    ),
    "take a port of it": (
        "PATCH",
        "/api/v1/namespaces/{place}/services/web",
        {"spec": {"ports": [{"name": "http", "port": 80, "targetPort": 6666}]}},
    ),
    "relabel it": (
        "PATCH",
        "/api/v1/namespaces/{place}/services/web",
        {"metadata": {"labels": {PRIVATE_LABEL: "true"}}},
    ),
    "annotate it": (
        "PATCH",
        "/api/v1/namespaces/{place}/services/web",
        {"metadata": {"annotations": {"a": "b"}}},
    ),
    "delete it": ("DELETE", "/api/v1/namespaces/{place}/services/web", None),
    "make a Service": (
        "POST",
        "/api/v1/namespaces/{place}/services",
        {"metadata": {"name": "mine"}, "spec": {"ports": SERVICE_PORTS}},
    ),
    "make one for the world": (
        "POST",
        "/api/v1/namespaces/{place}/services",
        {
            "metadata": {
                "name": "elasti-web-pvt-0123456789",
                "labels": {PRIVATE_LABEL: "true"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u"}
                ],
            },
            "spec": {"ports": SERVICE_PORTS, "externalIPs": ["192.0.2.1"]},
        },
    ),
    "make a Secret": (
        "POST",
        "/api/v1/namespaces/{place}/secrets",
        {"metadata": {"name": "mine"}},
    ),
    "rewrite a Secret": (
        "PATCH",
        "/api/v1/namespaces/{place}/secrets/foreign",
        {"data": {"a": "Yg=="}},
    ),
    "delete the certificates": ("DELETE", "/api/v1/namespaces/{place}/secrets/elasti-tls", None),
    "claim the certificates": (
        "PATCH",
        "/api/v1/namespaces/{place}/secrets/elasti-tls",
        {"metadata": {"labels": {"a": "b"}}},
    ),
    "rewrite a slice": (
        "PUT",
        "/apis/discovery.k8s.io/v1/namespaces/{place}/endpointslices/foreign",
        {
            "metadata": {
                "name": "foreign",
                "labels": {MANAGED_BY_LABEL: "elasti", SERVICE_LABEL: "web"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.1"]}],
        },
    ),
    "delete a slice": (
        "DELETE",
        "/apis/discovery.k8s.io/v1/namespaces/{place}/endpointslices/foreign",
        None,
    ),
    "add a slice": (
        "POST",
        "/apis/discovery.k8s.io/v1/namespaces/{place}/endpointslices",
        {
            "metadata": {"name": "mine", "labels": {SERVICE_LABEL: "web"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.1"]}],
        },
    ),
    "publish another port": (
        "POST",
        "/apis/discovery.k8s.io/v1/namespaces/{place}/endpointslices",
        {
            "metadata": {
                "name": resolver_slice_name("web"),
                "labels": {MANAGED_BY_LABEL: "elasti", SERVICE_LABEL: "web"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.1"]}],
            "ports": [{"name": "http", "port": 80}],
        },
    ),
    "publish for another Service": (
        "POST",
        "/apis/discovery.k8s.io/v1/namespaces/{place}/endpointslices",
        {
            "metadata": {
                "name": resolver_slice_name("web"),
                "labels": {MANAGED_BY_LABEL: "elasti", SERVICE_LABEL: "other"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.1"]}],
            "ports": [{"name": "http", "port": 20001}],
        },
    ),
    "rewrite a Deployment": (
        "PATCH",
        "/apis/apps/v1/namespaces/{place}/deployments/web",
        {"spec": {"template": {"spec": {"serviceAccountName": "thief"}}}},
    ),
    "aim an ElastiService": (
        "PATCH",
        f"/apis/{API_VERSION}/namespaces/{{place}}/{PLURAL}/web",
        {"spec": {"service": "other"}},
    ),
}
"""What a thief of the operator's token might do: method, path and body."""


def test_a_stolen_token_of_the_operator_rewrites_nothing_of_others(controlplane: ControlPlane):
    place = controlplane.create_namespace("place")
    confined = Choices(namespace=place, namespaced=True, watch_namespaces=(place,))
    kinds = ("ServiceAccount", "Role", "RoleBinding", "Secret")
    define(controlplane)
    objects = [part.obj for part in bundle(confined) if part.obj["kind"] in kinds]
    # More than it has, as a role that users add for it may grant.
    role = next(o for o in objects if o["kind"] == "Role" and o["metadata"]["name"] == OPERATOR)
    verbs = ["patch", "update"]
    role["rules"].append({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": verbs})
    verbs = ["create", "patch", "delete"]
    role["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs})
    made = {"name": "web", "namespace": place}
    pod = {"containers": [{"name": "web", "image": "web"}]}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    apply(
        controlplane,
        *objects,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": made,
            "spec": {"selector": {"app": "web"}, "ports": SERVICE_PORTS},
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": made, "spec": spec},
        {"apiVersion": "v1", "kind": "Secret", "metadata": made | {"name": "foreign"}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": made | {"name": "foreign", "labels": {SERVICE_LABEL: "web"}},
            "addressType": "IPv4",
            "endpoints": [],
        },
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": made,
            "spec": {"service": "web", "scaleTargetRef": TARGET},
        },
    )
    api = controlplane.api_as(controlplane.service_account_token(place, OPERATOR))

    def tried(method: str, path: str, body: dict[str, Any] | None) -> tuple[int, str]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = api.request(
            method, f"{path.format(place=place)}?dryRun=All", body, content_type=kind
        )
        return answer.status, answer.text

    before = {what: tried(*call)[0] for what, call in STOLEN.items()}
    assert {what: status for what, status in before.items() if status >= 300} == {}
    policy = [part.obj for part in operator_policy(Choices(namespace=place))]
    try:
        apply(controlplane, *policy)
        first = next(iter(STOLEN.values()))
        eventually_blocking(lambda: tried(*first)[0] == 403)
        after = {what: tried(*call) for what, call in STOLEN.items()}
        allowed = {what: said for what, (status, said) in after.items() if status != 403}
        assert allowed == {}
        assert all("denied request: the operator " in said for _, said in after.values())
        path = "/api/v1/namespaces/{place}/secrets/elasti-tls"
        assert tried("PATCH", path, {"data": {"ca.crt": "Yg=="}})[0] == 200
        # Others are not bound by it.
        path = f"/api/v1/namespaces/{place}/services/web"
        body = {"spec": {"selector": {"app": "other"}}}
        kind = "application/merge-patch+json"
        assert controlplane.api.request("PATCH", path, body, content_type=kind).status == 200
    finally:
        items = {"apiVersion": "v1", "kind": "List", "items": policy}
        controlplane.kubectl("delete", "-f", "-", stdin=json.dumps(items))


FREE_TO_LABEL = (
    {"metadata": {"labels": {SLEEP_LABEL: "never"}}},
    {"metadata": {"labels": {SLEEP_LABEL: None, "team": "a"}}},
    {"spec": {"sessionAffinity": "None"}},
)
NEEDS_RIGHTS = (
    {"metadata": {"labels": {SLEEP_LABEL: "enforce"}}},
    {"metadata": {"labels": {SLEEP_LABEL: "observe"}}},
)


def test_who_may_not_create_elastiservices_may_not_enrol(controlplane: ControlPlane):
    """With tokens of an account that may write Services and Namespaces, and of one with the other rights too."""
    place = controlplane.create_namespace("place")
    define(controlplane)
    writes = {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["*"]}
    more = [
        {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["create"]},
        {"apiGroups": ["apps"], "resources": ["deployments", "statefulsets"], "verbs": ["update"]},
    ]
    for name, rules in (("weak", [writes]), ("able", [writes, *more])):
        meta = {"name": name, "namespace": place}
        rbac = "rbac.authorization.k8s.io"
        role = {"apiGroup": rbac, "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", **meta}
        apply(
            controlplane,
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
            {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": role,
                "subjects": [subject],
            },
        )
    tokens = {name: controlplane.service_account_token(place, name) for name in ("weak", "able")}
    services = f"/api/v1/namespaces/{place}/services"

    def sent(who: str, method: str, path: str, body: dict[str, Any]) -> int:
        options = {"content_type": "application/merge-patch+json"} if method == "PATCH" else {}
        return controlplane.api_as(tokens[who]).request(method, path, body, **options).status

    def service(name: str, **metadata: Any) -> dict[str, Any]:
        spec = {"selector": {"app": "web"}, "ports": SERVICE_PORTS}
        return {"metadata": {"name": name, **metadata}, "spec": spec}

    policy = [part.obj for part in enrolment_policy(Choices(enrolment=True))]
    label = {"labels": {SLEEP_LABEL: "observe"}}
    assert sent("weak", "POST", services, service("web")) == 201
    assert sent("weak", "POST", services, service("labelled", **label)) == 201
    web, labelled = f"{services}/web", f"{services}/labelled"
    try:
        apply(controlplane, *policy)
        toggle = itertools.cycle(("enforce", "observe"))
        eventually_blocking(
            lambda: (
                sent(
                    "weak", "PATCH", labelled, {"metadata": {"labels": {SLEEP_LABEL: next(toggle)}}}
                )
                == 403
            )
        )
        assert [sent("weak", "PATCH", web, body) for body in NEEDS_RIGHTS] == [403, 403]
        assert sent("weak", "POST", services, service("new", **label)) == 403
        template = {"metadata": {"annotations": {TEMPLATE_ANNOTATION: "fast"}}}
        moved = {"spec": {"selector": {"app": "worker"}}}
        assert [sent("weak", "PATCH", labelled, body) for body in (template, moved)] == [403, 403]
        drained = {"spec": {"selector": {DRAIN_KEY: "true"}}}
        assert sent("weak", "PATCH", labelled, drained) == 200
        own = f"/api/v1/namespaces/{place}"
        assert [sent("weak", "PATCH", own, body) for body in NEEDS_RIGHTS] == [403, 403]
        # What keeps targets awake is free, and so is everything without our keys.
        assert [sent("weak", "PATCH", web, body) for body in FREE_TO_LABEL] == [200] * 3
        assert sent("weak", "PATCH", own, FREE_TO_LABEL[0]) == 200
        assert sent("weak", "PATCH", web, moved) == 200
        wrong = {"metadata": {"labels": {SLEEP_LABEL: "yes"}}}
        assert sent("able", "PATCH", web, wrong) == 422
        assert [sent("able", "PATCH", web, body) for body in NEEDS_RIGHTS] == [200, 200]
        assert sent("able", "PATCH", own, NEEDS_RIGHTS[0]) == 200
        # In a labelled namespace, to take `never` off is to enrol.
        free = {"metadata": {"labels": {SLEEP_LABEL: None}}}
        assert sent("able", "PATCH", web, FREE_TO_LABEL[0]) == 200
        # The server learns of the namespace's label a moment later.
        tried = f"{web}?dryRun=All"
        eventually_blocking(lambda: sent("weak", "PATCH", tried, free) == 403)
        assert sent("weak", "POST", services, service("plain")) == 201
    finally:
        items = {"apiVersion": "v1", "kind": "List", "items": policy}
        controlplane.kubectl("delete", "-f", "-", stdin=json.dumps(items))


def test_the_definition_of_templates_is_accepted(controlplane: ControlPlane):
    apply(controlplane, template_definition())
    crd = template_definition()["metadata"]["name"]
    controlplane.kubectl("wait", "--for=condition=Established", f"crd/{crd}")
    path = f"/apis/{API_VERSION}/elastitemplates?dryRun=All"

    def answer(spec: dict[str, Any]) -> int:
        kind = {"apiVersion": API_VERSION, "kind": "ElastiTemplate"}
        body = {**kind, "metadata": {"name": "default"}, "spec": spec}
        return controlplane.api.request("POST", path, body).status

    page = {"page": {"mode": "Auto"}, "ignore": {"presets": ["Probes"]}}
    assert answer({"cooldownPeriod": 60, "triggers": [{"type": "network"}], "wake": page}) == 201
    assert answer({"cooldownPeriod": -1}) == 422
    assert answer({"triggers": [{"type": "guess"}]}) == 422
    assert answer({"schedules": [{"name": "a", "keep": "Awake"}]}) == 422


def define(controlplane: ControlPlane) -> None:
    apply(controlplane, definition())
    crd = definition()["metadata"]["name"]
    controlplane.kubectl("wait", "--for=condition=Established", f"crd/{crd}")


def apply(controlplane: ControlPlane, *objects: dict[str, Any]) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    controlplane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(items)
    )
