"""Keeps what is served in step with the definitions that are stored.

Runs inside the write itself: when a definition has been written, its resource is served before the
client has its answer. A definition that goes takes its objects along, and goes when they are gone.
"""

from __future__ import annotations

import dataclasses

import msgspec

from devkube.apiserver import status
from devkube.apiserver.auth import UserInfo
from devkube.apiserver.calls import Attributes, Call
from devkube.apiserver.crd.definition import has_rules
from devkube.apiserver.crd.serving import make_resource
from devkube.apiserver.crd.validation import SchemaError
from devkube.apiserver.registry.admission import AdmissionOperation, AdmissionReview
from devkube.apiserver.registry.resources import ResourceRegistry, ServedResource
from devkube.apiserver.registry.serialization import Accepted
from devkube.apiserver.registry.verbs import Deleter, DeletionRequest
from devkube.apiserver.registry.writer import ObjectWriter, WriteResult
from devkube.apiserver.schema.types import OBJECT_META, BuiltinTypes
from devkube.apiserver.storage import ObjectStore
from kubeloop.objects.meta import JsonObject

DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"
_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_NOT_EVALUATED = "x-kubernetes-validations are stored but not evaluated by this development server"


class CleanupFinalizer:
    """Puts the finalizer on a new definition that keeps it until its objects are gone."""

    def admit(self, review: AdmissionReview) -> None:
        """Admit definitions only."""
        if (
            review.operation is AdmissionOperation.CREATE
            and review.resource.stored_in == DEFINITIONS
        ):
            finalizers = review.obj["metadata"].setdefault("finalizers", [])
            if isinstance(finalizers, list) and _CLEANUP not in finalizers:
                finalizers.append(_CLEANUP)


class TerminatingDefinitions:
    """Refuses new objects of a kind whose definition is going."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def admit(self, review: AdmissionReview) -> None:
        """Admit new custom objects only."""
        resource = review.resource
        if review.operation is not AdmissionOperation.CREATE or not resource.custom:
            return
        name = f"{resource.plural}.{resource.group}"
        record = self._store.collection(DEFINITIONS).get(name)
        if record is not None and record.decode()["metadata"].get("deletionTimestamp"):
            raise status.forbidden_object(
                resource.group,
                resource.plural,
                review.obj["metadata"].get("name", ""),
                "create not allowed while custom resource definition is terminating",
            )


class DefinitionController:
    """Observes writes of definitions and of custom objects."""

    def __init__(
        self, *, writer: ObjectWriter, registry: ResourceRegistry, types: BuiltinTypes
    ) -> None:
        self._writer = writer
        self._registry = registry
        self._metadata = types.type(OBJECT_META)
        self._deleter = Deleter(writer)

    def restore(self) -> None:
        """Serve what is stored and nothing else: after a start, and after writes were undone."""
        for resource in [resource for resource in self._registry if resource.custom]:
            self._registry.remove(resource.group, resource.plural)
        for record in self._writer.store.collection(DEFINITIONS).scan():
            self._serve(record.decode())

    def observe(self, call: Call, written: WriteResult) -> None:
        """Follow a write."""
        if call.resource.stored_in == DEFINITIONS:
            self._follow(call, written)
        elif call.resource.custom and written.deleted:
            self._finish(call.resource)

    def _follow(self, call: Call, written: WriteResult) -> None:
        definition = written.obj
        name = definition["metadata"]["name"]
        if written.deleted:
            spec = definition["spec"]
            self._registry.remove(spec["group"], spec["names"]["plural"])
            return
        if definition["metadata"].get("deletionTimestamp"):
            self._say_terminating(name)
            self._empty(definition, call.user)
            return
        if call.attributes.subresource:
            return
        self._serve(definition)
        if has_rules(definition["spec"].get("versions")):
            call.warnings.append(_NOT_EVALUATED)
        self._report(name, definition)

    def _serve(self, definition: JsonObject) -> None:
        try:
            resource = make_resource(definition, self._metadata)
            self._registry.add(resource)
            self._refill(resource)
        except (SchemaError, KeyError, StopIteration) as error:
            # Validation lets none of these through; a database of another age might.
            raise status.failure(
                500, "InternalError", f"the definition cannot be served: {error}"
            ) from error

    def _refill(self, resource: ServedResource) -> None:
        """Let stored objects show the defaults of a schema that changed; no object changes by it."""
        stored = next((served for served in resource.versions if served.is_stored), None)
        if stored is None:
            return
        collection = self._writer.store.collection(resource.stored_in)
        for record in list(collection.scan()):
            before, after = record.decode(), record.decode()
            resource.strategy.default(after, stored)
            if after != before:
                fields = resource.fields_of(after)
                data = msgspec.json.encode(after)
                collection.load(dataclasses.replace(record, data=data, fields=fields))

    def _report(self, name: str, definition: JsonObject) -> None:
        """Write the status that clients wait for."""
        store = self._writer.store
        collection = store.collection(DEFINITIONS)
        record = collection.get(name)
        if record is None:
            return
        stored = record.decode()
        wanted = self._status(definition, stored.get("status") or {})
        if stored.get("status") != wanted:
            stored["status"] = wanted
            store.put(collection, name, stored)
            definition["status"] = wanted
            definition["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]

    def _status(self, definition: JsonObject, old: JsonObject) -> JsonObject:
        spec = definition["spec"]
        storage = next(v["name"] for v in spec["versions"] if v.get("storage"))
        versions = list(dict.fromkeys([*(old.get("storedVersions") or []), storage]))
        accepted = ("NoConflicts", "no conflicts found")
        established = ("InitialNamesAccepted", "the initial names have been accepted")
        return {
            "conditions": [
                self._condition("NamesAccepted", accepted, old),
                self._condition("Established", established, old),
            ],
            "acceptedNames": spec["names"],
            "storedVersions": versions,
        }

    def _condition(self, kind: str, why: tuple[str, str], old: JsonObject) -> JsonObject:
        known = {item.get("type"): item for item in old.get("conditions") or []}.get(kind)
        since = (known or {}).get("lastTransitionTime") or self._writer.stamps.now()
        return {
            "type": kind,
            "status": "True",
            "lastTransitionTime": since,
            "reason": why[0],
            "message": why[1],
        }

    def _say_terminating(self, name: str) -> None:
        store = self._writer.store
        record = store.collection(DEFINITIONS).get(name)
        definition = record.decode() if record is not None else {}
        state = definition.get("status") or {}
        known = {item["type"] for item in state.get("conditions") or []}
        if not definition or "Terminating" in known:
            return
        why = ("InstanceDeletionInProgress", "CustomResource deletion is in progress")
        condition = self._condition("Terminating", why, state)
        definition["status"] = {**state, "conditions": [*state.get("conditions", []), condition]}
        store.put(store.collection(DEFINITIONS), name, definition)

    def _empty(self, definition: JsonObject, user: UserInfo) -> None:
        """Delete every object of a definition that is going."""
        spec = definition["spec"]
        resource = self._registry.get(spec["group"], spec["names"]["plural"])
        if resource is not None:
            collection = self._writer.store.collection(resource.stored_in)
            for record in list(collection.scan()):
                call = _call(resource, user, record.namespace, record.name)
                self._deleter.delete(call, record, DeletionRequest())
            self._finish(resource)

    def _finish(self, resource: ServedResource) -> None:
        """Let a definition go when its last object is gone."""
        store = self._writer.store
        record = store.collection(DEFINITIONS).get(f"{resource.plural}.{resource.group}")
        if record is None or len(store.collection(resource.stored_in)):
            return
        definition = record.decode()
        metadata = definition["metadata"]
        if not metadata.get("deletionTimestamp"):
            return
        metadata["finalizers"] = [f for f in metadata.get("finalizers") or [] if f != _CLEANUP]
        if metadata["finalizers"]:
            store.put(store.collection(DEFINITIONS), record.key, definition)
            return
        del metadata["finalizers"]
        store.delete(store.collection(DEFINITIONS), record.key, definition)
        self._registry.remove(resource.group, resource.plural)


def _call(resource: ServedResource, user: UserInfo, namespace: str, name: str) -> Call:
    """Return the call that a cascade makes on the server's own behalf."""
    served = resource.versions[0]
    stored = next((s for s in resource.versions if s.is_stored), served)
    attributes = Attributes(
        verb="delete",
        path="",
        group=resource.group,
        version=stored.version,
        resource=resource.plural,
        namespace=namespace,
        name=name,
    )
    return Call(
        attributes=attributes,
        resource=resource,
        served=stored,
        query={},
        user=user,
        accepted=Accepted(),
    )
