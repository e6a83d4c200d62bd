"""The functions of a program that admit requests, and the configuration that sends requests to them."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import functools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload
from urllib.parse import urlsplit

import msgspec

from kubeloop.client.changes import carry_over
from kubeloop.http.server import HttpError, Request, Response
from kubeloop.objects.codec import Codec, codec_for
from kubeloop.objects.gvk import GroupVersionResource, ServedKind, resource_and_kind
from kubeloop.objects.list_watch import DecodeError
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import create_json_patch
from kubeloop.webhook.certificate_secret import Lifetimes
from kubeloop.webhook.review import (
    AdmissionRequest,
    Denied,
    Operation,
    ReviewedRequest,
    ReviewError,
    answer,
    read_review,
)

T = TypeVar("T")
K = TypeVar("K", bound=ServedKind)
Handler: TypeAlias = Callable[[T, AdmissionRequest[T]], Awaitable[T | None]]
Decorator: TypeAlias = Callable[[Handler[T]], Handler[T]]

VALIDATING, MUTATING = "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"
_API_VERSION = "admissionregistration.k8s.io/v1"
_TIMEOUT = re.compile(r"(\d{1,5})s")
_LONGEST = 30.0  # the most that the API server waits
_DICT: Codec[JsonObject] = codec_for(dict)


class Match(TypedDict, total=False):
    """Which requests the API server asks about, and how long it waits."""

    operations: Sequence[Operation]
    """CREATE and UPDATE, if you do not name others."""
    subresource: str
    """Such as `scale`; the object itself if you leave it out."""
    namespaces: JsonObject
    """A label selector for the object's namespace."""
    objects: JsonObject
    """A label selector for the object."""
    conditions: Mapping[str, str]
    """CEL expressions by name; the API server asks if all are true."""
    failure_policy: Literal["Fail", "Ignore"]
    """What happens without an answer. Fail, if you do not say otherwise."""
    timeout: int
    """Seconds to wait for the answer, 1 to 30; 10 if you leave it out."""
    side_effects: bool
    """The function changes something outside of the object, though never if `dry_run`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Webhook:
    """One function, and what the configuration says about it, without the way to reach it."""

    kind: str
    gvr: GroupVersionResource
    subresource: str
    codec: Codec[Any]
    function: Handler[Any]
    entry: JsonObject

    async def answer(self, asked: ReviewedRequest) -> JsonObject:
        """Call the function. Raises `ReviewError`, and what the function raises except `Denied`."""
        if (asked.gvr, asked.sub_resource) != (self.gvr, self.subresource):
            raise ReviewError(
                f"{asked.gvr} {asked.sub_resource}".rstrip() + f" was sent to {self.entry['name']}:"
                " correct the rules of the webhook configuration"
            )
        deleted = asked.operation == "DELETE"
        raw = bytes(asked.old_object if deleted else asked.object)
        request: AdmissionRequest[Any] = AdmissionRequest(
            operation=asked.operation,
            name=asked.name,
            namespace=asked.namespace,
            user=asked.user_info,
            old=functools.partial(_decoded, self.codec, bytes(asked.old_object)),
            dry_run=asked.dry_run,
            options=asked.options,
            uid=asked.uid,
        )
        patch: list[JsonObject] = []
        denied = None
        try:
            try:
                obj = self.codec.decode(raw)
            except DecodeError as error:
                raise Denied(f"the object does not fit its kind: {error}", code=422) from error
            before = self.codec.encode(obj)
            changed = await self.function(obj, request)
            if self.kind == MUTATING and not deleted:
                after = self.codec.encode(obj if changed is None else changed)
                whole = _DICT.decode(raw)
                wanted = carry_over(whole, _DICT.decode(before), _DICT.decode(after))
                patch = create_json_patch(whole, wanted)
        except Denied as error:
            denied = error
        return answer(
            asked.uid,
            denied,
            patch=patch,
            warnings=request.warnings,
            audit_annotations=request.audit_annotations,
        )


class Admission:
    """Functions that admit, change or refuse requests before the API server stores them.

    `service` is the Service that leads to the program, in the client's namespace unless it is
    "namespace/name"; `url` is for a program outside of the cluster. `name` is what the configurations
    and the Secret are called. `certificates` is a directory with tls.crt, tls.key and perhaps ca.crt,
    as cert-manager's Secrets are mounted; without it the program makes its own, which needs
    `kubeloop[webhook]`. `install=False`: you install the configurations, and only their caBundle is
    written. The functions run on every replica, leader or not.
    """

    def __init__(
        self,
        name: str = "",
        *,
        service: str = "",
        url: str = "",
        service_port: int = 443,
        host: str | None = None,
        port: int = 9443,
        certificates: str | Path = "",
        lifetimes: Lifetimes | None = None,
        install: bool = True,
    ) -> None:
        if bool(service) == bool(url):
            raise ValueError("Admission needs either service= or url=")
        if url and urlsplit(url).scheme != "https":
            raise ValueError(f"url={url!r}: the API server calls webhooks by https only")
        self.name = name or service.rpartition("/")[2] or str(urlsplit(url).hostname)
        self.service, self.url, self.service_port = service, url.rstrip("/"), service_port
        self.host, self.port = host, port
        self.certificates = Path(certificates) if certificates else None
        self.lifetimes = lifetimes or Lifetimes()
        self.install = install
        self._webhooks: dict[str, _Webhook] = {}

    @overload
    def validating(self, resource: type[K], **match: Unpack[Match]) -> Decorator[K]: ...

    @overload
    def validating(self, resource: str, **match: Unpack[Match]) -> Decorator[JsonObject]: ...

    @overload
    def validating(self, resource: str, kind: type[T], **match: Unpack[Match]) -> Decorator[T]: ...

    def validating(
        self, resource: str | type[Any], kind: type[Any] = dict, **match: Unpack[Match]
    ) -> Decorator[Any]:
        """Decorate a function that looks at an object and raises `Denied` to refuse it.

        The object is the one that would be stored; for a DELETE, the one that goes. If the function
        raises anything else, the failure policy decides.
        """
        return self._decorator(VALIDATING, *resource_and_kind(resource, kind), match, {})

    @overload
    def mutating(
        self, resource: type[K], *, again: bool = ..., **match: Unpack[Match]
    ) -> Decorator[K]: ...

    @overload
    def mutating(
        self, resource: str, *, again: bool = ..., **match: Unpack[Match]
    ) -> Decorator[JsonObject]: ...

    @overload
    def mutating(
        self, resource: str, kind: type[T], *, again: bool = ..., **match: Unpack[Match]
    ) -> Decorator[T]: ...

    def mutating(
        self,
        resource: str | type[Any],
        kind: type[Any] = dict,
        *,
        again: bool = False,
        **match: Unpack[Match],
    ) -> Decorator[Any]:
        """Decorate a function that changes an object in place, or returns the changed one.

        The patch is computed; fields that a Struct does not name stay unchanged. `again`: call it
        once more if another webhook changes the object after it.
        """
        policy = {"reinvocationPolicy": "IfNeeded" if again else "Never"}
        return self._decorator(MUTATING, *resource_and_kind(resource, kind), match, policy)

    def _decorator(
        self,
        kind: str,
        gvr: GroupVersionResource,
        type_: type[Any],
        match: Match,
        policy: JsonObject,
    ) -> Decorator[Any]:
        subresource = match.get("subresource", "")
        entry = _entry(gvr, match) | policy

        def register(function: Handler[Any]) -> Handler[Any]:
            name = function.__name__.strip("_").replace("_", "-").lower()
            path = f"/{name}"
            if path in self._webhooks:
                raise ValueError(
                    f"there is a webhook {name!r} already: name the function otherwise"
                )
            # The API server wants three parts at least; users read it in front of a refusal.
            named = {"name": f"{name}.{gvr.resource}.{gvr.group or 'core'}"}
            self._webhooks[path] = _Webhook(
                kind=kind,
                gvr=gvr,
                subresource=subresource,
                codec=codec_for(type_),
                function=function,
                entry=named | entry,
            )
            return function

        return register

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the functions are reached."""
        return tuple(self._webhooks)

    async def review(self, path: str, body: bytes) -> JsonObject:
        """Answer a review that was sent to a path. Raises `ReviewError`, and what the function raises."""
        webhook = self._webhooks.get(path)
        if webhook is None:
            paths = ", ".join(self.paths) or "none"
            raise ReviewError(f"there is no webhook at {path}; there is {paths}")
        return await webhook.answer(read_review(body))

    async def serve(self, request: Request) -> Response:
        """Answer a request of the API server. What is not a denial is an error: the failure policy decides."""
        if request.method != "POST":
            raise HttpError(405, "method not allowed\n", {"Allow": "POST"})
        given = _TIMEOUT.fullmatch(request.parameter("timeout"))
        try:
            async with asyncio.timeout(min(float(given[1]), _LONGEST) if given else _LONGEST):
                review = await self.review(request.path, request.body)
        except ReviewError as error:
            raise HttpError(400, f"{error}\n") from error
        except TimeoutError as error:
            raise HttpError(504, "the webhook did not answer in time\n") from error
        return Response(body=msgspec.json.encode(review), content_type="application/json")

    def hosts(self, namespace: str) -> list[str]:
        """Return the names that the API server may call the program by."""
        if self.url:
            return [str(urlsplit(self.url).hostname)]
        name, namespace = self._service(namespace)
        return [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]

    def configurations(self, namespace: str, authority: bytes = b"") -> list[JsonObject]:
        """Return both configurations; `authority` is what the API server is to trust, PEM."""
        return [self._configuration(kind, namespace, authority) for kind in (VALIDATING, MUTATING)]

    def _configuration(self, kind: str, namespace: str, authority: bytes) -> JsonObject:
        webhooks = []
        for path, webhook in self._webhooks.items():
            reached: JsonObject = {"url": self.url + path}
            if not self.url:
                name, namespace = self._service(namespace)
                service = {"name": name, "namespace": namespace, "port": self.service_port}
                reached = {"service": service | {"path": path}}
            if authority:
                reached["caBundle"] = base64.b64encode(authority).decode()
            if webhook.kind == kind:
                webhooks.append(webhook.entry | {"clientConfig": reached})
        named = {"name": self.name}
        return {"apiVersion": _API_VERSION, "kind": kind, "metadata": named, "webhooks": webhooks}

    def _service(self, namespace: str) -> tuple[str, str]:
        given, _, name = self.service.rpartition("/")
        return name, given or namespace


def _entry(gvr: GroupVersionResource, match: Match) -> JsonObject:
    timeout = match.get("timeout", 10)
    if not 1 <= timeout <= _LONGEST:
        raise ValueError(f"timeout={timeout}: the API server takes 1 to 30 seconds")
    subresource = match.get("subresource", "")
    rule = {
        "apiGroups": [gvr.group],
        "apiVersions": [gvr.version],
        "resources": [f"{gvr.resource}/{subresource}" if subresource else gvr.resource],
        "operations": list(match.get("operations", ("CREATE", "UPDATE"))),
    }
    entry: JsonObject = {
        "rules": [rule],
        "failurePolicy": match.get("failure_policy", "Fail"),
        "sideEffects": "NoneOnDryRun" if match.get("side_effects") else "None",
        "timeoutSeconds": timeout,
        "admissionReviewVersions": ["v1"],
    }
    if "namespaces" in match:
        entry["namespaceSelector"] = match["namespaces"]
    if "objects" in match:
        entry["objectSelector"] = match["objects"]
    if "conditions" in match:
        pairs = match["conditions"].items()
        entry["matchConditions"] = [{"name": name, "expression": cel} for name, cel in pairs]
    return entry


def _decoded(codec: Codec[T], raw: bytes) -> T | None:
    return None if raw == b"null" else codec.decode(raw)
