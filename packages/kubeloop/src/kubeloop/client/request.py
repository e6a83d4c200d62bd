"""Requests as values: every path, query and body of the REST API is built here, and sent elsewhere.

Paths are those of the API conventions: `/api/v1/...` for the core group, `/apis/GROUP/VERSION/...`
for all others, with `/namespaces/NAMESPACE` before the plural where an object has one. What cannot
be a name is refused here, with a message, before a server has to guess what was meant.

`ResourceScope` is a resource and the namespace that it is bound to. Whether a resource is
namespaced is known only if discovery was asked. If it is known, a missing or a superfluous
namespace is refused before anything is sent; if it is not, the server's 404 or 405 is reported with
the likely mistake.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import quote, urlencode

import msgspec

from kubeloop.client.errors import MethodNotAllowed, NotFound
from kubeloop.objects.names import DNS_LABEL_63

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kubeloop.objects.gvk import GroupVersion, GroupVersionResource


JSON = "application/json"
APPLY = "application/apply-patch+yaml"

_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_LABEL = re.compile(rf"{DNS_LABEL_63}\Z")
_SEGMENT = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Characters of Kubernetes' names that RFC 3986 allows in a path segment; others are escaped.
_SAFE = ":@!$&'()*+,;=~"


_PLURAL_HINT = (
    "; expected the lower-case plural, as in 'v1/pods', or ask for the kind:"
    " client.resource_for('v1', 'Pod')"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. `path` is quoted and without the endpoint's own prefix."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = ""
    accept: str = JSON

    @property
    def target(self) -> str:
        """The path and the query as they go on the wire."""
        return f"{self.path}?{urlencode(self.query, quote_via=quote)}" if self.query else self.path

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice leaves the server in the same state as sending it once.

        The second answer may differ: a repeated PUT with a resourceVersion can meet its own first
        success as a conflict, a repeated DELETE can find nothing. Creations, and patches that are
        not server-side applies, are never repeatable.
        """
        return self.method in _REPEATABLE or self.content_type == APPLY

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


@dataclasses.dataclass(frozen=True, slots=True)
class ResourcePath:
    """Where objects of one resource live: all of them, or those of one namespace."""

    gvr: GroupVersionResource
    namespace: str = ""

    @property
    def collection(self) -> str:
        """The path of the objects together."""
        check_segment(self.gvr.resource, f"resource {str(self.gvr)!r}", hint=_PLURAL_HINT)
        base = group_path(self.gvr.group_version)
        if self.namespace:
            check_namespace(self.namespace)
            base = f"{base}/namespaces/{self.namespace}"
        return f"{base}/{self.gvr.resource}"

    def item(self, name: str, subresource: str = "") -> str:
        """The path of one object, or of a part of it such as `status` or `scale`."""
        check_name(name, self.gvr)
        path = f"{self.collection}/{quote(name, safe=_SAFE)}"
        if not subresource:
            return path
        check_subresource(subresource)
        return f"{path}/{subresource}"


def group_path(group_version: GroupVersion) -> str:
    """Return the path under which a group's version is served."""
    group, version = group_version
    check_segment(version, f"version of {str(group_version)!r}")
    if not group:
        return f"/api/{version}"
    check_segment(group, f"group of {str(group_version)!r}")
    return f"/apis/{group}/{version}"


def check_name(name: str, gvr: GroupVersionResource) -> None:
    """Raise ValueError for what no API server accepts as an object's name in a path."""
    if not name:
        raise ValueError(f"{gvr.resource}: the name is empty; expected metadata.name")
    if name in {".", ".."} or "/" in name or "%" in name or _CONTROL.search(name):
        raise ValueError(
            f"{gvr.resource}: name {name!r} cannot be part of a path: it must not be '.' or '..'"
            " nor contain '/', '%' or control characters; pass the namespace by namespace="
        )


def check_namespace(namespace: str) -> None:
    """Raise ValueError for what is not a namespace's name."""
    if not _LABEL.match(namespace):
        raise ValueError(
            f"namespace {namespace!r} is not a DNS label: lower-case letters, digits and '-',"
            " at most 63, beginning and ending with a letter or digit"
        )


def check_segment(text: str, what: str, *, hint: str = "") -> None:
    """Raise ValueError for what is not a group, version, plural or subresource."""
    if not _SEGMENT.match(text):
        raise ValueError(
            f"{what}: {text!r} is not made of lower-case letters, digits, '-' and '.'{hint}"
        )


def check_subresource(name: str) -> None:
    """Raise ValueError for what cannot be a subresource, such as `Status` or an empty name."""
    for part in name.split("/"):
        check_segment(part, f"subresource {name!r}")


def query_of(parameters: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the parameters that have a value, in order."""
    return tuple((name, value) for name, value in parameters.items() if value)


def accept(projection: str) -> str:
    """Return the Accept header for whole objects, or for a projection of them.

    A server that does not know the projection sends whole objects, of which only the projected part
    is decoded: the same result, at a higher price.
    """
    return f"{JSON};as={projection};g=meta.k8s.io;v=v1,{JSON}" if projection else JSON


def get(path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON) -> Request:
    """Build a read."""
    return Request(method="GET", path=path, query=query_of(query or {}), accept=accept)


def write(
    method: str,
    path: str,
    body: bytes,
    *,
    content_type: str = JSON,
    query: Mapping[str, str] | None = None,
) -> Request:
    """Build a request with a body: POST, PUT or PATCH."""
    return Request(
        method=method, path=path, query=query_of(query or {}), body=body, content_type=content_type
    )


def write_query(
    *,
    dry_run: bool = False,
    field_manager: str = "",
    field_validation: str = "",
    force: bool = False,
) -> dict[str, str]:
    """Return the parameters of a write. Raises ValueError for what a server would refuse."""
    if field_validation not in {"", "Strict", "Warn", "Ignore"}:
        raise ValueError(
            f"field_validation {field_validation!r} is not one of 'Strict', 'Warn' and 'Ignore'"
        )
    if len(field_manager) > 128 or not field_manager.isprintable():
        raise ValueError(
            f"field_manager {field_manager!r} must be printable and have at most 128 characters"
        )
    return {
        "dryRun": "All" if dry_run else "",
        "fieldManager": field_manager,
        "fieldValidation": field_validation,
        "force": "true" if force else "",
    }


Propagation: TypeAlias = Literal["Orphan", "Background", "Foreground"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preconditions:
    """Delete only the object that was seen: by its uid, its resourceVersion, or both."""

    uid: str = ""
    resource_version: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the fields that were given."""
        fields = {"uid": self.uid, "resourceVersion": self.resource_version}
        return {name: value for name, value in fields.items() if value}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """The body of a delete. Nothing given means: the resource's own defaults.

    `grace_period` 0 deletes at once; None leaves the period to the object.
    """

    preconditions: Preconditions | None = None
    propagation: Propagation | None = None
    grace_period: int | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.propagation is not None and self.propagation not in get_args(Propagation):
            raise ValueError(
                f"propagation {self.propagation!r} is not one of {', '.join(get_args(Propagation))}"
            )
        if self.grace_period is not None and self.grace_period < 0:
            raise ValueError(
                f"grace_period {self.grace_period} is negative; 0 deletes at once,"
                " None leaves it to the object"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the `DeleteOptions` document."""
        document: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if self.preconditions is not None and (wanted := self.preconditions.to_json()):
            document["preconditions"] = wanted
        if self.propagation is not None:
            document["propagationPolicy"] = self.propagation
        if self.grace_period is not None:
            document["gracePeriodSeconds"] = self.grace_period
        if self.dry_run:
            document["dryRun"] = ["All"]
        return document


def delete(path: str, options: DeleteOptions, query: dict[str, str] | None = None) -> Request:
    """Build a delete of an object or, with selectors in the query, of a collection."""
    return Request(
        method="DELETE",
        path=path,
        query=query_of(query or {}),
        body=msgspec.json.encode(options.to_json()),
        content_type=JSON,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResourceScope:
    """A resource, perhaps bound to a namespace. `namespaced` is None if it was not asked for."""

    gvr: GroupVersionResource
    namespace: str = ""
    namespaced: bool | None = None

    def __post_init__(self) -> None:
        # Fails here, where the caller wrote it, and not at the first request.
        _ = ResourcePath(self.gvr, self.namespace).collection
        if self.namespaced is False and self.namespace:
            raise ValueError(
                f"{self.gvr} is cluster-scoped: its objects have no namespace,"
                f" but {self.namespace!r} was given"
            )

    def resource_path(self, namespace: str | None, own: str = "") -> ResourcePath:
        """Return where one object is; `own` is the namespace that the object itself names."""
        if namespace and own and namespace != own:
            raise ValueError(
                f"{self.gvr}: namespace={namespace!r} was asked for, but the object's"
                f" metadata.namespace is {own!r}"
            )
        chosen = namespace or own or self.namespace
        if self.namespaced and not chosen:
            raise ValueError(
                f"{self.gvr} is namespaced: pass namespace=, bind the resource with"
                " within(NAMESPACE), or set metadata.namespace"
            )
        if self.namespaced is False and chosen:
            raise ValueError(f"{self.gvr} is cluster-scoped: leave namespace {chosen!r} out")
        return ResourcePath(self.gvr, chosen)

    def collection(self, namespace: str | None) -> str:
        """Return the path of the objects of a namespace, or of all; None means as bound."""
        return ResourcePath(self.gvr, self.namespace if namespace is None else namespace).collection

    @contextlib.contextmanager
    def hints(self, namespace: str | None) -> Iterator[None]:
        """Explain a 404 or a 405 that is about the path and not about the object."""
        try:
            yield
        except (NotFound, MethodNotAllowed) as error:
            details = error.status.details
            if namespace or self.namespace or (details and details.name):
                raise
            # The most common mistake; servers answer it like a wrong path.
            missing = (
                f"no namespace was given; if {self.gvr.resource} are namespaced, pass namespace="
            )
            status = msgspec.structs.replace(error.status, message=f"{error}: {missing}")
            raise type(error)(status, retry_after=error.retry_after) from None

    def __str__(self) -> str:
        return f"{self.gvr} in {self.namespace}" if self.namespace else str(self.gvr)
