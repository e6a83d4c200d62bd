"""One request as the verbs see it, and its response.

`Attributes` is what the path says (verb, group, resource, name): the one description of a request that
authorisation, dispatch and audit share. `Call` adds the resource, the options, the body and the user.
`ApiResponse` and `WatchResponse` are what it gets, before that is bytes on a connection.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

import msgspec
import yaml

from devkube.apiserver import status
from kubeloop.objects.gvk import GroupVersion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from devkube.apiserver.auth import UserInfo
    from devkube.apiserver.registry.list_watch import Watch
    from devkube.apiserver.registry.resources import ServedResource, ServedVersion
    from devkube.apiserver.registry.serialization import Accepted
    from devkube.apiserver.status import StatusError
    from kubeloop.objects.meta import JsonObject


_PATH_VERBS = {"HEAD": "get"}
_VERBS_ON_NAME = {"HEAD": "get", "PUT": "update", "POST": "create"}
_VERBS_ON_ALL = {**_VERBS_ON_NAME, "GET": "list", "HEAD": "list", "DELETE": "deletecollection"}
_NAMESPACE_SUBRESOURCES = ("status", "finalize")
JSON_TYPES = ("application/json", "")
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml")
_READABLE = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_MANAGER_LIMIT = 128
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """A parsed request. Without a resource, only `path` counts."""

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
    namespace, rest = _split_namespace(parts)
    resource = rest[0]
    name = rest[1] if len(rest) > 1 else ""
    # One object is watched by a field selector; its own path is only read.
    watching = not name and flag(query, "watch")
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


def flag(query: Mapping[str, str], name: str) -> bool:
    """Read a boolean parameter the way Go does: present and not false."""
    return query.get(name, "").lower() not in ("", "0", "false", "f")


class FieldValidation(enum.Enum):
    """How unknown and repeated fields are treated."""

    STRICT = "Strict"
    WARN = "Warn"
    IGNORE = "Ignore"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request about objects of one resource. `warnings` is the only part that grows."""

    attributes: Attributes
    resource: ServedResource
    served: ServedVersion
    query: Mapping[str, str]
    user: UserInfo
    accepted: Accepted
    body: bytes = b""
    content_type: str = ""
    agent: str = ""
    warnings: list[str] = dataclasses.field(default_factory=list)

    @property
    def namespace(self) -> str:
        """The request's namespace; empty for cluster-scoped resources, or for all."""
        return self.attributes.namespace if self.resource.namespaced else ""

    @property
    def name(self) -> str:
        """The object's name."""
        return self.attributes.name

    @property
    def key(self) -> str:
        """The object's key in its collection."""
        namespace = self.namespace
        return f"{namespace}/{self.name}" if namespace else self.name

    @property
    def _options(self) -> str:
        verb = self.attributes.verb
        return f"{verb[:1].upper()}{verb[1:]}Options"

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be kept."""
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            error = status.unsupported("dryRun", [value], ["All"])
            raise status.invalid_options(self._options, error)
        return value == "All"

    @property
    def manager(self) -> str:
        """The field manager: as given, else the program that the user agent names."""
        given = self.query.get("fieldManager", "")
        if (error := _wrong_manager(given)) is not None:
            raise status.invalid_options(self._options, error)
        return given or self.agent.partition("/")[0][:_MANAGER_LIMIT] or "unknown"

    @property
    def force(self) -> bool:
        """Whether an apply takes fields from other managers."""
        return flag(self.query, "force")

    @property
    def validation(self) -> FieldValidation:
        """How unknown fields are treated; the default is to warn."""
        value = self.query.get("fieldValidation") or "Warn"
        try:
            return FieldValidation(value)
        except ValueError:
            choices = ["", *sorted(mode.value for mode in FieldValidation)]
            error = status.unsupported("fieldValidation", value, choices)
            raise status.invalid_options(self._options, error) from None


def _wrong_manager(name: str) -> status.FieldError | None:
    if len(name.encode()) > _MANAGER_LIMIT:
        text = f"may not be more than {_MANAGER_LIMIT} bytes"
        return status.FieldError(status.FieldErrorType.TOO_LONG, "fieldManager", "", text)
    for place, char in enumerate(name):
        if not char.isprintable():
            text = f"invalid character U+{ord(char):04X} (at position {place})"
            return status.invalid("fieldManager", name, text)
    return None


def read_body(call: Call) -> JsonObject:
    """Decode a body that must be an object, JSON or YAML."""
    media = call.content_type
    if media in YAML_TYPES:
        return read_yaml(call.body)
    if media not in JSON_TYPES:
        raise status.unsupported_media(media, _READABLE)
    return read_json(call.body, call.resource.kind)


def read_json(body: bytes, kind: str) -> JsonObject:
    """Decode a JSON object; 400 for anything else."""
    unrecognized = f"the object provided is unrecognized (must be of type {kind}):"
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        shown = body[:40].decode(errors="replace")
        text = f"couldn't get version/kind; json parse error: {_json_problem(error)} ({shown})"
        raise status.bad_request(f"{unrecognized} {text}") from error
    return _as_object(value, unrecognized)


def _json_problem(error: Exception) -> str:
    text = str(error)
    return "unexpected end of JSON input" if "truncated" in text else text


def read_yaml(body: bytes) -> JsonObject:
    """Decode a YAML mapping (or JSON, which is YAML); 400 for anything else."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        value = _load_yaml(body)
    return _as_object(value)


def _load_yaml(body: bytes) -> object:
    try:
        loaded = yaml.load(body, Loader=yaml.CSafeLoader)
        # Through JSON: dates become text and keys strings, as in any Kubernetes object.
        return msgspec.json.decode(msgspec.json.encode(loaded))
    except (yaml.YAMLError, msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise status.bad_request(f"error decoding YAML: {error}") from error


def _as_object(value: object, prefix: str = "the body is not an object:") -> JsonObject:
    if not isinstance(value, dict):
        found = "array" if isinstance(value, list) else type(value).__name__
        raise status.bad_request(
            f"{prefix} couldn't get version/kind; json parse error: json: cannot unmarshal {found} into"
            " Go value of type struct { APIVersion string; Kind string }"
        )
    return value


def convert(document: object, kind: type[T], what: str) -> T:
    """Read a document as a Struct; `what` begins the message if it cannot be read."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise status.bad_request(f"{what}: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    """A whole response."""

    body: bytes
    code: int = 200
    content_type: str = "application/json"
    warnings: Sequence[str] = ()
    retry_after: int | None = None

    def headers(self) -> list[tuple[str, str]]:
        """Return the response's headers."""
        result = [("Content-Type", self.content_type), ("Cache-Control", "no-cache, private")]
        result += [("Warning", f"299 - {_quoted(text)}") for text in self.warnings]
        if self.retry_after is not None:
            result.append(("Retry-After", str(self.retry_after)))
        return result


@dataclasses.dataclass(frozen=True, slots=True)
class WatchResponse:
    """A response that goes on: a watch."""

    watch: Watch


def _quoted(text: str) -> str:
    plain = "".join(char if char.isprintable() and char.isascii() else " " for char in text)
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def refusal(error: StatusError) -> ApiResponse:
    """Return a refusal's answer."""
    return ApiResponse(
        body=msgspec.json.encode(error.status), code=error.code, retry_after=error.retry_after
    )
