"""Refusals as Kubernetes words them: `Status` bodies with reason, details and causes.

`StatusError` is what any part of the server raises to refuse; the HTTP layer turns it into a
response, a watch into an ERROR event. `FieldError` is one finding of a validation.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kubeloop.objects.meta import JsonObject

MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


class FieldErrorType(enum.Enum):
    """Errors of a field: (reason of the cause, text)."""

    NOT_FOUND = ("FieldValueNotFound", "Not found")
    REQUIRED = ("FieldValueRequired", "Required value")
    DUPLICATE = ("FieldValueDuplicate", "Duplicate value")
    INVALID = ("FieldValueInvalid", "Invalid value")
    NOT_SUPPORTED = ("FieldValueNotSupported", "Unsupported value")
    FORBIDDEN = ("FieldValueForbidden", "Forbidden")
    TOO_LONG = ("FieldValueTooLong", "Too long")
    TOO_MANY = ("FieldValueTooMany", "Too many")
    TYPE_INVALID = ("FieldValueTypeInvalid", "Invalid value")


_WITHOUT_VALUE = (FieldErrorType.REQUIRED, FieldErrorType.FORBIDDEN, FieldErrorType.TOO_LONG)


@dataclasses.dataclass(frozen=True, slots=True)
class FieldError:
    """One field at fault: where, in which way, the value found, and a sentence."""

    fault: FieldErrorType
    field: str
    value: Any = None
    detail: str = ""

    @property
    def body(self) -> str:
        """The finding without the field's name."""
        text = self.fault.value[1]
        if self.fault not in _WITHOUT_VALUE:
            text = f"{text}: {go_value(self.value)}"
        return f"{text}: {self.detail}" if self.detail else text

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"


def required(field: str, detail: str = "") -> FieldError:
    """A value must be given."""
    return FieldError(FieldErrorType.REQUIRED, field, "", detail)


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """The value is malformed or out of bounds."""
    return FieldError(FieldErrorType.INVALID, field, value, detail)


def missing(field: str, value: Any) -> FieldError:
    """The value names something that is not there."""
    return FieldError(FieldErrorType.NOT_FOUND, field, value)


def forbidden(field: str, detail: str) -> FieldError:
    """The field may not be set here."""
    return FieldError(FieldErrorType.FORBIDDEN, field, None, detail)


def duplicate(field: str, value: Any) -> FieldError:
    """The value may occur once only."""
    return FieldError(FieldErrorType.DUPLICATE, field, value)


def unsupported(field: str, value: Any, choices: Sequence[str]) -> FieldError:
    """The value is not one of an enumeration."""
    detail = "supported values: " + ", ".join(go_value(choice) for choice in choices)
    return FieldError(FieldErrorType.NOT_SUPPORTED, field, value, detail)


def go_value(value: Any) -> str:
    """Show a value the way the server does: strings quoted, null by that name, the rest as JSON."""
    if value is None:
        return "null"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


class StatusError(Exception):
    """A refusal; `status` is the body to answer with."""

    def __init__(self, status: JsonObject, *, retry_after: int | None = None) -> None:
        super().__init__(status["message"])
        self.status = status
        self.retry_after = retry_after

    @property
    def code(self) -> int:
        """The HTTP status code."""
        return int(self.status["code"])

    @property
    def reason(self) -> str:
        """The machine-readable reason."""
        return str(self.status.get("reason", ""))


def failure(
    code: int,
    reason: str,
    message: str,
    *,
    details: Mapping[str, Any] | None = None,
    retry_after: int | None = None,
) -> StatusError:
    """Build a refusal of any kind; empty details are left out."""
    status: JsonObject = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
    }
    if reason:
        status["reason"] = reason
    present = {name: value for name, value in (details or {}).items() if value}
    if retry_after is not None:
        present["retryAfterSeconds"] = retry_after
    if present:
        status["details"] = present
    status["code"] = code
    return StatusError(status, retry_after=retry_after)


def qualified(group: str, name: str) -> str:
    """Join a resource or kind and its group: `deployments.apps`, `pods`."""
    return f"{name}.{group}" if group else name


def named(group: str, resource: str, name: str) -> JsonObject:
    """Return the details that name an object."""
    return {"name": name, "group": group, "kind": resource}


def not_found(group: str, resource: str, name: str) -> StatusError:
    """404: no object of that name."""
    text = f'{qualified(group, resource)} "{name}" not found'
    return failure(404, "NotFound", text, details=named(group, resource, name))


def no_such_path(message: str = "the server could not find the requested resource") -> StatusError:
    """404: nothing is served there."""
    refusal = failure(404, "NotFound", message)
    refusal.status["details"] = {}
    return refusal


def already_exists(group: str, resource: str, name: str) -> StatusError:
    """409: create found an object of that name."""
    text = f'{qualified(group, resource)} "{name}" already exists'
    return failure(409, "AlreadyExists", text, details=named(group, resource, name))


def conflict(group: str, resource: str, name: str, why: str) -> StatusError:
    """409: a precondition no longer holds."""
    text = f'Operation cannot be fulfilled on {qualified(group, resource)} "{name}": {why}'
    return failure(409, "Conflict", text, details=named(group, resource, name))


def forbidden_object(group: str, resource: str, name: str, why: str) -> StatusError:
    """403: the object, not the user, makes the request impossible."""
    text = f'{qualified(group, resource)} "{name}" is forbidden: {why}'
    return failure(403, "Forbidden", text, details=named(group, resource, name))


def invalid_object(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """422: the fields at fault, each as a cause."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    causes = [
        {"reason": error.fault.value[0], "message": error.body, "field": error.field}
        for error in errors
    ]
    text = f'{qualified(group, kind)} "{name}" is invalid: {joined}'
    return failure(422, "Invalid", text, details={**named(group, kind, name), "causes": causes})


def bad_request(message: str) -> StatusError:
    """400: the request itself is malformed."""
    return failure(400, "BadRequest", message)


def method_not_allowed() -> StatusError:
    """405: the resource does not have this verb."""
    text = "the server does not allow this method on the requested resource"
    refusal = failure(405, "MethodNotAllowed", text)
    refusal.status["details"] = {}
    return refusal


def invalid_options(kind: str, error: FieldError) -> StatusError:
    """422: a parameter of the request, such as `dryRun`, has a value without meaning."""
    return invalid_object("meta.k8s.io", kind, "", [error])


def expired(message: str) -> StatusError:
    """410: a resourceVersion or a continue token is older than the history kept."""
    return failure(410, "Expired", message)


def too_large(wanted: int, current: int) -> StatusError:
    """504: the version asked for lies in the future."""
    text = f"Timeout: Too large resource version: {wanted}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return failure(504, "Timeout", text, details={"causes": [cause]}, retry_after=1)


def unsupported_media(found: str, accepted: Sequence[str]) -> StatusError:
    """415: a body in a format that is not read here."""
    text = "the request has no content type"
    if found:
        text = "the body of the request was in an unknown format - accepted media types include: "
        text += ", ".join(accepted)
    return failure(415, "UnsupportedMediaType", text)


def success(details: Mapping[str, Any]) -> JsonObject:
    """Build the Status of a deletion that is complete."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": dict(details),
    }
