"""From a request's body to an object of its kind, and from a stored object to a response.

A body is decoded to the kind that the path names: types, unknown fields, identity. A client chooses the
representation of a response: whole objects, a table for people, or metadata only; always JSON.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from devkube.apiserver import status
from devkube.apiserver.calls import Call, FieldValidation
from devkube.apiserver.schema.conform import FieldDecodeError, duplicate_fields
from devkube.apiserver.storage import StoredObject
from devkube.apiserver.tables.printers import TablePrinter, printer_for
from devkube.apiserver.validation.names import Stamps
from kubeloop.objects.meta import JsonObject

_META_VERSIONS = ("meta.k8s.io/v1", "meta.k8s.io/v1beta1")
_encode = msgspec.json.Encoder().encode


class Representation(enum.Enum):
    """A representation that is sent instead of the object."""

    WHOLE = ""
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"
    PARTIAL_LIST = "PartialObjectMetadataList"


@dataclasses.dataclass(frozen=True, slots=True)
class Accepted:
    """The representation chosen, and in which version of its own."""

    shape: Representation = Representation.WHOLE
    meta_version: str = "meta.k8s.io/v1"


def negotiate(header: str) -> Accepted:
    """Choose the first offer that is served; 406 if there is no such offer."""
    for media, parameters in _offers(header or "*/*"):
        chosen = _choose(media, parameters)
        if chosen is not None:
            return chosen
    raise status.failure(
        406, "NotAcceptable", "only the following media types are accepted: application/json"
    )


def _choose(media: str, parameters: Mapping[str, str]) -> Accepted | None:
    if media not in ("application/json", "application/*", "*/*", "text/plain"):
        return None
    wanted = parameters.get("as", "")
    if not wanted:
        return Accepted()
    version = f"{parameters.get('g')}/{parameters.get('v')}"
    if version not in _META_VERSIONS:
        return None
    if wanted not in [shape.value for shape in Representation if shape is not Representation.WHOLE]:
        return None
    return Accepted(Representation(wanted), version)


def _offers(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    for offer in header.split(","):
        media, *rest = (part.strip() for part in offer.split(";"))
        pairs = (part.partition("=") for part in rest)
        yield media.lower(), {name: value for name, _, value in pairs}


Strict = Callable[[Call, JsonObject, str], status.StatusError]


def unknown_fields(call: Call, obj: JsonObject, findings: str) -> status.StatusError:
    """400: a body has fields that its kind does not know, and the request does not want them."""
    kind, version = call.resource.kind, call.served.version
    return status.bad_request(
        f'{kind} in version "{version}" cannot be handled as a {kind}:'
        f" strict decoding error: {findings}"
    )


def conform(
    call: Call, obj: JsonObject, *, body: bytes = b"", strict: Strict = unknown_fields
) -> JsonObject:
    """Return the object as its kind allows; reports unknown fields as the request asks.

    `body` is the text that `obj` came from, to look for repeated fields in. `strict` builds the
    error if unknown fields are refused.
    """
    check_kind(call, obj)
    try:
        decoded, unknown = call.resource.strategy.decode(obj, call.served)
    except FieldDecodeError as error:
        kind, version = call.resource.kind, call.served.version
        raise status.bad_request(
            f'{kind} in version "{version}" cannot be handled as a {kind}: {error}'
        ) from error
    report(call, obj, unknown, body, strict)
    metadata = decoded.get("metadata")
    if not isinstance(metadata, dict):
        decoded["metadata"] = {}
    return _ordered(call, decoded)


def _ordered(call: Call, obj: JsonObject) -> JsonObject:
    """Put the type and the metadata first, whatever the client sent."""
    first = {"apiVersion": call.resource.api_version(call.served), "kind": call.resource.kind}
    return {**first, "metadata": obj["metadata"], **obj, **first}


def check_kind(call: Call, obj: JsonObject) -> None:
    """Refuse an object of another kind than the request's path says."""
    wanted_version, wanted_kind = call.resource.api_version(call.served), call.resource.kind
    version, kind = obj.get("apiVersion", ""), obj.get("kind", "")
    if not isinstance(version, str) or not isinstance(kind, str):
        raise status.bad_request("apiVersion and kind must be strings")
    if not version and not kind:
        return
    if not kind:
        raise status.bad_request("Object 'Kind' is missing")
    if (version or wanted_version) != wanted_version or kind != wanted_kind:
        short = version.rpartition("/")[2]
        raise status.bad_request(
            f'{kind} in version "{short}" cannot be handled as a {wanted_kind}: no kind "{kind}" is'
            f' registered for version "{version}" here: expected {wanted_kind} in "{wanted_version}"'
        )


def report(
    call: Call, obj: JsonObject, unknown: list[str], body: bytes, strict: Strict = unknown_fields
) -> None:
    """Refuse, warn about, or pass over unknown and repeated fields."""
    mode = call.validation
    if mode is FieldValidation.IGNORE:
        return
    repeated = duplicate_fields(body) if _may_repeat(obj, body) else []
    findings = [f'unknown field "{path}"' for path in unknown]
    findings += [f'duplicate field "{path}"' for path in repeated]
    if not findings:
        return
    if mode is FieldValidation.STRICT:
        raise strict(call, obj, ", ".join(findings))
    call.warnings.extend(findings)


def _may_repeat(obj: Any, body: bytes) -> bool:
    """Whether the text has other quotes than the object: a repeated field leaves at least two."""
    return (
        bool(body) and body[:1] == b"{" and body.count(b'"') != msgspec.json.encode(obj).count(b'"')
    )


def check_target(call: Call, obj: JsonObject) -> None:
    """Refuse a body whose name or namespace is not the path's; fill in what it leaves out."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace") or ""
    if call.resource.namespaced:
        if namespace and namespace != call.namespace:
            raise status.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        metadata["namespace"] = call.namespace
    elif namespace:
        raise status.bad_request(
            "namespace may not be set on cluster-scoped objects: remove metadata.namespace"
        )
    if call.name:
        name = metadata.get("name") or ""
        if name and name != call.name:
            raise status.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({call.name})"
            )
        metadata["name"] = call.name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListMetadata:
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
        self.form: object = form if self._shape is not Representation.TABLE else None
        # Stored objects begin with their type; only custom ones keep it in lists.
        named = _encode({"apiVersion": api_version, "kind": call.resource.kind})
        self._type = b"%b," % named[:-1] if not call.resource.custom else b"\0"
        self._streams = call.attributes.verb == "watch"
        self._headed = False

    def record(self, record: StoredObject) -> bytes:
        """Return one stored object."""
        call = self._call
        if self._shape is Representation.WHOLE and call.served.is_stored:
            return record.data
        return _encode(self.object(call.served.load(record.decode())))

    def object(self, obj: JsonObject) -> JsonObject:
        """Return one object that is at hand."""
        match self._shape:
            case Representation.WHOLE:
                return obj
            case Representation.TABLE:
                version = obj["metadata"].get("resourceVersion", "")
                return self._table([obj], {"resourceVersion": version})
            case Representation.PARTIAL | Representation.PARTIAL_LIST:
                return self._partial(obj)

    def page(self, records: Iterable[StoredObject], meta: ListMetadata) -> bytes:
        """Return a list."""
        call = self._call
        if self._shape is Representation.TABLE:
            objects = [call.served.load(record.decode()) for record in records]
            return _encode(self._table(objects, meta.as_object()))
        if self._shape is Representation.WHOLE:
            kind, version = call.resource.list_kind, call.resource.api_version(call.served)
        else:
            kind, version = "PartialObjectMetadataList", self._meta
        head = _encode({"kind": kind, "apiVersion": version, "metadata": meta.as_object()})
        return b'%b,"items":[%b]}' % (head[:-1], b",".join(map(self._item, records)))

    def _item(self, record: StoredObject) -> bytes:
        """Return a member of a list; those of a built-in kind do not repeat what they are."""
        data = self.record(record)
        if self._shape is Representation.WHOLE and data.startswith(self._type):
            return b"{%b" % data[len(self._type) :]
        return data

    def bookmark(self, version: int, *, initial: bool = False) -> bytes:
        """Return the object of a bookmark."""
        metadata: JsonObject = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        match self._shape:
            case Representation.WHOLE:
                kind = self._call.resource.kind
                api_version = self._call.resource.api_version(self._call.served)
            case Representation.TABLE:
                table = self._table([], {"resourceVersion": str(version)})
                row = {"cells": [], "object": self._partial({"metadata": metadata})}
                return _encode({**table, "rows": [row]})
            case _:
                kind, api_version = "PartialObjectMetadata", self._meta
        return _encode({"kind": kind, "apiVersion": api_version, "metadata": metadata})

    def _table(self, objects: list[JsonObject], meta: JsonObject) -> JsonObject:
        printer = printer_for(self._call.resource, self._call.served)
        now = self._stamps.moment()
        return {
            "kind": "Table",
            "apiVersion": self._meta,
            "metadata": meta,
            "columnDefinitions": self._columns(printer),
            "rows": [
                {"cells": printer.cells(self._printed(obj), now), "object": self._included(obj)}
                for obj in objects
            ],
        }

    def _columns(self, printer: TablePrinter) -> list[JsonObject]:
        """Return the columns; a stream of tables has them once."""
        if self._streams and self._headed:
            return []
        self._headed = True
        return printer.definitions()

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
