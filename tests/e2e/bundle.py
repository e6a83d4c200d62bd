"""Elasti's own objects for a stage: what `elasti manifests` prints, with a test's haste.

Only what a stage must differ in is changed: its settles are shorter, the resolver is told the operator's
address (no stage has DNS), and the version is part of the image's name.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from elasti.api.crd import custom_resource_definition
from elasti.cli.demo import objects as demo
from kubeloop.objects.meta import JsonObject

NAMESPACE = demo.NAMESPACE
OPERATOR, OPERATOR_SERVICE = demo.OPERATOR, demo.OPERATOR_SERVICE
RESOLVER = demo.RESOLVER
OPERATOR_SELECTOR, RESOLVER_SELECTOR = f"app={demo.OPERATOR}", f"app={demo.RESOLVER}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """How one installation differs from another; times in seconds."""

    version: str = "one"
    operators: int = 2
    resolvers: int = 2
    polling_interval: float = 1.0
    engage_settle: float = 2.0
    release_settle: float = 1.0

    @property
    def variables(self) -> dict[str, str]:
        """The settings of both programs."""
        return {
            "POLLING_INTERVAL": f"{self.polling_interval}s",
            "ELASTI_ENGAGE_SETTLE": f"{self.engage_settle}s",
            "ELASTI_RELEASE_SETTLE": f"{self.release_settle}s",
        }


def definition() -> JsonObject:
    """Return the definition of ElastiServices."""
    return custom_resource_definition()


def foundations(_installation: Installation) -> list[JsonObject]:
    """Return everything that is not a program: namespace, accounts, rights, Services."""
    return demo.foundations()


def programs(installation: Installation, operator_address: str) -> list[JsonObject]:
    """Return the Deployments of operator and resolver."""
    replicas = {OPERATOR: installation.operators, RESOLVER: installation.resolvers}
    return [
        _hurried(deployment, installation, replicas[deployment["metadata"]["name"]])
        for deployment in demo.programs(operator_address)
    ]


def _hurried(deployment: JsonObject, installation: Installation, replicas: int) -> JsonObject:
    changed = copy.deepcopy(deployment)
    spec: dict[str, Any] = changed["spec"]
    spec["replicas"] = replicas
    for container in spec["template"]["spec"]["containers"]:
        container["image"] = f"{container['image']}:{installation.version}"
        own = [item for item in container["env"] if item["name"] not in installation.variables]
        added = [{"name": key, "value": value} for key, value in installation.variables.items()]
        container["env"] = [*own, *added]
    return changed
