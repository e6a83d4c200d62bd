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
from devkube.apiserver.storage import StoredObject
from devkube.apiserver.tables.cells import selector as show_selector
from kubeloop.objects.meta import JsonObject

_APPLIES = (patching.APPLY, patching.APPLY_JSON)
_DONE = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class ScaleSubresource:
    """Answers `/scale`."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer

    def answer(self, call: Call) -> ApiResponse:
        """Show or change the replicas."""
        record = self._writer.existing(call)
        paths = call.served.scale
        if paths is None:
            raise status.no_such_path()
        obj = call.served.load(record.decode())
        match call.attributes.verb:
            case "get":
                return _answer(call, obj, paths)
            case "update":
                wanted = calls.read_body(call)
            case "patch":
                wanted = self._patched(call, _shown(call, obj, paths))
            case _:
                raise status.method_not_allowed()
        return self._change(call, record, wanted, paths)

    def _patched(self, call: Call, shown: JsonObject) -> JsonObject:
        if call.content_type in _APPLIES:
            return {**shown, **calls.read_yaml(call.body)}
        return patching.changed(call, shown)

    def _change(
        self, call: Call, record: StoredObject, wanted: JsonObject, paths: ScalePaths
    ) -> ApiResponse:
        replicas = _replicas(call, wanted)
        obj = call.served.load(record.decode())
        new = copy.deepcopy(obj)
        metadata = wanted.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        uid = metadata.get("uid") if isinstance(metadata, dict) else None
        if uid and uid != obj["metadata"]["uid"]:
            raise call.resource.conflict(
                call.name, f"Precondition failed: UID in precondition: {uid}"
            )
        version = version or obj["metadata"]["resourceVersion"]
        applies = call.attributes.verb == "patch" and call.content_type in _APPLIES
        if applies:
            config: JsonObject = {"metadata": {"resourceVersion": version}}
            _plant(config, paths.spec.split("."), replicas)
            new = self._writer.tracker.apply(call, obj, config)
        else:
            new["metadata"]["resourceVersion"] = version
            _plant(new, paths.spec.split("."), replicas)
        written = self._writer.update(call, new, record, owned=applies)
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


class PodBinding:
    """Answers `pods/binding`."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer

    def answer(self, call: Call) -> ApiResponse:
        """Put a pod on a node, once."""
        if call.attributes.verb != "create":
            raise status.method_not_allowed()
        record = self._writer.existing(call)
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
        self._writer.modify(call, record, lambda obj: self._bind(obj, node))
        return ApiResponse(body=msgspec.json.encode(_DONE), code=201)

    def _bind(self, pod: JsonObject, node: str) -> None:
        pod.setdefault("spec", {})["nodeName"] = node
        state = pod.setdefault("status", {})
        others = [c for c in state.get("conditions") or [] if c.get("type") != "PodScheduled"]
        since = self._writer.stamps.now()
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
        state["conditions"] = [*others, condition]


class NamespaceFinalize:
    """Answers `namespaces/finalize`: the namespace controller's word that it is empty."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer

    def answer(self, call: Call) -> ApiResponse:
        """Set the finalizers; a terminating namespace without any is removed."""
        if call.attributes.verb != "update":
            raise status.method_not_allowed()
        record = self._writer.existing(call)
        body = calls.read_body(call)
        spec = body.get("spec")
        finalizers = spec.get("finalizers") if isinstance(spec, dict) else None
        names = [name for name in finalizers or [] if isinstance(name, str)]

        def change(obj: JsonObject) -> None:
            obj["spec"] = {"finalizers": names} if names else {}

        written = self._writer.modify(call, record, change)
        return ApiResponse(body=msgspec.json.encode(written.obj))
