"""Admission plugins: namespaces, and the addresses of Services.

A plugin may change the object or refuse it. Plugins run in order, after decoding and before defaults
and validation, and without awaiting: a write is one step.

Cluster addresses are allocated as Services are written. What is taken is read off the
stored Services each time: one truth, nothing to repair after a crash. A cluster that starts with
other address ranges than last time moves the stored Services to them.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import socket
from collections.abc import Iterator
from typing import Protocol

from devkube.apiserver import status
from devkube.apiserver.auth import UserInfo
from devkube.apiserver.registry.resources import ServedResource
from devkube.apiserver.storage import ObjectStore
from kubeloop.objects.meta import JsonObject

NAMESPACES = "/namespaces"
_SERVICES = "/services"
_ADDRESS_FIELD = "spec.clusterIP"
_API_SERVER = "default/kubernetes"


class AdmissionOperation(enum.Enum):
    """A pending change of an object."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionReview:
    """A write before it happens. `old` is None at creation; `obj` is the last state at deletion."""

    operation: AdmissionOperation
    resource: ServedResource
    subresource: str
    user: UserInfo
    obj: JsonObject
    old: JsonObject | None = None


class AdmissionPlugin(Protocol):
    """A plugin."""

    def admit(self, review: AdmissionReview) -> None:
        """Return, having changed `review.obj` in place if need be, or raise `StatusError`."""


class NamespaceLifecycle:
    """Objects are made in namespaces that exist and are not going; three namespaces stay."""

    _FOREVER = ("default", "kube-system", "kube-public")

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def admit(self, review: AdmissionReview) -> None:
        """Check the namespace."""
        if review.operation is AdmissionOperation.DELETE:
            self._keep(review)
        elif review.operation is AdmissionOperation.CREATE and review.resource.namespaced:
            self._check(review)

    def _keep(self, review: AdmissionReview) -> None:
        name = review.obj["metadata"]["name"]
        if review.resource.stored_in == NAMESPACES and name in self._FOREVER:
            raise status.forbidden_object(
                "", "namespaces", name, "this namespace may not be deleted"
            )

    def _check(self, review: AdmissionReview) -> None:
        metadata = review.obj["metadata"]
        namespace = metadata["namespace"]
        record = self._store.collection(NAMESPACES).get(namespace)
        if record is None:
            raise status.not_found("", "namespaces", namespace)
        if record.decode()["metadata"].get("deletionTimestamp"):
            raise _terminating(review.resource, metadata.get("name", ""), namespace)


def _terminating(resource: ServedResource, name: str, namespace: str) -> status.StatusError:
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


class ServiceAddresses:
    """Gives Services their cluster addresses."""

    def __init__(self, store: ObjectStore, *, network: str) -> None:
        self._store = store
        self._network = ipaddress.ip_network(network)
        self._next = 1

    def admit(self, review: AdmissionReview) -> None:
        """Fill in what a Service leaves to the server."""
        if review.resource.stored_in != _SERVICES or review.subresource == "status":
            return
        if review.operation is AdmissionOperation.DELETE:
            return
        spec = review.obj.setdefault("spec", {})
        if not isinstance(spec, dict) or spec.get("type") == "ExternalName":
            return
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        self._address(review, spec)

    def _address(self, review: AdmissionReview, spec: JsonObject) -> None:
        old = (review.old or {}).get("spec") or {}
        if old.get("clusterIP"):
            return
        wanted = spec.get("clusterIP") or ""
        if wanted == "None":
            spec["clusterIPs"] = ["None"]
            spec.setdefault("ipFamilies", ["IPv4"])
            return
        taken = set(self._taken())
        if wanted:
            self._claim(review, wanted, taken)
        else:
            wanted = self._free(taken)
        spec["clusterIP"] = wanted
        spec["clusterIPs"] = [wanted]
        spec.setdefault("ipFamilies", ["IPv4"])

    def _claim(self, review: AdmissionReview, wanted: str, taken: set[str]) -> None:
        name = review.obj["metadata"].get("name", "")
        try:
            inside = ipaddress.ip_address(wanted) in self._network
        except ValueError:
            return  # validation says what an address looks like
        why = ""
        if not inside:
            why = (
                f"failed to allocate IP {wanted}: the provided network does not match the current"
                f" range {self._network}"
            )
        elif wanted in taken:
            why = f"failed to allocate IP {wanted}: provided IP is already allocated"
        if why:
            error = status.invalid("spec.clusterIPs", [wanted], why)
            raise review.resource.invalid(name, [error])

    def _taken(self) -> Iterator[str]:
        for record in self._store.collection(_SERVICES).scan():
            address = record.fields.get(_ADDRESS_FIELD)
            if address:
                yield address

    def _free(self, taken: set[str]) -> str:
        size = self._network.num_addresses
        for step in range(size):
            index = (self._next + step) % size
            address = str(self._network[index])
            if 0 < index < size - 1 and address not in taken:
                self._next = index + 1
                return address
        raise status.failure(500, "InternalError", "failed to allocate a serviceIP: range is full")


def move_services(store: ObjectStore, *, network: str) -> None:
    """Give Services whose address is of another range the same place in this one.

    A cluster's range may be taken when it starts again; all ranges have the same size.
    """
    here = ipaddress.ip_network(network)
    services = store.collection(_SERVICES)
    for record in list(services.scan()):
        address = record.fields.get(_ADDRESS_FIELD, "")
        if address in ("", "None") or ipaddress.ip_address(address) in here:
            continue
        moved = str(here[int(ipaddress.ip_address(address)) % here.num_addresses])
        service = record.decode()
        service["spec"] |= {"clusterIP": moved, "clusterIPs": [moved]}
        store.put(services, record.key, service, fields={**record.fields, _ADDRESS_FIELD: moved})


def make_server_reachable(store: ObjectStore, *, port: int) -> None:
    """Let the API server's Service have its own port if the usual one needs a privilege."""
    services = store.collection(_SERVICES)
    record = services.get(_API_SERVER)
    if record is None:
        return
    service = record.decode()
    spec = service["spec"]
    if not may_listen(spec["clusterIP"], spec["ports"][0]["port"]):
        spec["ports"][0]["port"] = port
        store.put(services, _API_SERVER, service, fields=record.fields)


def may_listen(address: str, port: int) -> bool:
    """Whether this process may bind a port; that another process has it is another matter."""
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError as error:
            return not isinstance(error, PermissionError)
    return True
