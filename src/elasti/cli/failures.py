"""From what the client raises to what a person reads: the remedy, and the exit code. Pure."""

from __future__ import annotations

import re

from elasti.api.names import GROUP, PLURAL
from elasti.cli.exits import ExitCode, Failure, said
from kubeloop.client.errors import (
    ConfigError,
    CredentialError,
    Forbidden,
    MappingError,
    NotFound,
    ServiceUnavailable,
    TransportError,
    Unauthorized,
)

INSTALL = "elasti install"

# The first that fits counts.
_CODES: tuple[tuple[type[Exception], ExitCode], ...] = (
    (CredentialError, ExitCode.NOT_ALLOWED),
    (ConfigError, ExitCode.NO_CLUSTER),
    (TransportError, ExitCode.NO_CLUSTER),
    (ServiceUnavailable, ExitCode.NO_CLUSTER),
    (Unauthorized, ExitCode.NOT_ALLOWED),
    (Forbidden, ExitCode.NOT_ALLOWED),
    (NotFound, ExitCode.NOT_FOUND),
    (MappingError, ExitCode.NOT_FOUND),
)

# The words of every API server, whoever authorizes.
_REFUSED = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


def failure_from(error: Exception, *, source: str = "") -> Failure:
    """Return what to tell a person about an error; `source` is where the configuration came from."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
    message = said(error) if isinstance(error, OSError) else str(error)
    return Failure(code, message, remedy=_remedy(error, source))


def _remedy(error: Exception, source: str) -> str:
    if isinstance(error, Forbidden):
        return _rule(str(error))
    if isinstance(error, Unauthorized):
        return "(log in again; --context and --kubeconfig choose another identity)"
    if source and isinstance(error, TransportError | ServiceUnavailable):
        return f"(from {source}; --context and --kubeconfig choose another)"
    return ""


def is_not_installed(error: NotFound) -> bool:
    """Whether a request for an ElastiService found no such resource, rather than not this one."""
    details = error.status.details
    # An object that is not there is named; a resource that is not there names nothing.
    return details is None or not (details.name or details.uid)


def not_installed() -> Failure:
    """Return the failure of a cluster without our CustomResourceDefinition."""
    return Failure(
        ExitCode.NOT_INSTALLED,
        f"this cluster has no {PLURAL}.{GROUP}: Elasti is not installed",
        remedy=f"Install it: {INSTALL}\nOr only the definition: elasti crd | kubectl apply"
        " --server-side -f -",
    )


def _rule(message: str) -> str:
    found = _REFUSED.search(message)
    if found is None:
        return ""
    kind = "Role" if found["namespace"] else "ClusterRole"
    where = f" in namespace {found['namespace']}" if found["namespace"] else ""
    return (
        f"A {kind}{where} with this rule allows it:\n"
        f'  - apiGroups: ["{found["group"]}"]\n'
        f'    resources: ["{found["resource"]}"]\n'
        f'    verbs: ["{found["verb"]}"]'
    )
