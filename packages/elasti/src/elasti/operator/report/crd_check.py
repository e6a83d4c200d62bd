"""Whether the cluster's CustomResourceDefinition knows our fields.

An older one (KubeElasti's) prunes what it does not know, and users wonder why nothing happens. The
definition is read now and then; what it lacks becomes a warning that names the command to run.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import msgspec
import structlog

from elasti.api.conditions import Reason
from elasti.api.crd import custom_resource_definition
from elasti.api.names import GROUP, PLURAL, VERSION
from elasti.operator.report.conditions import Finding
from kubeloop.aio.wait import until
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from elasti.operator.watch.directory import Directory
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject

_DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
_PERIOD = 600.0

_log = structlog.get_logger(__name__)


def missing_fields(definition: JsonObject) -> list[str]:
    """Return our `spec` and `status` fields that a definition does not have."""
    there, ours = _properties(definition), _properties(custom_resource_definition())
    return [
        f"{part}.{field}"
        for part in ("spec", "status")
        for field in sorted(ours[part] - there[part])
    ]


def schema_hash(definition: JsonObject) -> str:
    """Return a short hash of the served schema."""
    schema = _version(definition).get("schema") or {}
    encoded = msgspec.json.encode(schema, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:12]


class DefinitionCheck:
    """Checks the served definition; `finding` is what is wrong with it."""

    def __init__(self, client: Client, directory: Directory) -> None:
        self._definitions = client.resource(_DEFINITIONS)
        self._directory = directory
        self.finding: Finding | None = None

    async def run(self) -> None:
        """Check periodically until cancelled; the first time after a period."""
        await asyncio.sleep(_PERIOD)
        await until(self.check, _PERIOD)

    async def check(self) -> None:
        """Check now; where the definition may not be read, nothing is reported."""
        try:
            found = await self._definitions.get(f"{PLURAL}.{GROUP}")
        except KubeError as error:
            _log.info("the CustomResourceDefinition cannot be read", error=str(error))
            return
        self._directory.schema_hash = schema_hash(found)
        missing = missing_fields(found)
        self.finding = _outdated(missing) if missing else None


def _outdated(missing: list[str]) -> Finding:
    return Finding(
        Reason.DEFINITION_OUTDATED,
        f"the cluster's CustomResourceDefinition is older and drops {', '.join(missing)}; upgrade it:"
        " elasti crd | kubectl apply --server-side --force-conflicts -f -",
        refuses=False,
    )


def _version(definition: JsonObject) -> JsonObject:
    versions = definition.get("spec", {}).get("versions") or ()
    return next((item for item in versions if item.get("name") == VERSION), {})


def _properties(definition: JsonObject) -> dict[str, set[str]]:
    schema = _version(definition).get("schema", {}).get("openAPIV3Schema", {})
    parts = schema.get("properties", {})
    return {
        part: set((parts.get(part) or {}).get("properties") or ()) for part in ("spec", "status")
    }
