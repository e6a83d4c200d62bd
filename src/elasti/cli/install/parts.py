"""One object of an installation with the reason for it, and the names that objects share. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kubeloop._version import __version__

if TYPE_CHECKING:
    from elasti.cli.install.choices import Choices, Program
    from kubeloop.objects.meta import JsonObject

MANAGER = "elasti"
OPERATOR_SERVICE = "elasti-operator-controller-service"
RESOLVER_SERVICE = "elasti-resolver-service"
WAKE_PORT = 8013
HEALTH_PORT = 8081
ADMIN_PORT = 8013
SHARED_PORT = 8012
DATA_PORTS = (20000, 29999)
DEFINITION_LABELS = {
    "app.kubernetes.io/name": "elasti",
    "app.kubernetes.io/part-of": "elasti",
    "app.kubernetes.io/managed-by": MANAGER,
}

_APP = "app"


class Part(NamedTuple):
    """An object, and what it is there for."""

    why: str
    obj: JsonObject


def account(program: Program) -> str:
    """Return the name of a program's Deployment, ServiceAccount, roles and policies."""
    return f"elasti-{program.value}"


def selector(program: Program) -> dict[str, str]:
    """Return the labels by which a program's pods are found; they never change."""
    return {_APP: account(program)}


def installation(namespace: str) -> dict[str, str]:
    """Return the labels by which everything of one installation is found."""
    return {
        "app.kubernetes.io/part-of": "elasti",
        "app.kubernetes.io/managed-by": MANAGER,
        "app.kubernetes.io/instance": namespace,
    }


def labels(choices: Choices, program: Program | None = None) -> dict[str, str]:
    """Return the labels of an object, of one program or of the installation."""
    common = {
        "app.kubernetes.io/name": "elasti",
        **installation(choices.namespace),
        "app.kubernetes.io/version": __version__,
    }
    if program is None:
        return common
    return {**common, "app.kubernetes.io/component": program.value, **selector(program)}


def metadata(
    name: str, choices: Choices, *, program: Program | None = None, namespace: str = ""
) -> JsonObject:
    """Return an object's metadata; without a namespace it is the cluster's."""
    place = {"namespace": namespace} if namespace else {}
    return {"name": name, **place, "labels": labels(choices, program)}
