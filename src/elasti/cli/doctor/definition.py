"""Whether the cluster serves ElastiServices as this program knows them. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elasti.api.crd import custom_resource_definition
from elasti.api.names import GROUP, PLURAL
from elasti.cli.doctor.findings import Finding, Level
from elasti.operator.definition import missing_fields, schema_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.objects.meta import JsonObject

TOPIC = "definition"
UPGRADE = "Upgrade it: elasti crd | kubectl apply --server-side --force-conflicts -f -"
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_OLDEST = (1, 21)
"""The first with EndpointSlices that are not beta."""


def judge_server(version: str) -> Finding:
    """Judge the API server by its version."""
    found = _VERSION.match(version)
    if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
        return Finding(
            Level.PROBLEM,
            "API server",
            f"version {version} has no discovery.k8s.io/v1",
            f"Upgrade Kubernetes to {_OLDEST[0]}.{_OLDEST[1]} or newer.",
        )
    return Finding(Level.OK, "API server", f"reachable, version {version}")


def judge_definition(definition: JsonObject | None) -> Iterator[Finding]:
    """Judge the CustomResourceDefinition; None where there is none."""
    name = f"{PLURAL}.{GROUP}"
    if definition is None:
        yield Finding(Level.PROBLEM, TOPIC, f"there is no {name}", "Install Elasti: elasti install")
        return
    conditions = (definition.get("status") or {}).get("conditions") or ()
    if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
        said = "; ".join(c.get("message", "") for c in conditions if c["status"] == "False")
        yield Finding(Level.PROBLEM, TOPIC, f"{name} is not served: {said or 'not established'}")
    if missing := missing_fields(definition):
        yield Finding(
            Level.PROBLEM, TOPIC, f"{name} is older and drops {', '.join(missing)}", UPGRADE
        )
        return
    here, there = schema_hash(custom_resource_definition()), schema_hash(definition)
    if here != there:
        yield Finding(
            Level.WARNING,
            TOPIC,
            f"{name} has another schema ({there}) than this program's ({here})",
            UPGRADE,
        )
        return
    yield Finding(Level.OK, TOPIC, f"{name} is the one of this version (schema {here})")
