"""Errors between us and an API server, by whose fault they are.

`ConfigError`: the caller's configuration. `TransportError`: no answer came. `ProtocolError`: an
answer came that is not Kubernetes'. `ApiError`: the server's own refusal, built from its `Status`.
Every message names the file or URL, the field and the remedy if there is one.

Messages quote servers, which may be anyone's. So `readable` takes two things out of each: control
characters, which a terminal would obey, and credentials, which a server may send back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

_TOO_LARGE = "Too large resource version"
_FIELD_CONFLICT = "FieldManagerConflict"


# All but tab and newline, and the characters that change the direction of writing.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CREDENTIAL = re.compile(
    r"(\bauthorization\W{1,4}\w+\s+|\b(?:bearer|basic)\s+(?=\S{20}))[\w.~+/=-]+"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*",
    re.IGNORECASE,
)


def readable(text: str) -> str:
    """Return a server's text with its control characters escaped and credentials left out."""
    text = _CREDENTIAL.sub(lambda found: f"{found[1] or ''}[redacted]", text)
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class KubeError(Exception):
    """Base of all errors that this package raises."""

    def __init__(self, message: str = "") -> None:
        super().__init__(readable(message))


class ConfigError(KubeError):
    """A kubeconfig, in-cluster or credential configuration that cannot be used."""


class CredentialError(ConfigError):
    """Credentials could not be obtained: a plugin failed, a token file is missing or expired."""


class TransportError(KubeError):
    """No answer: refused, reset, timed out, not trusted. The cause is the library's own error."""


class ConnectionRefused(TransportError):
    """Nothing listens at the server's address."""


class RequestTimeout(TransportError):
    """The server did not answer in the time allowed."""


class CertificateError(TransportError):
    """The server's certificate is not trusted, or ours is refused."""


class HostNotFound(TransportError):
    """The server's name could not be resolved."""


class ConnectionLost(TransportError):
    """The connection ended before the answer did.

    `answer_begun`: whether any of it had come; if not, the server may or may not have acted on the
    request.
    """

    def __init__(self, message: str, *, answer_begun: bool = False) -> None:
        super().__init__(message)
        self.answer_begun = answer_begun


class ProtocolError(KubeError):
    """The answer is not a Kubernetes API server's, HTML for one.

    `code` is its HTTP status (0 without an answer), `retry_after` the delay it asked for.
    """

    def __init__(self, message: str, *, code: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class OutputTooLong(KubeError):
    """A command wrote more than its caller wants to hold."""


class MappingError(KubeError):
    """A kind or a resource could not be determined from what the server offers."""


class NoMatch(MappingError):
    """The server has no such kind or resource; the message lists what comes near."""


class AmbiguousMatch(MappingError):
    """Several groups have such a resource; the message lists them with their full names."""


class StatusCause(msgspec.Struct, frozen=True):
    """One reason inside a Status: a field and what is wrong with it."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The object that a Status is about, and why."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: int = 0


class StatusListMeta(msgspec.Struct, frozen=True):
    """The metadata of a Status; an expired list has a token here that goes on regardless."""

    continue_token: str = msgspec.field(default="", name="continue")


class Status(msgspec.Struct, frozen=True):
    """A Kubernetes `Status`: the body of every refusal, and the object of an ERROR event."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None
    metadata: StatusListMeta | None = None


class ApiError(KubeError):
    """The server refused. `status` is its own account, `retry_after` the delay it asked for."""

    def __init__(self, status: Status, *, retry_after: float | None = None) -> None:
        super().__init__(status.message or status.reason or f"HTTP {status.code}")
        self.status = status
        self._retry_after = retry_after

    @property
    def code(self) -> int:
        """The HTTP status code."""
        return self.status.code

    @property
    def reason(self) -> str:
        """The machine-readable reason, such as `NotFound`."""
        return self.status.reason

    @property
    def causes(self) -> tuple[StatusCause, ...]:
        """The fields that are at fault, for `Invalid` and apply conflicts."""
        details = self.status.details
        return (details.causes or ()) if details else ()

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before a retry, if the server named them."""
        if self._retry_after is not None:
            return self._retry_after
        details = self.status.details
        return (
            float(details.retry_after_seconds) if details and details.retry_after_seconds else None
        )


class BadRequest(ApiError):
    """400: the request itself is malformed."""


class Unauthorized(ApiError):
    """401: the credentials are missing, expired or unknown."""


class Forbidden(ApiError):
    """403: authenticated, but not allowed."""


class NotFound(ApiError):
    """404: no such object, or no such resource."""


class MethodNotAllowed(ApiError):
    """405: the resource does not serve this verb."""


class Conflict(ApiError):
    """409: the object changed since it was read, or an apply met another field manager."""


class ApplyConflict(Conflict):
    """409: an apply met fields of other managers; `fields` says whose is which.

    Either leave them out, or take them with `force=True`.
    """

    @property
    def fields(self) -> dict[str, tuple[str, ...]]:
        """The fields in the way, by their manager: `{"kubectl": (".spec.replicas",)}`."""
        found: dict[str, tuple[str, ...]] = {}
        for cause in self.causes:
            if cause.reason == _FIELD_CONFLICT:
                # 'conflict with "kubectl" with subresource "scale" using apps/v1'
                manager = cause.message.partition('"')[2].partition('"')[0]
                found[manager] = (*found.get(manager, ()), cause.field)
        return found


class AlreadyExists(Conflict):
    """409: create found an object of that name."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token is too old."""


class Invalid(ApiError):
    """422: fields are at fault; `causes` names them."""


class TooManyRequests(ApiError):
    """429: slow down; `retry_after` says for how long."""


class InternalError(ApiError):
    """500: the server failed."""


class ServiceUnavailable(ApiError):
    """503: the server cannot answer now."""


class ServerTimeout(ApiError):
    """504, or reason Timeout / ServerTimeout: the server gave up waiting."""


BY_CODE: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
    500: InternalError,
    503: ServiceUnavailable,
    504: ServerTimeout,
}
_BY_REASON: Mapping[str, type[ApiError]] = {
    **{kind.__name__: kind for kind in (*BY_CODE.values(), AlreadyExists)},
    "Expired": Gone,
    "Timeout": ServerTimeout,
}


def error_from_status(status: Status, *, retry_after: float | None = None) -> ApiError:
    """Build the typed error: by reason first, which is finer, then by code."""
    kind = _BY_REASON.get(status.reason) or BY_CODE.get(status.code) or ApiError
    causes = (status.details.causes if status.details else None) or ()
    if kind is Conflict and any(cause.reason == _FIELD_CONFLICT for cause in causes):
        kind = ApplyConflict
    return kind(status, retry_after=retry_after)


def error_from_object(obj: Mapping[str, Any]) -> ApiError:
    """Build the typed error from a Status in dictionary form, as ERROR events carry it."""
    try:
        status = msgspec.convert(obj, Status)
    except msgspec.ValidationError:
        status = Status(message=f"undecodable Status: {str(obj)[:200]}", code=500)
    return error_from_status(status)


def is_version_too_large(error: BaseException) -> bool:
    """Whether the server is behind the version asked for, in any of the three shapes it says so."""
    if not isinstance(error, ApiError):
        return False
    if any(cause.reason == "ResourceVersionTooLarge" for cause in error.causes):
        return True
    if not isinstance(error, ServerTimeout):
        return False
    texts = [error.status.message, *(cause.message for cause in error.causes)]
    return any(_TOO_LARGE in text for text in texts)
