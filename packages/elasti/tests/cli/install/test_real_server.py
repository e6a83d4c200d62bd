"""What Kubernetes' own API server says to an installation, without one being made."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from elasti.api.names import (
    API_VERSION,
    KEEP_AWAKE_ANNOTATION,
    KIND,
    PLURAL,
    SLEEP_ANNOTATION,
    WAKE_ANNOTATION,
)
from elasti.cli.install.apply import reference
from elasti.cli.install.bundle import bundle, definition
from elasti.cli.install.choices import Choices, Program, account
from elasti.cli.main import main
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
    "scaleTargetRef is the workload behind the Service, not the Service itself": {
        "scaleTargetRef": TARGET | {"kind": "Service"}
    },
    "a http trigger needs metadata.path": {"triggers": [{"type": "http", "metadata": {}}]},
    "a keda trigger needs metadata.scaledObject": {"triggers": [{"type": "keda"}]},
    "a pods trigger needs metadata.metric": {"triggers": [{"type": "pods", "metadata": {}}]},
    "a prometheus trigger needs metadata.query": {"triggers": [{"type": "prometheus"}]},
}
"""An object for each rule of the definition, by the rule's message."""


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

    assert made({})[0] == 201
    assert set(rules(definition()["spec"]["versions"][0]["schema"])) == BROKEN.keys()
    for message, changes in BROKEN.items():
        status, said = made(changes)
        assert (status, message in said) == (422, True), said


def test_an_account_that_may_only_patch_may_wake_and_no_more(controlplane: ControlPlane):
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

    policy = [part.obj for part in bundle(Choices(namespace=place)) if part.needs is not None]
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


def define(controlplane: ControlPlane) -> None:
    apply(controlplane, definition())
    crd = definition()["metadata"]["name"]
    controlplane.kubectl("wait", "--for=condition=Established", f"crd/{crd}")


def apply(controlplane: ControlPlane, *objects: dict[str, Any]) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    controlplane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(items)
    )
