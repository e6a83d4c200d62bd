"""The patch verb: choose the patch by media type, apply it to what is stored, write the result.

JSON patch (RFC 6902), JSON merge patch (RFC 7386), server-side apply, and strategic merge patch: a merge
patch that knows which lists have keys. Its directives are `$patch` (replace, delete, merge),
`$deleteFromPrimitiveList/…`, `$setElementOrder/…` and `$retainKeys`. Lists without the merge strategy
are replaced, as are types that are not known.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import jsonpatch
import jsonpointer
import msgspec

from devkube.apiserver import calls, status
from devkube.apiserver.calls import Call
from devkube.apiserver.patch.apply import unusable
from devkube.apiserver.registry import serialization
from devkube.apiserver.registry.writer import ObjectWriter, WriteResult
from devkube.apiserver.schema.types import ANY, Field, Type, TypeShape
from devkube.apiserver.storage import StoredObject
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import apply_merge_patch

_OPERATIONS_LIMIT = 10_000
_PATCH = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"
_UNTYPED = Field(type=ANY)
JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
APPLY_JSON = "application/apply-patch+json"
_ACCEPTED = (JSON, MERGE, STRATEGIC, APPLY)


class _Replace(jsonpatch.ReplaceOperation):
    """Kubernetes' own library adds what is to be replaced and is not there."""

    def apply(self, obj: Any) -> Any:
        container, part = self.pointer.to_last(obj)
        if isinstance(container, dict) and part is not None and part not in container:
            container[part] = self.operation["value"]
            return obj
        return super().apply(obj)


class _Operations(jsonpatch.JsonPatch):
    operations = MappingProxyType({**jsonpatch.JsonPatch.operations, "replace": _Replace})


def json_patch(target: JsonObject, operations: Any) -> JsonObject:
    """Return the target with a list of operations applied; 422 if one of them cannot be."""
    if not isinstance(operations, list):
        raise status.bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        )
    if len(operations) > _OPERATIONS_LIMIT:
        allowed = f"The allowed maximum operations in a JSON patch is {_OPERATIONS_LIMIT}"
        text = f"{allowed}, got {len(operations)}"
        raise status.failure(413, "RequestEntityTooLarge", text)
    try:
        result = _Operations(operations).apply(target)
    except jsonpatch.JsonPatchTestFailed as error:
        raise _unprocessable(f"testing value {_first_path(operations)} failed: {error}") from error
    except (
        jsonpatch.JsonPatchException,
        jsonpointer.JsonPointerException,
        TypeError,
        KeyError,
        ValueError,
        AttributeError,
        IndexError,
    ) as error:
        raise _unprocessable(str(error)) from error
    if not isinstance(result, dict):
        raise _unprocessable("the patched document is not an object")
    return result


def _first_path(operations: list[Any]) -> str:
    tests = [item for item in operations if isinstance(item, dict) and item.get("op") == "test"]
    return str(tests[0].get("path")) if tests else ""


def _unprocessable(why: str) -> status.StatusError:
    text = "the server rejected our request due to an error in our request"
    cause = {"reason": "UnexpectedServerResponse", "message": why}
    return status.failure(422, "Invalid", text, details={"causes": [cause]})


def _bad(why: str) -> status.StatusError:
    return status.bad_request(f"invalid strategic merge patch: {why}")


def strategic_patch(target: JsonObject, patch: JsonObject, kind: Type) -> JsonObject:
    """Return the target with a patch applied."""
    match patch.get(_PATCH):
        case "replace":
            return {name: value for name, value in patch.items() if name != _PATCH}
        case "delete":
            return {}
        case None | "merge":
            pass
        case other:
            raise _bad(f"unknown {_PATCH} type {other!r}")
    result = dict(target)
    _retain(result, patch)
    for name, value in patch.items():
        if name in (_PATCH, _RETAIN) or name.startswith((_ORDER, _DELETE)):
            continue
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _patch_value(result.get(name), value, _field(kind, name), patch, name)
    _apply_list_directives(result, patch, kind)
    return result


def _field(kind: Type, name: str) -> Field:
    if kind.shape is TypeShape.STRUCT and name in kind.fields:
        return kind.fields[name]
    return Field(type=kind.element or ANY) if kind.shape is TypeShape.MAP else _UNTYPED


def _retain(result: JsonObject, patch: JsonObject) -> None:
    keys = patch.get(_RETAIN)
    if keys is None:
        return
    if not isinstance(keys, list):
        raise _bad(f"{_RETAIN} must be a list")
    for name in [name for name in result if name not in keys]:
        del result[name]


def _patch_value(old: Any, new: Any, field: Field, patch: JsonObject, name: str) -> Any:
    if isinstance(new, dict):
        return strategic_patch(old if isinstance(old, dict) else {}, new, field.type)
    if isinstance(new, list) and "merge" in field.strategies:
        return _merge_list(old if isinstance(old, list) else [], new, field, patch, name)
    if isinstance(new, list):
        return [_clean(item) for item in new]
    return new


def _clean(value: Any) -> Any:
    """Drop directives from a value that is copied unchanged."""
    if isinstance(value, dict):
        return {
            name: _clean(child)
            for name, child in value.items()
            if not name.startswith("$") and child is not None
        }
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _merge_list(
    old: list[Any], new: list[Any], field: Field, patch: JsonObject, name: str
) -> list[Any]:
    if not field.merge_key:
        merged = [*old, *(item for item in new if item not in old)]
        return _ordered(merged, new, "", old)
    if not all(isinstance(item, dict) for item in new):
        raise _bad(f"items of {name} must be objects")
    if any(item.get(_PATCH) == "replace" for item in new):
        return [_clean(item) for item in new if item.get(_PATCH) != "replace" or len(item) > 1]
    result = list(old)
    for item in new:
        _merge_item(result, item, field)
    order = patch.get(_ORDER + name)
    return _ordered(result, order if isinstance(order, list) else new, field.merge_key, old)


def _merge_item(result: list[Any], item: JsonObject, field: Field) -> None:
    key = field.merge_key
    if key not in item:
        raise _bad(f"map: {item} does not contain declared merge key: {key}")
    places = [
        index
        for index, candidate in enumerate(result)
        if isinstance(candidate, dict) and candidate.get(key) == item[key]
    ]
    element = field.type.element or ANY
    if item.get(_PATCH) == "delete":
        for index in reversed(places):
            del result[index]
    elif places:
        result[places[0]] = strategic_patch(result[places[0]], item, element)
    else:
        result.append(strategic_patch({}, item, element))


def _apply_list_directives(result: JsonObject, patch: JsonObject, kind: Type) -> None:
    for name, value in patch.items():
        target = name.partition("/")[2]
        if name.startswith((_DELETE, _ORDER)) and not isinstance(value, list):
            raise _bad(f"{name} must be a list")
        if not isinstance(result.get(target), list):
            continue
        if name.startswith(_DELETE):
            result[target] = [item for item in result[target] if item not in value]
        elif name.startswith(_ORDER):
            result[target] = _ordered(result[target], value, _field(kind, target).merge_key)


def _ordered(
    items: list[Any], order: list[Any], key: str, live: list[Any] | None = None
) -> list[Any]:
    """Put the items that the patch names in its order, the others where the live list has them.

    An item that is new to the live list goes before those that it cannot be compared with.
    """

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    places = [identity(item) for item in (items if live is None else live)]
    named = sorted(
        (item for item in items if identity(item) in wanted),
        key=lambda item: wanted.index(identity(item)),
    )
    others = [item for item in items if identity(item) not in wanted]
    result: list[Any] = []
    while named and others:
        left, right = identity(others[0]), identity(named[0])
        first = left in places and right in places and places.index(left) < places.index(right)
        result.append(others.pop(0) if first else named.pop(0))
    return result + others + named


def patch(writer: ObjectWriter, call: Call) -> WriteResult:
    """Patch an object, or its status through the status subresource."""
    if call.content_type in (APPLY, APPLY_JSON):
        return _apply(writer, call)
    if call.force:
        error = status.forbidden("force", "may not be specified for non-apply patch")
        raise status.invalid_options("PatchOptions", error)
    record = writer.existing(call)
    current = call.served.load(record.decode())
    patched = changed(call, current)
    if not patched.get("metadata", {}).get("resourceVersion"):
        patched.setdefault("metadata", {})["resourceVersion"] = current["metadata"][
            "resourceVersion"
        ]
    new = serialization.conform(call, patched, strict=_refuse_unknown)
    return _write(writer, call, new, record)


def _refuse_unknown(call: Call, obj: JsonObject, findings: str) -> status.StatusError:
    """422: the outcome of a patch has fields that its kind does not know."""
    shown = msgspec.json.encode(obj).decode()
    error = status.invalid("patch", shown, f"strict decoding error: {findings}")
    return status.invalid_object("", "", "", [error])


def changed(call: Call, current: JsonObject) -> JsonObject:
    """Return the object with the call's patch applied."""
    if call.content_type not in _ACCEPTED:
        raise status.failure(415, "UnsupportedMediaType", "415: Unsupported Media Type")
    document = _document(call.body)
    match call.content_type:
        case "application/json-patch+json":
            result = json_patch(current, document)
        case "application/merge-patch+json":
            result = apply_merge_patch(current, _expect_object(document))
        case _ if call.resource.custom:
            raise status.unsupported_media(call.content_type, (JSON, MERGE, APPLY))
        case _:
            result = strategic_patch(current, _expect_object(document), call.served.type)
    if not isinstance(result.get("metadata"), dict):
        raise status.bad_request("the patched object has no metadata")
    return result


def _document(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise status.bad_request(f"error decoding patch: {error}") from error


def _expect_object(document: Any) -> JsonObject:
    if not isinstance(document, dict):
        raise status.bad_request(
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        )
    return document


def _write(
    writer: ObjectWriter, call: Call, new: JsonObject, record: StoredObject, *, owned: bool = False
) -> WriteResult:
    if call.attributes.subresource == "status":
        return writer.update_status(call, new, record, owned=owned)
    return writer.update(call, new, record, owned=owned)


def _apply(writer: ObjectWriter, call: Call) -> WriteResult:
    config = _configuration(call)
    record = writer.collection(call).get(call.key)
    if record is None:
        if call.attributes.subresource:
            raise call.resource.not_found(call.name)
        uid = config["metadata"].get("uid")
        if uid:
            raise call.resource.conflict(call.name, "uid mismatch: the object does not exist")
        writer.tracker.check(call, config)
        config["metadata"].pop("resourceVersion", None)
        fresh = msgspec.json.decode(msgspec.json.encode(config))
        return writer.create(call, fresh, applied=config)
    live = call.served.load(record.decode())
    merged = writer.tracker.apply(call, live, config)
    return _write(writer, call, merged, record, owned=True)


def _configuration(call: Call) -> JsonObject:
    if not call.query.get("fieldManager"):
        error = status.required("fieldManager", "is required for apply patch")
        raise status.invalid_options("PatchOptions", error)
    raw = calls.read_yaml(call.body)
    if not raw.get("apiVersion") or not raw.get("kind"):
        raise status.bad_request("apply patch: apiVersion and kind must be set in the body")
    metadata = raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {}
    if metadata and metadata.get("managedFields") is not None:
        raise status.bad_request("metadata.managedFields must be nil")
    config = serialization.conform(call, raw, body=call.body)
    unknown = call.resource.strategy.decode(raw, call.served)[1]
    if unknown:
        raise unusable(call, f".{unknown[0]}: field not declared in schema")
    serialization.check_target(call, config)
    return config
