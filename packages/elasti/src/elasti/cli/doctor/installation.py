"""Whether the definition fits, and operator and resolver run, agree and have a leader. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Sequence

from elasti.api.crd import custom_resource_definition, missing_fields, schema_hash
from elasti.api.names import GROUP, PLURAL
from elasti.api.view import moment
from elasti.cli.doctor.findings import DoctorFinding, FindingLevel, hint, ok, problem, warning
from elasti.cli.rendering import duration
from kubeloop.objects.meta import JsonObject

PROGRAMS = ("operator", "resolver")
DASHBOARD = "dashboard"
INSTALL = "Install it: elasti install"
_COMPONENT_LABEL = "app.kubernetes.io/component"
_VERSION_LABEL = "app.kubernetes.io/version"
_HANDOVER = 30.0
_BAD_CONDITIONS = {("Available", "False"), ("Progressing", "False"), ("ReplicaFailure", "True")}
# KubeElasti's operator; ours may have the name too, but then it carries our label.
_KUBEELASTI = "elasti-operator-controller-manager"


def program_of(deployment: JsonObject) -> str:
    """Return the program that a Deployment runs; "" if it is not ours."""
    meta = deployment["metadata"]
    component = (meta.get("labels") or {}).get(_COMPONENT_LABEL, "")
    if component in (*PROGRAMS, DASHBOARD) and meta["name"].startswith("elasti"):
        return str(component)
    return next((name for name in PROGRAMS if meta["name"] == f"elasti-{name}"), "")


def judge_programs(
    deployments: Iterable[JsonObject], namespace: str, version: str
) -> Iterator[DoctorFinding]:
    """Judge the Deployments of Elasti's namespace."""
    found: dict[str, list[JsonObject]] = {name: [] for name in (*PROGRAMS, DASHBOARD)}
    for deployment in deployments:
        if name := program_of(deployment):
            found[name].append(deployment)
        elif deployment["metadata"]["name"] == _KUBEELASTI:
            yield warning(
                "operator",
                f"KubeElasti's operator ({_KUBEELASTI}) runs here too; only one of the two can lead",
                "Remove it once Elasti is installed; its ElastiServices are taken over unchanged.",
            )
    for name, running in found.items():
        if not running and name != DASHBOARD:
            yield problem(
                name,
                f"there is no Deployment of the {name} in namespace {namespace}",
                f"{INSTALL}, or name its namespace with --elasti-namespace",
            )
        for deployment in running:
            yield _judge_deployment(deployment, name)
    yield from _judge_versions([d for running in found.values() for d in running], version)


def found_elsewhere(deployments: Iterable[JsonObject], namespace: str) -> Iterator[DoctorFinding]:
    """Return where else Elasti is installed, for a user who named the wrong namespace."""
    places = {item["metadata"]["namespace"] for item in deployments} - {namespace}
    if places:
        yield hint(
            "programs",
            f"Elasti is installed in namespace {', '.join(sorted(places))}",
            f"Check that one: elasti doctor --elasti-namespace {min(places)}",
        )


def judge_lease(lease: JsonObject | None, now: dt.datetime) -> DoctorFinding:
    """Judge the leader by its lease; None if there is no lease."""
    if lease is None:
        return problem(
            "leader",
            "no operator has ever led: there is no lease",
            "Read the operator's logs. An operator with --no-leader-elect needs no lease.",
        )
    spec = lease.get("spec") or {}
    holder, renewed = spec.get("holderIdentity") or "", moment(spec.get("renewTime"))
    age = (now - renewed).total_seconds() if renewed is not None else float("inf")
    if holder and age <= 2 * spec.get("leaseDurationSeconds", 15):
        return ok("leader", f"{holder} leads")
    when = "never" if renewed is None else f"{duration(age)} ago"
    return DoctorFinding(
        # Given back a moment ago, as in a rollout: the next one takes it at once.
        FindingLevel.PROBLEM if holder or age > _HANDOVER else FindingLevel.WARNING,
        "leader",
        f"no operator leads: the lease of {holder} was last renewed {when}"
        if holder
        else f"no operator leads: the lease was released, and last renewed {when}",
        "Nothing is put to sleep meanwhile; check the operator's pods and logs.",
    )


def judge_resolvers(slices: Sequence[JsonObject], service: str) -> DoctorFinding:
    """Judge the endpoints behind the resolver's Service."""
    endpoints = [endpoint for one in slices for endpoint in one.get("endpoints") or ()]
    ready = [e for e in endpoints if (e.get("conditions") or {}).get("ready") is not False]
    if not ready:
        return problem(
            "resolver endpoints",
            f"no endpoint of Service {service} is ready: nothing is put to sleep, and sleeping targets are"
            " not reachable",
            "Check the resolver's pods: do their readiness probes pass?",
        )
    return ok("resolver endpoints", f"{len(ready)} of {len(endpoints)} are ready")


def _judge_deployment(deployment: JsonObject, program: str) -> DoctorFinding:
    meta, status = deployment["metadata"], deployment.get("status") or {}
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    available = status.get("availableReplicas", 0)
    said = f"Deployment {meta['namespace']}/{meta['name']}: {available} of {wanted} available"
    if available >= wanted > 0:
        return ok(program, said)
    conditions = status.get("conditions") or ()
    bad = [c for c in conditions if (c.get("type"), c.get("status")) in _BAD_CONDITIONS]
    reasons = [condition.get("message", "") for condition in bad]
    describe = f"kubectl describe -n {meta['namespace']} deployment {meta['name']}"
    return DoctorFinding(
        FindingLevel.WARNING if available else FindingLevel.PROBLEM,
        program,
        "; ".join([said, *filter(None, reasons)]),
        f"See why: {describe}",
    )


def _judge_versions(deployments: Iterable[JsonObject], version: str) -> Iterator[DoctorFinding]:
    versions = {
        d["metadata"]["name"]: (d["metadata"].get("labels") or {}).get(_VERSION_LABEL, "")
        for d in deployments
    }
    known = {name: found for name, found in versions.items() if found}
    if any(found != version for found in known.values()):
        said = ", ".join(f"{name} {found}" for name, found in sorted(known.items()))
        yield warning(
            "versions",
            f"{said}, this program {version}",
            "Use one version of all: elasti install upgrades the cluster.",
        )
    elif known:
        yield ok("versions", f"all {version}")


DEFINITION_TOPIC = "definition"
UPGRADE = "Upgrade it: elasti crd | kubectl apply --server-side --force-conflicts -f -"
_SERVER_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_OLDEST = (1, 21)
"""The first with EndpointSlices that are not beta."""


def judge_server(version: str) -> DoctorFinding:
    """Judge the API server by its version."""
    found = _SERVER_VERSION.match(version)
    if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
        return problem(
            "API server",
            f"version {version} has no discovery.k8s.io/v1",
            f"Upgrade Kubernetes to {_OLDEST[0]}.{_OLDEST[1]} or newer.",
        )
    return ok("API server", f"reachable, version {version}")


def judge_definition(definition: JsonObject | None) -> Iterator[DoctorFinding]:
    """Judge the CustomResourceDefinition; None if it does not exist."""
    name = f"{PLURAL}.{GROUP}"
    if definition is None:
        yield problem(DEFINITION_TOPIC, f"there is no {name}", "Install Elasti: elasti install")
        return
    conditions = (definition.get("status") or {}).get("conditions") or ()
    if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
        said = "; ".join(c.get("message", "") for c in conditions if c["status"] == "False")
        yield problem(DEFINITION_TOPIC, f"{name} is not served: {said or 'not established'}")
    if missing := missing_fields(definition):
        yield problem(DEFINITION_TOPIC, f"{name} is older and drops {', '.join(missing)}", UPGRADE)
        return
    here, there = schema_hash(custom_resource_definition()), schema_hash(definition)
    if here != there:
        yield warning(
            DEFINITION_TOPIC,
            f"{name} has another schema ({there}) than this program's ({here})",
            UPGRADE,
        )
        return
    yield ok(DEFINITION_TOPIC, f"{name} is the one of this version (schema {here})")
