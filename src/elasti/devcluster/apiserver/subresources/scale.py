"""The scale subresource: replicas of any workload under one shape."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec

from elasti.devcluster.apiserver import calls, patching, status
from elasti.devcluster.apiserver.answers import Answer
from elasti.devcluster.apiserver.resources import dig
from elasti.devcluster.apiserver.status import invalid
from elasti.devcluster.apiserver.tables.cells import selector as show_selector

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.resources import ScalePaths
    from elasti.devcluster.apiserver.storage import Record
    from elasti.devcluster.apiserver.writes import Writer
    from kubeloop.objects.meta import JsonObject

_APPLIES = (patching.APPLY, patching.APPLY_JSON)


class Scale:
    """Answers `/scale`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def answer(self, call: Call) -> Answer:
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

    def _change(self, call: Call, record: Record, wanted: JsonObject, paths: ScalePaths) -> Answer:
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
        new["metadata"]["resourceVersion"] = version or obj["metadata"]["resourceVersion"]
        _plant(new, paths.spec.split("."), replicas)
        written = self._writer.update(call, new, record)
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
    if not isinstance(found, dict) or not found:
        return ""
    if "matchLabels" not in found and "matchExpressions" not in found:
        found = {"matchLabels": found}  # a ReplicationController's selector is a plain map
    return show_selector(found)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _answer(call: Call, obj: JsonObject, paths: ScalePaths) -> Answer:
    return Answer(body=msgspec.json.encode(_shown(call, obj, paths)), warnings=call.warnings)
