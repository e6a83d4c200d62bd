"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jsonpatch
import jsonpointer

from elasti.devcluster.apiserver import status

if TYPE_CHECKING:
    from kubeloop.objects.meta import JsonObject

_OPERATIONS_LIMIT = 10_000


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with a merge patch applied; null removes."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


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
    """Return the target with a list of operations applied; 422 where one of them cannot be."""
    if not isinstance(operations, list):
        raise status.bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        )
    if len(operations) > _OPERATIONS_LIMIT:
        raise status.failure(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {_OPERATIONS_LIMIT},"
            f" got {len(operations)}",
        )
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
    return status.failure(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
        details={"causes": [{"reason": "UnexpectedServerResponse", "message": why}]},
    )
