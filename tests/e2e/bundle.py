"""Elasti's own objects for an environment: what `elasti manifests` prints, with a test's haste.

Only what an environment must differ in is chosen: its settles are shorter, the resolver is told the operator's
address (no environment has DNS), and the version is part of the image's name. Accounts, rights, probes and
authentication are those of every installation.
"""

from __future__ import annotations

import dataclasses

from elasti.api.defaults import OPERATOR_PORT
from elasti.api.names import OPERATOR_SERVICE
from elasti.cli.install.bundle import bundle
from elasti.cli.install.choices import (
    PROGRAMS,
    Choices,
    Program,
    account,
    selector,
)
from kubeloop.objects.meta import JsonObject

NAMESPACE = Choices().namespace
OPERATOR, RESOLVER = account(Program.OPERATOR), account(Program.RESOLVER)
OPERATOR_SELECTOR, RESOLVER_SELECTOR = (
    ",".join(f"{key}={value}" for key, value in selector(program).items()) for program in PROGRAMS
)
__all__ = [
    "NAMESPACE",
    "OPERATOR",
    "OPERATOR_SELECTOR",
    "OPERATOR_SERVICE",
    "RESOLVER",
    "RESOLVER_SELECTOR",
    "Installation",
    "definition",
    "foundations",
    "programs",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """How one installation differs from another; times in seconds."""

    repository: str = "elasti"
    version: str = "one"
    operators: int = 2
    resolvers: int = 2
    polling_interval: float = 1.0
    engage_settle: float = 2.0
    release_settle: float = 2.0
    shared_port: bool = False
    enrolment: bool = False

    def choices(self, operator_address: str = "") -> Choices:
        """Return it as the command line's choices."""
        settle = {"ELASTI_ENGAGE_SETTLE": f"{self.engage_settle}s"}
        operator = {
            "POLLING_INTERVAL": f"{self.polling_interval}s",
            "ELASTI_RELEASE_SETTLE": f"{self.release_settle}s",
            # Prometheus and its like listen on loopback addresses, which the pods of every environment reach.
            "ELASTI_TRIGGER_ALLOWED_ADDRESSES": "127.0.0.0/8",
            "ELASTI_ENROLMENT_OBSERVE_FOR": "0s",
        }
        resolver = {"ELASTI_OPERATOR_URL": f"http://{operator_address}:{OPERATOR_PORT}"}
        return Choices(
            image=f"{self.repository}:{self.version}",
            operator_replicas=self.operators,
            resolver_replicas=self.resolvers,
            shared_port=self.shared_port,
            enrolment=self.enrolment,
            variables={
                Program.OPERATOR: {**settle, **operator},
                Program.RESOLVER: {**settle, **resolver},
            },
        )


def definition() -> JsonObject:
    """Return the definition of ElastiServices."""
    return next(obj for obj in _objects(Choices()) if obj["kind"] == "CustomResourceDefinition")


def foundations(installation: Installation) -> list[JsonObject]:
    """Return everything that is not a program: namespace, accounts, rights, Services."""
    return [obj for obj in _objects(installation.choices()) if obj["kind"] != "Deployment"]


def programs(installation: Installation, operator_address: str) -> list[JsonObject]:
    """Return the Deployments of operator and resolver."""
    wanted = installation.choices(operator_address)
    return [obj for obj in _objects(wanted) if obj["kind"] == "Deployment"]


def _objects(choices: Choices) -> list[JsonObject]:
    # The dev cluster has no admission policies.
    return [part.obj for part in bundle(choices) if part.needs is None]
