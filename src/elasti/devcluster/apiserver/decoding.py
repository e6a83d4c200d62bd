"""From a request's body to an object of the request's kind: types, unknown fields, identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.calls import FieldValidation
from elasti.devcluster.apiserver.schema.conform import duplicate_fields
from elasti.devcluster.apiserver.schema.scalars import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.devcluster.apiserver.calls import Call
    from kubeloop.objects.meta import JsonObject

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

    `body` is the text that `obj` came from, to look for repeated fields in. `strict` makes the
    refusal where unknown fields are to be refused.
    """
    check_kind(call, obj)
    try:
        decoded, unknown = call.resource.strategy.decode(obj, call.served)
    except DecodeError as error:
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
