"""A request's meaning, read off its path: verb, group, resource, name. Pure.

`Attributes` is the one description of a request that authorisation, dispatch and audit share.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING
from urllib.parse import unquote

from kubeloop.objects.gvk import GroupVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERBS_ON_NAME = {
    "GET": "get",
    "HEAD": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
    "POST": "create",
}
_VERBS_ON_ALL = {
    "GET": "list",
    "HEAD": "list",
    "POST": "create",
    "DELETE": "deletecollection",
    "PUT": "update",
    "PATCH": "patch",
}
_PATH_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "post",
    "PUT": "put",
    "PATCH": "patch",
    "DELETE": "delete",
}
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What a request asks for. Without a resource it is about `path` alone."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def is_resource(self) -> bool:
        """Whether the request is about objects."""
        return bool(self.resource)


def read_attributes(method: str, path: str, query: Mapping[str, str]) -> Attributes:
    """Read a request line; anything that is not a resource's path is a plain path."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    match parts:
        case ["api", version, _, *_]:
            place = GroupVersion("", version)
            return _resource(method, path, query, place, parts[2:])
        case ["apis", group, version, _, *_]:
            place = GroupVersion(group, version)
            return _resource(method, path, query, place, parts[3:])
        case _:
            return Attributes(verb=_PATH_VERBS.get(method, method.lower()), path=path)


def _resource(
    method: str, path: str, query: Mapping[str, str], place: GroupVersion, parts: list[str]
) -> Attributes:
    old_path = parts[0] == "watch" and len(parts) > 1
    namespace, rest = _split_namespace(parts[1:] if old_path else parts)
    resource = rest[0]
    name = rest[1] if len(rest) > 1 else ""
    # One object is watched by a field selector, or by the old path; its own path is only read.
    watching = old_path or (not name and _is_true(query.get("watch")))
    return Attributes(
        verb=_verb(method, name, watching=watching),
        path=path,
        group=place.group,
        version=place.version,
        resource=resource,
        subresource="/".join(rest[2:]),
        namespace=namespace or (name if resource == "namespaces" and not place.group else ""),
        name=name,
    )


def _split_namespace(parts: list[str]) -> tuple[str, list[str]]:
    match parts:
        case ["namespaces", _, *rest] if rest and rest[0] not in _NAMESPACE_SUBRESOURCES:
            return parts[1], rest
        case _:
            return "", parts


def _verb(method: str, name: str, *, watching: bool) -> str:
    verb = (_VERBS_ON_NAME if name else _VERBS_ON_ALL).get(method, method.lower())
    return "watch" if watching and verb in ("list", "get") else verb


def _is_true(value: str | None) -> bool:
    return value is not None and value.lower() not in ("", "0", "false", "f")


def flag(query: Mapping[str, str], name: str) -> bool:
    """Read a boolean parameter the way Go does: present and not false."""
    return _is_true(query.get(name))
