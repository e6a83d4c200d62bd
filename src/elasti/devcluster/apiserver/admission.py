"""Admission: a last word on writes, in the process. Namespaces first of all.

A plugin may change the object or refuse it. Plugins run in order, after decoding and before
defaults and validation, and without awaiting: a write is one step.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Protocol

from elasti.devcluster.apiserver import status

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.auth import User
    from elasti.devcluster.apiserver.resources import Resource
    from elasti.devcluster.apiserver.storage import Store
    from kubeloop.objects.meta import JsonObject

NAMESPACES = "/namespaces"


class Operation(enum.Enum):
    """What is about to happen to an object."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A write before it happens. `old` is None at creation; `obj` is the last state at deletion."""

    operation: Operation
    resource: Resource
    subresource: str
    user: User
    obj: JsonObject
    old: JsonObject | None = None


class Admission(Protocol):
    """A plugin."""

    def admit(self, review: Review) -> None:
        """Return, having changed `review.obj` in place if need be, or raise `StatusError`."""


class NamespaceLifecycle:
    """Objects are made in namespaces that exist and are not going; three namespaces stay."""

    _FOREVER = ("default", "kube-system", "kube-public")

    def __init__(self, store: Store) -> None:
        self._store = store

    def admit(self, review: Review) -> None:
        """Look at the namespace."""
        if review.operation is Operation.DELETE:
            self._keep(review)
        elif review.operation is Operation.CREATE and review.resource.namespaced:
            self._check(review)

    def _keep(self, review: Review) -> None:
        name = review.obj["metadata"]["name"]
        if review.resource.stored_in == NAMESPACES and name in self._FOREVER:
            raise status.forbidden_object(
                "", "namespaces", name, "this namespace may not be deleted"
            )

    def _check(self, review: Review) -> None:
        metadata = review.obj["metadata"]
        namespace = metadata["namespace"]
        record = self._store.collection(NAMESPACES).get(namespace)
        if record is None:
            raise status.not_found("", "namespaces", namespace)
        if b'"deletionTimestamp"' in record.data and _is_going(record.decode()):
            raise _terminating(review.resource, metadata.get("name", ""), namespace)


def _is_going(namespace: JsonObject) -> bool:
    return bool(namespace["metadata"].get("deletionTimestamp"))


def _terminating(resource: Resource, name: str, namespace: str) -> status.StatusError:
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    refusal = status.forbidden_object(resource.group, resource.plural, name, why)
    refusal.status.setdefault("details", {})["causes"] = [
        {
            "reason": "NamespaceTerminating",
            "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }
    ]
    return refusal
