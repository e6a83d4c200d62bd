"""One request as the verbs see it: the resource, the options, the body, who asks."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

import msgspec
import yaml

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.request import flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.devcluster.apiserver.auth import User
    from elasti.devcluster.apiserver.negotiation import Accepted
    from elasti.devcluster.apiserver.request import Attributes
    from elasti.devcluster.apiserver.resources import Resource, Served
    from kubeloop.objects.meta import JsonObject

JSON_TYPES = ("application/json", "")
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml")
_READABLE = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_MANAGER_LIMIT = 128


class FieldValidation(enum.Enum):
    """What becomes of unknown and repeated fields."""

    STRICT = "Strict"
    WARN = "Warn"
    IGNORE = "Ignore"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request about objects of one resource. `warnings` is the only part that grows."""

    attributes: Attributes
    resource: Resource
    served: Served
    query: Mapping[str, str]
    user: User
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
        """What becomes of unknown fields; the server's own choice is to warn."""
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
        return status.FieldError(status.Fault.TOO_LONG, "fieldManager", "", text)
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
