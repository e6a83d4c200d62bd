"""The verbs of a resource: one table from verb to what answers it, and the delete verb itself.

Nothing here awaits: a call is one step. A deletion checks its preconditions, then removes the object
at once, or marks it and waits for its grace period, its finalizers and its dependents.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import msgspec

from devkube.apiserver import calls, status
from devkube.apiserver.calls import ApiResponse, Call, WatchResponse, flag
from devkube.apiserver.patch import patching
from devkube.apiserver.registry import serialization
from devkube.apiserver.registry.list_watch import (
    CollectionLister,
    Watch,
    read_version,
    read_watch,
    selection,
)
from devkube.apiserver.registry.serialization import ListMetadata, Presenter
from devkube.apiserver.registry.writer import ObjectWriter, WriteResult, has_finalizers, is_finished
from devkube.apiserver.storage import StoredObject
from kubeloop.objects.meta import JsonObject

_FOREGROUND = "foregroundDeletion"
_ORPHAN = "orphan"
_POLICIES = ("Foreground", "Background", "Orphan")
# Kinds whose deletion answers with the object, not with a Status.
_RETURNED = (
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ResourceQuota",
    "Service",
    "ServiceAccount",
)
# Kinds that a PUT makes if they are missing.
_MADE_BY_PUT = (
    "ClusterRole",
    "ClusterRoleBinding",
    "Endpoints",
    "Event",
    "Lease",
    "LimitRange",
    "Role",
    "RoleBinding",
    "Service",
)
_encode = msgspec.json.Encoder().encode


class DeletionPreconditions(msgspec.Struct, rename="camel"):
    """Preconditions of a deletion."""

    uid: str | None = None
    resource_version: str | None = None


class DeletionRequest(msgspec.Struct, rename="camel"):
    """The options of a deletion, from the body or the query."""

    grace_period_seconds: int | None = None
    preconditions: DeletionPreconditions | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None


def read_delete_options(call: Call) -> DeletionRequest:
    """Read the options; the query counts if there is no body."""
    if call.body.strip():
        unreadable = "DeleteOptions cannot be read"
        options = calls.convert(calls.read_body(call), DeletionRequest, unreadable)
    else:
        options = _from_query(call)
    policy = options.propagation_policy
    if policy is not None and options.orphan_dependents is not None:
        text = "orphanDependents and deletionPropagation cannot be both set"
        raise _invalid(status.invalid("propagationPolicy", policy, text))
    if policy is not None and policy not in _POLICIES:
        raise _invalid(status.unsupported("propagationPolicy", policy, [*_POLICIES, "nil"]))
    grace = options.grace_period_seconds
    if grace is not None and grace < 0:
        options.grace_period_seconds = 1
    if options.dry_run not in (None, [], ["All"]):
        raise _invalid(status.unsupported("dryRun", options.dry_run, ["All"]))
    return options


def _invalid(error: status.FieldError) -> status.StatusError:
    return status.invalid_options("DeleteOptions", error)


def _from_query(call: Call) -> DeletionRequest:
    grace = call.query.get("gracePeriodSeconds")
    if grace and not grace.lstrip("-").isdigit():
        raise status.bad_request(f"gracePeriodSeconds: {grace!r} is not a number")
    orphan = flag(call.query, "orphanDependents") if "orphanDependents" in call.query else None
    return DeletionRequest(
        grace_period_seconds=int(grace) if grace else None,
        propagation_policy=call.query.get("propagationPolicy") or None,
        orphan_dependents=orphan,
    )


class Deleter:
    """The delete verb for every kind."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer

    def delete(self, call: Call, record: StoredObject, options: DeletionRequest) -> WriteResult:
        """Delete an object: at once, or by marking it and waiting for grace and finalizers."""
        old = call.served.load(record.decode())
        _check(call, old, options.preconditions)
        self._writer.admit_deletion(call, old)
        new = copy.deepcopy(old)
        _propagate(new, options)
        grace = _grace(call, new, options)
        if grace is None and not has_finalizers(new):
            return self._writer.remove(call, record, new)
        self._mark(new, grace or 0)
        if is_finished(new):
            return self._writer.remove(call, record, new)
        return self._writer.modify(call, record, _becomes(new))

    def _mark(self, obj: JsonObject, grace: int) -> None:
        metadata = obj["metadata"]
        known = metadata.get("deletionGracePeriodSeconds")
        if not metadata.get("deletionTimestamp"):
            if metadata.get("generation"):
                metadata["generation"] += 1
        elif known is not None and grace >= known:
            return  # a grace period may only become shorter
        metadata["deletionTimestamp"] = self._writer.stamps.now(ahead=grace)
        if obj.get("kind") == "Namespace":
            obj.setdefault("status", {})["phase"] = "Terminating"
        else:
            metadata["deletionGracePeriodSeconds"] = grace


def _becomes(new: JsonObject) -> Callable[[JsonObject], None]:
    def change(obj: JsonObject) -> None:
        obj.clear()
        obj.update(new)

    return change


def _check(call: Call, obj: JsonObject, preconditions: DeletionPreconditions | None) -> None:
    if preconditions is None:
        return
    metadata = obj["metadata"]
    pairs = (
        ("UID", preconditions.uid, metadata.get("uid"), "deleted and then recreated"),
        (
            "ResourceVersion",
            preconditions.resource_version,
            metadata.get("resourceVersion"),
            "modified",
        ),
    )
    for name, wanted, found, fate in pairs:
        if wanted is not None and wanted != found:
            raise status.conflict(
                call.resource.group,
                call.resource.kind,
                metadata["name"],
                f"the {name} in the precondition ({wanted}) does not match the {name} in record"
                f" ({found}). The object might have been {fate}",
            )


def _propagate(obj: JsonObject, options: DeletionRequest) -> None:
    """Turn the propagation policy into the finalizer that the garbage collector knows."""
    policy = options.propagation_policy
    if policy is None and options.orphan_dependents is not None:
        policy = "Orphan" if options.orphan_dependents else "Background"
    if policy is None:
        return
    metadata = obj["metadata"]
    finalizers = [f for f in metadata.get("finalizers") or () if f not in (_FOREGROUND, _ORPHAN)]
    if policy == "Foreground":
        finalizers.append(_FOREGROUND)
    elif policy == "Orphan":
        finalizers.append(_ORPHAN)
    metadata["finalizers"] = finalizers
    if not finalizers:
        del metadata["finalizers"]


def _grace(call: Call, obj: JsonObject, options: DeletionRequest) -> int | None:
    """Return the seconds that an object may take to go; None for kinds that go at once."""
    if call.resource.stored_in != "/pods":
        return None
    spec, state = obj.get("spec") or {}, obj.get("status") or {}
    if not spec.get("nodeName") or state.get("phase") in ("Succeeded", "Failed"):
        return 0
    if options.grace_period_seconds is not None:
        return options.grace_period_seconds
    return int(spec.get("terminationGracePeriodSeconds", 30))


class ResourceVerbs:
    """Answers calls about objects. Nothing here awaits: a call is one step."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer
        self._lister = CollectionLister(writer.store)
        self._deleter = Deleter(writer)
        self._verbs: dict[str, Callable[[Call], ApiResponse | WatchResponse]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def answer(self, call: Call) -> ApiResponse | WatchResponse:
        """Answer a call on a resource itself or on its status."""
        verb = call.attributes.verb
        handler = self._verbs.get(verb)
        served = verb in call.resource.verbs or call.attributes.subresource
        if handler is None or not served:
            raise status.method_not_allowed()
        if verb in ("create", "list", "watch", "deletecollection"):
            self._check_collection(call)
        elif not call.name:
            raise status.method_not_allowed()
        elif call.resource.namespaced and not call.namespace:
            raise status.no_such_path()
        return handler(call)

    def _check_collection(self, call: Call) -> None:
        verb, resource = call.attributes.verb, call.resource
        if call.attributes.subresource or (call.name and verb == "create"):
            raise status.method_not_allowed()
        if resource.namespaced and not call.namespace and verb in ("create", "deletecollection"):
            raise status.method_not_allowed()
        if (
            not resource.namespaced
            and call.attributes.namespace
            and resource.plural != "namespaces"
        ):
            raise status.no_such_path()

    def _get(self, call: Call) -> ApiResponse:
        version = read_version(call)
        if version is not None and version > self._writer.store.version:
            raise status.too_large(version, self._writer.store.version)
        record = self._writer.existing(call)
        return ApiResponse(body=Presenter(call, self._writer.stamps).record(record))

    def _list(self, call: Call) -> ApiResponse:
        records, meta = self._lister.page(call)
        return ApiResponse(body=Presenter(call, self._writer.stamps).page(records, meta))

    def _watch(self, call: Call) -> WatchResponse:
        store = self._writer.store
        watch = Watch(
            store=store,
            collection=self._writer.collection(call),
            request=read_watch(call, store.version),
            presenter=Presenter(call, self._writer.stamps),
        )
        return WatchResponse(watch)

    def _create(self, call: Call) -> ApiResponse:
        obj = serialization.conform(call, calls.read_body(call), body=call.body)
        return self.written(call, self._writer.create(call, obj))

    def _update(self, call: Call) -> ApiResponse:
        obj = serialization.conform(call, calls.read_body(call), body=call.body)
        if self._is_made_by_put(call):
            return self.written(call, self._writer.create(call, obj))
        record = self._writer.existing(call)
        if call.attributes.subresource == "status":
            return self.written(call, self._writer.update_status(call, obj, record))
        return self.written(call, self._writer.update(call, obj, record))

    def _is_made_by_put(self, call: Call) -> bool:
        if call.resource.kind not in _MADE_BY_PUT or call.resource.custom:
            return False
        return not call.attributes.subresource and self._writer.find(call) is None

    def _patch(self, call: Call) -> ApiResponse:
        return self.written(call, patching.patch(self._writer, call))

    def _delete(self, call: Call) -> ApiResponse:
        options = read_delete_options(call)
        if options.dry_run:
            call = dataclasses.replace(call, query={**call.query, "dryRun": "All"})
        record = self._writer.existing(call)
        return self.deleted(call, self._deleter.delete(call, record, options))

    def _delete_collection(self, call: Call) -> ApiResponse:
        options = read_delete_options(call)
        if options.dry_run:
            call = dataclasses.replace(call, query={**call.query, "dryRun": "All"})
        wanted = selection(call)
        collection = self._writer.collection(call)
        doomed = [record for record in collection.scan(call.namespace) if wanted.covers(record)]
        for record in doomed:
            self._deleter.delete(call, record, options)
        meta = ListMetadata(version=self._writer.store.version)
        return ApiResponse(body=Presenter(call, self._writer.stamps).page(doomed, meta))

    def written(self, call: Call, written: WriteResult) -> ApiResponse:
        """Answer a write with the object as it now is."""
        presenter = Presenter(call, self._writer.stamps)
        if written.record is not None and not written.deleted:
            body = presenter.record(written.record)
        else:
            body = _encode(presenter.object(written.obj))
        return ApiResponse(body=body, code=201 if written.created else 200, warnings=call.warnings)

    def deleted(self, call: Call, written: WriteResult) -> ApiResponse:
        """Answer a deletion: with a Status when the object is gone, else with the object."""
        if not written.deleted:
            return self.written(call, written)
        if call.resource.kind in _RETURNED and not call.resource.custom:
            return self.written(call, written)
        metadata = written.obj["metadata"]
        details: JsonObject = {"name": metadata["name"], "kind": call.resource.plural}
        if call.resource.group:
            details["group"] = call.resource.group
        details["uid"] = metadata.get("uid", "")
        return ApiResponse(body=_encode(status.success(details)))
