"""Objects as clients want to see them: whole, as metadata only, or as rows of a table."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from elasti.devcluster.apiserver.negotiation import Shape
from elasti.devcluster.apiserver.tables.printers import Table, printer_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.identity import Stamps
    from elasti.devcluster.apiserver.storage import Record
    from kubeloop.objects.meta import JsonObject

_encode = msgspec.json.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListMeta:
    """A list's own metadata."""

    version: int
    continue_token: str = ""
    remaining: int | None = None

    def as_object(self) -> JsonObject:
        """Return it as JSON has it."""
        result: JsonObject = {"resourceVersion": str(self.version)}
        if self.continue_token:
            result["continue"] = self.continue_token
        if self.remaining:
            result["remainingItemCount"] = self.remaining
        return result


class Presenter:
    """Makes the response body of one call. `form` names what it makes, to share encoded events."""

    def __init__(self, call: Call, stamps: Stamps) -> None:
        self._call = call
        self._stamps = stamps
        self._shape = call.accepted.shape
        self._meta = call.accepted.meta_version
        self._include = call.query.get("includeObject") or "Metadata"
        api_version = call.resource.api_version(call.served)
        # Rows of a table show ages, so that they are never the same twice: not to be kept.
        form = (self._shape, self._meta, api_version, self._include)
        self.form: object = form if self._shape is not Shape.TABLE else None
        # Stored objects begin with their type; only custom ones keep it in lists.
        named = _encode({"apiVersion": api_version, "kind": call.resource.kind})
        self._type = b"%b," % named[:-1] if not call.resource.custom else b"\0"
        self._streams = call.attributes.verb == "watch"
        self._headed = False

    def record(self, record: Record) -> bytes:
        """Return one stored object."""
        call = self._call
        if self._shape is Shape.WHOLE and call.served.is_stored:
            return record.data
        return _encode(self.object(call.served.load(record.decode())))

    def object(self, obj: JsonObject) -> JsonObject:
        """Return one object that is at hand."""
        match self._shape:
            case Shape.WHOLE:
                return obj
            case Shape.TABLE:
                version = obj["metadata"].get("resourceVersion", "")
                return self._table([obj], {"resourceVersion": version})
            case Shape.PARTIAL | Shape.PARTIAL_LIST:
                return self._partial(obj)

    def page(self, records: Iterable[Record], meta: ListMeta) -> bytes:
        """Return a list."""
        call = self._call
        if self._shape is Shape.TABLE:
            objects = [call.served.load(record.decode()) for record in records]
            return _encode(self._table(objects, meta.as_object()))
        if self._shape is Shape.WHOLE:
            kind, version = call.resource.list_kind, call.resource.api_version(call.served)
        else:
            kind, version = "PartialObjectMetadataList", self._meta
        head = _encode({"kind": kind, "apiVersion": version, "metadata": meta.as_object()})
        return b'%b,"items":[%b]}' % (head[:-1], b",".join(map(self._item, records)))

    def _item(self, record: Record) -> bytes:
        """Return a member of a list; those of a built-in kind do not repeat what they are."""
        data = self.record(record)
        if self._shape is Shape.WHOLE and data.startswith(self._type):
            return b"{%b" % data[len(self._type) :]
        return data

    def bookmark(self, version: int, *, initial: bool = False) -> bytes:
        """Return the object of a bookmark."""
        metadata: JsonObject = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        match self._shape:
            case Shape.WHOLE:
                kind = self._call.resource.kind
                api_version = self._call.resource.api_version(self._call.served)
            case Shape.TABLE:
                table = self._table([], {"resourceVersion": str(version)})
                row = {"cells": [], "object": self._partial({"metadata": metadata})}
                return _encode({**table, "rows": [row]})
            case _:
                kind, api_version = "PartialObjectMetadata", self._meta
        return _encode({"kind": kind, "apiVersion": api_version, "metadata": metadata})

    def _table(self, objects: list[JsonObject], meta: JsonObject) -> JsonObject:
        printer = printer_for(self._call.resource, self._call.served)
        table = Table(printer, now=self._stamps.moment())
        return {
            "kind": "Table",
            "apiVersion": self._meta,
            "metadata": meta,
            "columnDefinitions": self._columns(table),
            "rows": [
                {"cells": table.cells(self._printed(obj)), "object": self._included(obj)}
                for obj in objects
            ],
        }

    def _columns(self, table: Table) -> list[JsonObject]:
        """Return the columns; a stream of tables has them once."""
        if self._streams and self._headed:
            return []
        self._headed = True
        return table.columns()

    def _printed(self, obj: JsonObject) -> JsonObject:
        """Return the form that printers know: a custom kind's own version, else the stored one."""
        return obj if self._call.resource.custom else self._call.served.store(obj)

    def _included(self, obj: JsonObject) -> Any:
        match self._include:
            case "Object":
                return obj
            case "None":
                return None
            case _:
                return self._partial(obj)

    def _partial(self, obj: JsonObject) -> JsonObject:
        """Return an object's metadata alone."""
        kind = {"kind": "PartialObjectMetadata", "apiVersion": self._meta}
        return {**kind, "metadata": obj["metadata"]}
