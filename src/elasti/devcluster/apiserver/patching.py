"""The patch verb: choose the patch by media type, apply it to what is stored, write the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from elasti.devcluster.apiserver import calls, decoding, status
from elasti.devcluster.apiserver.ownership.tracker import unusable
from elasti.devcluster.apiserver.patches.merge import json_patch, merge_patch
from elasti.devcluster.apiserver.patches.strategic import strategic_patch

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.storage import Record
    from elasti.devcluster.apiserver.writes import Writer, Written
    from kubeloop.objects.meta import JsonObject

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
APPLY_JSON = "application/apply-patch+json"
_ACCEPTED = (JSON, MERGE, STRATEGIC, APPLY)


def patch(writer: Writer, call: Call) -> Written:
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
    new = decoding.conform(call, patched, strict=_refuse_unknown)
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
            result = merge_patch(current, _expect_object(document))
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
    writer: Writer, call: Call, new: JsonObject, record: Record, *, owned: bool = False
) -> Written:
    if call.attributes.subresource == "status":
        return writer.update_status(call, new, record, owned=owned)
    return writer.update(call, new, record, owned=owned)


def _apply(writer: Writer, call: Call) -> Written:
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
        raise status.failure(
            422,
            "Invalid",
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value:'
            " is required for apply patch",
            details={
                "kind": "PatchOptions",
                "group": "meta.k8s.io",
                "causes": [
                    {
                        "reason": "FieldValueRequired",
                        "message": "Required value: is required for apply patch",
                        "field": "fieldManager",
                    }
                ],
            },
        )
    raw = calls.read_yaml(call.body)
    if not raw.get("apiVersion") or not raw.get("kind"):
        raise status.bad_request("apply patch: apiVersion and kind must be set in the body")
    metadata = raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {}
    if metadata and metadata.get("managedFields") is not None:
        raise status.bad_request("metadata.managedFields must be nil")
    config = decoding.conform(call, raw, body=call.body)
    unknown = call.resource.strategy.decode(raw, call.served)[1]
    if unknown:
        raise unusable(call, f".{unknown[0]}: field not declared in schema")
    decoding.check_target(call, config)
    return config
