"""An AdmissionReview (admission.k8s.io/v1): the question that the API server sends, and the answer."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject

T = TypeVar("T")
Operation: TypeAlias = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]

API_VERSION = "admission.k8s.io/v1"
_REASONS = {400: "BadRequest", 403: "Forbidden", 409: "Conflict", 422: "Invalid"}


class Denied(Exception):
    """Refuses a request. The user reads the message; `code` is the answer's HTTP status."""

    def __init__(self, message: str, *, code: int = 403) -> None:
        super().__init__(message)
        self.code = code


class ReviewError(Exception):
    """A request that is not an AdmissionReview, or not for this webhook. The failure policy decides."""


class UserInfo(msgspec.Struct, frozen=True):
    """Who sends the request that is to be admitted."""

    username: str = ""
    uid: str = ""
    groups: list[str] = msgspec.field(default_factory=list)
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict)


class AdmissionRequest(Generic[T]):
    """A request that is to be admitted; its object is the function's first argument.

    `old` is the object before an UPDATE or a DELETE; it is read when you ask for it, and raises
    `DecodeError` if it does not fit the Struct. `dry_run`: nothing will be stored, so
    change nothing elsewhere. `audit_annotations` go to the API server's audit log.
    """

    def __init__(
        self,
        *,
        operation: Operation = "CREATE",
        name: str = "",
        namespace: str = "",
        user: UserInfo | None = None,
        old: T | Callable[[], T] | None = None,
        dry_run: bool = False,
        options: JsonObject | None = None,
        uid: str = "",
    ) -> None:
        self.operation = operation
        self.name, self.namespace, self.uid = name, namespace, uid
        self.user = user or UserInfo()
        self.dry_run = dry_run
        self.options = options or {}
        self.warnings: list[str] = []
        self.audit_annotations: dict[str, str] = {}
        self._old = old

    @property
    def old(self) -> T | None:
        """The object before."""
        return self._old() if callable(self._old) else self._old

    def warn(self, text: str) -> None:
        """Show a warning to the user, admitted or not; kubectl prints it. Keep it below 120 characters."""
        self.warnings.append(text)


class _Resource(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class ReviewedRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The `request` of a review on the wire; the objects are not decoded yet."""

    uid: str
    operation: Operation
    resource: _Resource
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    dry_run: bool = False
    options: JsonObject | None = None
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def gvr(self) -> GroupVersionResource:
        """What is written."""
        return GroupVersionResource(
            self.resource.group, self.resource.version, self.resource.resource
        )


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: msgspec.Raw = msgspec.Raw(b"null")


def read_review(body: bytes) -> ReviewedRequest:
    """Read a review. Raises `ReviewError`, whose text names what is wrong with it."""
    try:
        review = msgspec.json.decode(body, type=_Review)
        if (review.kind, review.api_version) != ("AdmissionReview", API_VERSION):
            raise ReviewError(
                f"{review.api_version or '-'} {review.kind or '-'} is not an {API_VERSION}"
                ' AdmissionReview: set admissionReviewVersions: ["v1"] in the webhook configuration'
            )
        return msgspec.json.decode(review.request, type=ReviewedRequest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ReviewError(f"the body is not an AdmissionReview: {error}") from error


def answer(
    uid: str,
    denied: Denied | None = None,
    *,
    patch: Sequence[JsonObject] = (),
    warnings: Sequence[str] = (),
    audit_annotations: dict[str, str] | None = None,
) -> JsonObject:
    """Return the review that answers a request."""
    response: dict[str, Any] = {"uid": uid, "allowed": denied is None}
    if denied is not None:
        response["status"] = {
            "code": denied.code,
            "reason": _REASONS.get(denied.code, ""),
            "message": str(denied),
        }
    elif patch:
        body = base64.b64encode(msgspec.json.encode(patch)).decode()
        response |= {"patchType": "JSONPatch", "patch": body}
    if warnings:
        response["warnings"] = list(warnings)
    if audit_annotations:
        response["auditAnnotations"] = audit_annotations
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
