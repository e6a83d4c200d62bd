"""Create and update: from a decoded object to a stored one.

Every write is one synchronous step: look up, admit, prepare, default, validate, record who owns
which field, store. An update that changes nothing writes nothing and keeps its version. With
`dryRun=All` everything happens but the last step.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence

from devkube.apiserver import status
from devkube.apiserver.calls import Call
from devkube.apiserver.patch.apply import FieldTracker
from devkube.apiserver.registry.admission import (
    AdmissionOperation,
    AdmissionPlugin,
    AdmissionReview,
)
from devkube.apiserver.registry.resources import keep
from devkube.apiserver.registry.serialization import check_target
from devkube.apiserver.status import forbidden, invalid
from devkube.apiserver.storage import Collection, ObjectStore, StoredObject
from devkube.apiserver.validation.names import Stamps
from kubeloop.objects.meta import JsonObject

_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "generation",
)
_GENERATED_TRIES = 8
_IMMUTABLE = "field is immutable"


@dataclasses.dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write: the object in the request's version, and its record if it was stored."""

    obj: JsonObject
    record: StoredObject | None = None
    created: bool = False
    deleted: bool = False


@dataclasses.dataclass(eq=False, kw_only=True)
class ObjectWriter:
    """The one way into the store."""

    store: ObjectStore
    stamps: Stamps
    tracker: FieldTracker
    admission: Sequence[AdmissionPlugin]
    allocators: Sequence[AdmissionPlugin]
    observe: Callable[[Call, WriteResult], None]

    def collection(self, call: Call) -> Collection:
        """Return the collection of a call's resource."""
        return self.store.collection(call.resource.stored_in)

    def find(self, call: Call) -> StoredObject | None:
        """Return the object that the call names, or None."""
        return self.collection(call).get(call.key)

    def existing(self, call: Call) -> StoredObject:
        """Return the object that the call names; 404 if absent."""
        record = self.find(call)
        if record is None:
            raise call.resource.not_found(call.name)
        return record

    def create(
        self, call: Call, obj: JsonObject, *, applied: JsonObject | None = None
    ) -> WriteResult:
        """Make an object; `applied` is the configuration it came from, if by server-side apply."""
        check_target(call, obj)
        metadata = obj["metadata"]
        if metadata.get("resourceVersion"):
            raise status.bad_request("resourceVersion should not be set on objects to be created")
        self._consult(self.admission, call, AdmissionOperation.CREATE, obj, None)
        strategy = call.resource.strategy
        self._begin(call, obj)
        strategy.prepare_create(obj, call.served)
        if strategy.tracks_generation:
            metadata["generation"] = 1
        strategy.default(obj, call.served)
        self._refuse(call, obj, strategy.validate(obj, call.served))
        if applied is None:
            self.tracker.created(call, obj)
        else:
            self.tracker.applied_new(call, obj, applied)
        self._consult(self.allocators, call, AdmissionOperation.CREATE, obj, None)
        key = _key(call, obj)
        taken = self.collection(call).get(key)
        if taken is not None:
            raise _taken(call, taken)
        return self._save(call, key, obj, created=True)

    def update(
        self, call: Call, new: JsonObject, record: StoredObject, *, owned: bool = False
    ) -> WriteResult:
        """Replace an object through its main resource; `owned` when ownership is already settled."""
        old = call.served.load(record.decode())
        check_target(call, new)
        self._check_version(call, new, old)
        errors = _deletion_is_fixed(new, old)
        metadata, before = new["metadata"], old["metadata"]
        for name in (*_SERVER_OWNED, "generateName"):
            if name in before:
                metadata[name] = before[name]
            elif name != "generateName":
                metadata.pop(name, None)
        self._consult(self.admission, call, AdmissionOperation.UPDATE, new, old)
        strategy = call.resource.strategy
        strategy.prepare_update(new, old, call.served)
        strategy.default(new, call.served)
        self._count_generation(call, new, old)
        errors += strategy.validate(new, call.served)
        errors += _finalizers_only_shrink(new, old)
        errors += strategy.validate_update(new, old, call.served)
        self._refuse(call, new, errors)
        if not owned:
            self.tracker.updated(call, new, old)
        self._consult(self.allocators, call, AdmissionOperation.UPDATE, new, old)
        return self._replace(call, new, old, record)

    def update_status(
        self, call: Call, new: JsonObject, record: StoredObject, *, owned: bool = False
    ) -> WriteResult:
        """Replace an object's status and nothing else."""
        old = call.served.load(record.decode())
        check_target(call, new)
        self._check_version(call, new, old)
        merged = {**old, "metadata": {**old["metadata"]}}
        merged["metadata"]["managedFields"] = new["metadata"].get("managedFields")
        keep(merged, new, "status")
        self._consult(self.admission, call, AdmissionOperation.UPDATE, merged, old)
        self._refuse(call, merged, call.resource.strategy.validate(merged, call.served))
        if not owned:
            self.tracker.updated(call, merged, old)
        return self._replace(call, merged, old, record)

    def modify(
        self, call: Call, record: StoredObject, change: Callable[[JsonObject], None]
    ) -> WriteResult:
        """Let the server itself change an object, past the rules for users."""
        old = call.served.load(record.decode())
        new = copy.deepcopy(old)
        change(new)
        return self._replace(call, new, old, record)

    def remove(self, call: Call, record: StoredObject, obj: JsonObject) -> WriteResult:
        """Take an object out of the store."""
        if call.dry_run:
            return WriteResult(obj, deleted=True)
        stored = call.served.store(obj)
        fields = call.resource.fields_of(stored)
        gone = self.store.delete(self.collection(call), record.key, stored, fields=fields)
        written = WriteResult(obj, gone, deleted=True)
        self.observe(call, written)
        return written

    def admit_deletion(self, call: Call, obj: JsonObject) -> None:
        """Ask the plugins whether an object may go."""
        self._consult(self.admission, call, AdmissionOperation.DELETE, obj, obj)

    def _begin(self, call: Call, obj: JsonObject) -> None:
        metadata = obj["metadata"]
        for name in (*_SERVER_OWNED, "managedFields"):
            metadata.pop(name, None)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._generate(call, metadata["generateName"])
        metadata["uid"] = self.stamps.uid()
        metadata["creationTimestamp"] = self.stamps.now()

    def _generate(self, call: Call, prefix: str) -> str:
        collection = self.collection(call)
        name = self.stamps.name(prefix)
        for _ in range(_GENERATED_TRIES):
            key = f"{call.namespace}/{name}" if call.namespace else name
            if collection.get(key) is None:
                break
            name = self.stamps.name(prefix)
        return name

    def _consult(
        self,
        plugins: Sequence[AdmissionPlugin],
        call: Call,
        operation: AdmissionOperation,
        obj: JsonObject,
        old: JsonObject | None,
    ) -> None:
        review = AdmissionReview(
            operation=operation,
            resource=call.resource,
            subresource=call.attributes.subresource,
            user=call.user,
            obj=obj,
            old=old,
        )
        for plugin in plugins:
            plugin.admit(review)

    def _check_version(self, call: Call, new: JsonObject, old: JsonObject) -> None:
        metadata = new["metadata"]
        uid = metadata.get("uid")
        if uid and uid != old["metadata"]["uid"]:
            if call.attributes.verb == "patch":
                error = invalid("metadata.uid", uid, _IMMUTABLE)
                raise call.resource.invalid(call.name, [error])
            raise call.resource.conflict(
                call.name,
                f"Precondition failed: UID in precondition: {uid},"
                f" UID in object meta: {old['metadata']['uid']}",
            )
        version = metadata.get("resourceVersion") or ""
        if version in ("", "0"):
            if not call.resource.strategy.blind_update and call.attributes.verb == "update":
                text = "must be specified for an update"
                error = invalid("metadata.resourceVersion", 0, text)
                raise status.invalid_object(
                    call.resource.group, call.resource.plural, call.name, [error]
                )
        elif version != old["metadata"]["resourceVersion"]:
            raise call.resource.conflict(call.name)

    def _count_generation(self, call: Call, new: JsonObject, old: JsonObject) -> None:
        if not call.resource.strategy.tracks_generation:
            return
        ignored = {"metadata", "apiVersion", "kind"}
        if "status" in call.served.subresources:
            ignored.add("status")
        after, before = (
            {name: value for name, value in obj.items() if name not in ignored}
            for obj in (new, old)
        )
        if after != before:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def _refuse(self, call: Call, obj: JsonObject, errors: Sequence[status.FieldError]) -> None:
        if errors:
            raise call.resource.invalid(obj["metadata"].get("name", ""), errors)

    def _replace(
        self, call: Call, new: JsonObject, old: JsonObject, record: StoredObject
    ) -> WriteResult:
        metadata = new["metadata"]
        metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
        if metadata.get("deletionTimestamp") and is_finished(new):
            return self.remove(call, record, new)
        if self.tracker.same(new, old):
            return WriteResult(old, record)
        return self._save(call, record.key, new)

    def _save(self, call: Call, key: str, obj: JsonObject, *, created: bool = False) -> WriteResult:
        if call.dry_run:
            return WriteResult(obj, created=created)
        stored = call.served.store(obj)
        fields = call.resource.fields_of(stored)
        record = self.store.put(self.collection(call), key, stored, fields=fields)
        obj["metadata"]["resourceVersion"] = str(record.version)
        written = WriteResult(obj, record, created=created)
        self.observe(call, written)
        return written


def has_finalizers(obj: JsonObject) -> bool:
    """Whether something has to be done before the object may go."""
    ends = obj.get("kind") == "Namespace" and (obj.get("spec") or {}).get("finalizers")
    return bool(ends or obj["metadata"].get("finalizers"))


def is_finished(obj: JsonObject) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    return not has_finalizers(obj) and not obj["metadata"].get("deletionGracePeriodSeconds")


def _key(call: Call, obj: JsonObject) -> str:
    name = obj["metadata"]["name"]
    return f"{call.namespace}/{name}" if call.namespace else str(name)


def _taken(call: Call, record: StoredObject) -> status.StatusError:
    resource = call.resource
    refusal = status.already_exists(resource.group, resource.plural, record.name)
    if record.decode()["metadata"].get("deletionTimestamp"):
        refusal.status["message"] = f"object is being deleted: {refusal.status['message']}"
    return refusal


def _deletion_is_fixed(new: JsonObject, old: JsonObject) -> list[status.FieldError]:
    """Refuse a deletion that is written by hand, or moved."""
    moment = new["metadata"].get("deletionTimestamp")
    if not moment or moment == old["metadata"].get("deletionTimestamp"):
        return []
    return [invalid("metadata.deletionTimestamp", moment, _IMMUTABLE)]


def _finalizers_only_shrink(new: JsonObject, old: JsonObject) -> list[status.FieldError]:
    if not old["metadata"].get("deletionTimestamp"):
        return []
    before = old["metadata"].get("finalizers") or []
    added = sorted(set(new["metadata"].get("finalizers") or []) - set(before))
    if not added:
        return []
    shown = ", ".join(f'"{name}"' for name in added)
    text = (
        "no new finalizers can be added if the object is being deleted,"
        f" found new finalizers []string{{{shown}}}"
    )
    return [forbidden("metadata.finalizers", text)]
