"""Subresources that are more than a part of an object.

Scale shows the replicas of any workload under one shape. Bindings put pods on nodes, finalize ends a
namespace.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from devkube.apiserver import calls, status
from devkube.apiserver.calls import ApiResponse, Call
from devkube.apiserver.patch import patching
from devkube.apiserver.registry.resources import ScalePaths, dig
from devkube.apiserver.registry.writer import ObjectWriter
from devkube.apiserver.status import invalid
from devkube.apiserver.tables.cells import selector as show_selector
from kubeloop.objects.meta import JsonObject

_APPLIES = (patching.APPLY, patching.APPLY_JSON)
_DONE = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def answer_scale(writer: ObjectWriter, call: Call) -> ApiResponse:
    """Show or change the replicas."""
    record = writer.existing(call)
    paths = call.served.scale
    if paths is None:
        raise status.no_such_path()
    obj = call.served.load(record.decode())
    applies = call.attributes.verb == "patch" and call.content_type in _APPLIES
    match call.attributes.verb:
        case "get":
            return _answer(call, obj, paths)
        case "update":
            wanted = calls.read_body(call)
        case "patch" if applies:
            wanted = {**_shown(call, obj, paths), **calls.read_yaml(call.body)}
        case "patch":
            wanted = patching.changed(call, _shown(call, obj, paths))
        case _:
            raise status.method_not_allowed()
    replicas = _replicas(call, wanted)
    metadata = wanted["metadata"] if isinstance(wanted.get("metadata"), dict) else {}
    version, uid = metadata.get("resourceVersion"), metadata.get("uid")
    if uid and uid != obj["metadata"]["uid"]:
        raise call.resource.conflict(call.name, f"Precondition failed: UID in precondition: {uid}")
    version = version or obj["metadata"]["resourceVersion"]
    if applies:
        config: JsonObject = {"metadata": {"resourceVersion": version}}
        _plant(config, paths.spec.split("."), replicas)
        new = writer.tracker.apply(call, obj, config)
    else:
        new = copy.deepcopy(obj)
        new["metadata"]["resourceVersion"] = version
        _plant(new, paths.spec.split("."), replicas)
    written = writer.update(call, new, record, owned=applies)
    return _answer(call, written.obj, paths)


def _replicas(call: Call, wanted: JsonObject) -> int:
    spec = wanted.get("spec")
    value = spec.get("replicas", 0) if isinstance(spec, dict) else 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise status.bad_request(
            'Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal spec.replicas'
            " into Go struct field ScaleSpec.spec.replicas of type int32"
        )
    if value < 0:
        error = invalid("spec.replicas", value, "must be greater than or equal to 0")
        raise status.invalid_object("autoscaling", "Scale", call.name, [error])
    return value


def _plant(obj: JsonObject, path: list[str], value: Any) -> None:
    for key in path[:-1]:
        below = obj.setdefault(key, {})
        if not isinstance(below, dict):
            below = obj[key] = {}
        obj = below
    obj[path[-1]] = value


def _shown(call: Call, obj: JsonObject, paths: ScalePaths) -> JsonObject:
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    state: JsonObject = {"replicas": _number(dig(obj, paths.status.split(".")))}
    if paths.selector:
        found = dig(obj, paths.selector.split("."))
        text = found if isinstance(found, str) else _selector_text(found)
        if text:
            state["selector"] = text
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": _number(dig(obj, paths.spec.split(".")))},
        "status": state,
    }


def _selector_text(found: Any) -> str:
    return show_selector(found) if isinstance(found, dict) and found else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _answer(call: Call, obj: JsonObject, paths: ScalePaths) -> ApiResponse:
    return ApiResponse(body=msgspec.json.encode(_shown(call, obj, paths)), warnings=call.warnings)


def bind_pod(writer: ObjectWriter, call: Call) -> ApiResponse:
    """Put a pod on a node, once."""
    if call.attributes.verb != "create":
        raise status.method_not_allowed()
    record = writer.existing(call)
    body = calls.read_body(call)
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") != call.name:
        raise status.bad_request("name in URL does not match name in Binding object")
    target = body.get("target")
    node = target.get("name") if isinstance(target, dict) else None
    if not isinstance(node, str) or not node:
        raise status.bad_request("binding: target.name must be the name of a node")
    pod = record.decode()
    if pod["metadata"].get("deletionTimestamp"):
        raise call.resource.conflict(
            call.name, f"pod {call.name} is being deleted, cannot be assigned to a host"
        )
    assigned = (pod.get("spec") or {}).get("nodeName")
    if assigned:
        raise call.resource.conflict(
            call.name, f'pod {call.name} is already assigned to node "{assigned}"'
        )
    writer.modify(call, record, lambda obj: _bind(writer, obj, node))
    return ApiResponse(body=msgspec.json.encode(_DONE), code=201)


def _bind(writer: ObjectWriter, pod: JsonObject, node: str) -> None:
    pod.setdefault("spec", {})["nodeName"] = node
    state = pod.setdefault("status", {})
    others = [c for c in state.get("conditions") or [] if c.get("type") != "PodScheduled"]
    since = writer.stamps.now()
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    state["conditions"] = [*others, condition]


def finalize_namespace(writer: ObjectWriter, call: Call) -> ApiResponse:
    """Set the finalizers; a terminating namespace without any is removed."""
    if call.attributes.verb != "update":
        raise status.method_not_allowed()
    record = writer.existing(call)
    body = calls.read_body(call)
    spec = body.get("spec")
    finalizers = spec.get("finalizers") if isinstance(spec, dict) else None
    names = [name for name in finalizers or [] if isinstance(name, str)]

    def change(obj: JsonObject) -> None:
        obj["spec"] = {"finalizers": names} if names else {}

    written = writer.modify(call, record, change)
    return ApiResponse(body=msgspec.json.encode(written.obj))
