"""Whether operator and resolver run, agree with each other, and have a leader. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.cli.doctor.findings import Finding, Level
from elasti.cli.rendering import duration
from elasti.cli.views import moment

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Sequence

    from kubeloop.objects.meta import JsonObject

PROGRAMS = ("operator", "resolver")
INSTALL = "Install it: elasti install"
_COMPONENT = "app.kubernetes.io/component"
_VERSION = "app.kubernetes.io/version"
_HANDOVER = 30.0
# KubeElasti's operator; ours may have the name too, but then it carries our label.
_KUBEELASTI = "elasti-operator-controller-manager"


def program_of(deployment: JsonObject) -> str:
    """Return which program a Deployment runs; "" where it is none of ours."""
    meta = deployment["metadata"]
    component = (meta.get("labels") or {}).get(_COMPONENT, "")
    if component in PROGRAMS and meta["name"].startswith("elasti"):
        return str(component)
    return next((name for name in PROGRAMS if meta["name"] == f"elasti-{name}"), "")


def judge_programs(
    deployments: Iterable[JsonObject], namespace: str, version: str
) -> Iterator[Finding]:
    """Judge the Deployments of Elasti's namespace."""
    found: dict[str, list[JsonObject]] = {name: [] for name in PROGRAMS}
    for deployment in deployments:
        if name := program_of(deployment):
            found[name].append(deployment)
        elif deployment["metadata"]["name"] == _KUBEELASTI:
            yield Finding(
                Level.WARNING,
                "operator",
                f"KubeElasti's operator ({_KUBEELASTI}) runs here too; only one of both can lead",
                "Remove it once Elasti is installed; its ElastiServices are taken over as they are.",
            )
    for name, running in found.items():
        if not running:
            yield Finding(
                Level.PROBLEM,
                name,
                f"there is no Deployment of the {name} in namespace {namespace}",
                f"{INSTALL}, or name its namespace with --elasti-namespace",
            )
        for deployment in running:
            yield _judge_deployment(deployment, name)
    yield from _judge_versions([d for running in found.values() for d in running], version)


def found_elsewhere(deployments: Iterable[JsonObject], namespace: str) -> Iterator[Finding]:
    """Say where else Elasti is installed, for who looked in the wrong namespace."""
    places = {item["metadata"]["namespace"] for item in deployments} - {namespace}
    if places:
        yield Finding(
            Level.HINT,
            "programs",
            f"Elasti is installed in namespace {', '.join(sorted(places))}",
            f"Look there: elasti doctor --elasti-namespace {min(places)}",
        )


def judge_lease(lease: JsonObject | None, now: dt.datetime) -> Finding:
    """Judge who leads; None where there is no lease."""
    if lease is None:
        return Finding(
            Level.PROBLEM,
            "leader",
            "no operator has ever led: there is no lease",
            "Look at the operator's logs; with --no-leader-elect there is none, and none is needed.",
        )
    spec = lease.get("spec") or {}
    holder, renewed = spec.get("holderIdentity") or "", moment(spec.get("renewTime"))
    age = (now - renewed).total_seconds() if renewed is not None else float("inf")
    if holder and age <= 2 * spec.get("leaseDurationSeconds", 15):
        return Finding(Level.OK, "leader", f"{holder} leads")
    when = "never" if renewed is None else f"{duration(age)} ago"
    return Finding(
        # Given back a moment ago, as in a rollout: the next one takes it at once.
        Level.PROBLEM if holder or age > _HANDOVER else Level.WARNING,
        "leader",
        f"nobody leads: the lease of {holder} was last renewed {when}"
        if holder
        else f"nobody leads: the lease was given back, and last renewed {when}",
        "Nothing is put to sleep meanwhile; look at the operator's pods and logs.",
    )


def judge_resolvers(slices: Sequence[JsonObject], service: str) -> Finding:
    """Judge the endpoints behind the resolver's Service."""
    endpoints = [endpoint for piece in slices for endpoint in piece.get("endpoints") or ()]
    ready = [e for e in endpoints if (e.get("conditions") or {}).get("ready") is not False]
    if not ready:
        return Finding(
            Level.PROBLEM,
            "resolver endpoints",
            f"no endpoint of Service {service} is ready: nothing is put to sleep, and what sleeps is"
            " not reachable",
            "Look at the resolver's pods: do their readiness probes pass?",
        )
    return Finding(Level.OK, "resolver endpoints", f"{len(ready)} of {len(endpoints)} are ready")


def _judge_deployment(deployment: JsonObject, program: str) -> Finding:
    meta, status = deployment["metadata"], deployment.get("status") or {}
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    available = status.get("availableReplicas", 0)
    said = f"Deployment {meta['namespace']}/{meta['name']}: {available} of {wanted} available"
    if available >= wanted > 0:
        return Finding(Level.OK, program, said)
    reasons = [c.get("message", "") for c in status.get("conditions") or () if _is_bad(c)]
    look = f"kubectl describe -n {meta['namespace']} deployment {meta['name']}"
    return Finding(
        Level.WARNING if available else Level.PROBLEM,
        program,
        "; ".join([said, *filter(None, reasons)]),
        f"See why: {look}",
    )


def _is_bad(condition: JsonObject) -> bool:
    kind, status = condition.get("type"), condition.get("status")
    return (kind in ("Available", "Progressing") and status == "False") or (
        kind == "ReplicaFailure" and status == "True"
    )


def _judge_versions(deployments: Iterable[JsonObject], version: str) -> Iterator[Finding]:
    versions = {
        d["metadata"]["name"]: (d["metadata"].get("labels") or {}).get(_VERSION, "")
        for d in deployments
    }
    known = {name: found for name, found in versions.items() if found}
    if any(found != version for found in known.values()):
        said = ", ".join(f"{name} {found}" for name, found in sorted(known.items()))
        yield Finding(
            Level.WARNING,
            "versions",
            f"{said}, this program {version}",
            "Use one version of all: elasti install upgrades the cluster.",
        )
    elif known:
        yield Finding(Level.OK, "versions", f"all {version}")
