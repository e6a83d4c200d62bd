"""The verbs of a resource: one table from verb to what answers it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.apiserver import calls, decoding, patching, status
from elasti.devcluster.apiserver.answers import Answer, Streaming
from elasti.devcluster.apiserver.deletion import Deleter, read_options
from elasti.devcluster.apiserver.lists import Lister, read_version, selection
from elasti.devcluster.apiserver.representation import ListMeta, Presenter
from elasti.devcluster.apiserver.watches import Watch, read_watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.writes import Writer, Written
    from kubeloop.objects.meta import JsonObject

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
# Kinds that a PUT makes where they are missing.
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


class Endpoints:
    """Answers calls about objects. Nothing here awaits: a call is one step."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._lister = Lister(writer.store)
        self._deleter = Deleter(writer)
        self._verbs: dict[str, Callable[[Call], Answer | Streaming]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def answer(self, call: Call) -> Answer | Streaming:
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

    def _get(self, call: Call) -> Answer:
        version = read_version(call)
        if version is not None and version > self._writer.store.version:
            raise status.too_large(version, self._writer.store.version)
        record = self._writer.existing(call)
        return Answer(body=Presenter(call, self._writer.stamps).record(record))

    def _list(self, call: Call) -> Answer:
        records, meta = self._lister.page(call)
        return Answer(body=Presenter(call, self._writer.stamps).page(records, meta))

    def _watch(self, call: Call) -> Streaming:
        store = self._writer.store
        watch = Watch(
            store=store,
            collection=self._writer.collection(call),
            request=read_watch(call, store.version),
            presenter=Presenter(call, self._writer.stamps),
        )
        return Streaming(watch)

    def _create(self, call: Call) -> Answer:
        obj = decoding.conform(call, calls.read_body(call), body=call.body)
        return self.written(call, self._writer.create(call, obj))

    def _update(self, call: Call) -> Answer:
        obj = decoding.conform(call, calls.read_body(call), body=call.body)
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

    def _patch(self, call: Call) -> Answer:
        return self.written(call, patching.patch(self._writer, call))

    def _delete(self, call: Call) -> Answer:
        options = read_options(call)
        if options.dry_run:
            call = dataclasses.replace(call, query={**call.query, "dryRun": "All"})
        record = self._writer.existing(call)
        return self.deleted(call, self._deleter.delete(call, record, options))

    def _delete_collection(self, call: Call) -> Answer:
        options = read_options(call)
        if options.dry_run:
            call = dataclasses.replace(call, query={**call.query, "dryRun": "All"})
        wanted = selection(call)
        collection = self._writer.collection(call)
        doomed = [record for record in collection.scan(call.namespace) if wanted.covers(record)]
        for record in doomed:
            self._deleter.delete(call, record, options)
        meta = ListMeta(version=self._writer.store.version)
        return Answer(body=Presenter(call, self._writer.stamps).page(doomed, meta))

    def written(self, call: Call, written: Written) -> Answer:
        """Answer a write with the object as it now is."""
        presenter = Presenter(call, self._writer.stamps)
        if written.record is not None and not written.deleted:
            body = presenter.record(written.record)
        else:
            body = _encode(presenter.object(written.obj))
        return Answer(body=body, code=201 if written.created else 200, warnings=call.warnings)

    def deleted(self, call: Call, written: Written) -> Answer:
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
        return Answer(body=_encode(status.success(details)))

    def delete(self, call: Call, record_key: str) -> Written:
        """Delete an object on behalf of another subresource, with the call's own options."""
        record = self._writer.collection(call).get(record_key)
        if record is None:
            raise call.resource.not_found(call.name)
        return self._deleter.delete(call, record, read_options(call))
