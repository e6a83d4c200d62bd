"""The server without its sockets: everything that answers requests, put together in one place.

`Core` answers calls about objects; `NonResourcePaths` answers paths that are not resources: discovery, OpenAPI,
health, version, and the paths below `/_dev` that inject faults.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import web

from devkube.apiserver import status
from devkube.apiserver.auth import Authenticator, Authorizer, Gate, UserInfo, refused
from devkube.apiserver.calls import ApiResponse, Attributes, Call, WatchResponse
from devkube.apiserver.crd.controller import (
    CleanupFinalizer,
    DefinitionController,
    TerminatingDefinitions,
)
from devkube.apiserver.discovery import DiscoveryDocuments, OpenApiDocuments
from devkube.apiserver.faults import FAULTS_PATH, FaultInjector
from devkube.apiserver.patch.apply import FieldTracker
from devkube.apiserver.registry.admission import (
    AdmissionPlugin,
    NamespaceLifecycle,
    ServiceAddresses,
)
from devkube.apiserver.registry.catalog import builtin_registry
from devkube.apiserver.registry.subresources import answer_scale, bind_pod, finalize_namespace
from devkube.apiserver.registry.verbs import ResourceVerbs
from devkube.apiserver.registry.writer import ObjectWriter, WriteResult
from devkube.apiserver.schema.types import BuiltinTypes
from devkube.apiserver.storage import ObjectStore
from devkube.apiserver.validation.names import Stamps
from kubeloop.aio.clock import Clock
from kubeloop.objects.meta import JsonObject

PathHandler = Callable[[web.BaseRequest, Attributes, UserInfo], Awaitable[ApiResponse]]

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "gitVersion": "v1.36.3+devkube",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/python",
}
CAPABILITIES_PATH = "/devkube"
"""Says what differs from a cluster of machines, for installers. Every user may read it."""
_DOCUMENTS = {
    "/": {"paths": ["/api", "/apis", "/openapi/v3"]},
    "/version": VERSION,
    CAPABILITIES_PATH: {"pods": "processes", "images": "not pulled"},
}
# kubectl looks a kind up in version 2 that version 3 does not have, and only in protobuf: an empty
# document (swagger "2.0", a title, a version) lets it say itself that there is no such kind.
_DOCUMENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_EMPTY_DOCUMENT = b"\n\x032.0\x12\x13\n\nKubernetes\x12\x05v1.36"
_HEALTH = ("/healthz", "/livez", "/readyz")
# Resources that only a real cluster has, each with a remedy unless it is obvious.
_NOT_HERE = {
    "eviction": "delete the pod: disruption budgets are stored and not counted",
    "exec": "a pod is a process of this machine: run the command here",
    "attach": "a pod is a process of this machine; its output is in its log",
    "portforward": "connect to the pod's address itself: it is one of this machine's",
    "proxy": "connect to the pod's or the Service's address itself: it is one of this machine's",
}


class NonResourcePaths:
    """Answers everything that is not about objects."""

    def __init__(
        self, *, discovery: DiscoveryDocuments, openapi: OpenApiDocuments, faults: FaultInjector
    ) -> None:
        self._discovery = discovery
        self._openapi = openapi
        self._more: dict[str, PathHandler] = {FAULTS_PATH: private(faults.command)}

    def serve(self, path: str, handler: PathHandler) -> None:
        """Let a later layer answer one path, whatever the method."""
        self._more[path] = handler

    async def answer(
        self, request: web.BaseRequest, attributes: Attributes, user: UserInfo
    ) -> ApiResponse:
        """Answer a path; 404 if nothing is there."""
        path = attributes.path.rstrip("/") or "/"
        if path in self._more:
            return await self._more[path](request, attributes, user)
        if attributes.verb != "get":
            text = f"{request.method} is not served at {path}"
            raise status.failure(405, "MethodNotAllowed", text)
        found = self._read(path, request)
        if found is None:
            raise status.no_such_path()
        return found

    def _read(self, path: str, request: web.BaseRequest) -> ApiResponse | None:
        if path in _HEALTH:
            return _health(path, verbose="verbose" in request.query)
        if path in _DOCUMENTS:
            return ApiResponse(body=msgspec.json.encode(_DOCUMENTS[path]))
        if path.startswith("/openapi/"):
            return self._schema(path)
        accept = ",".join(request.headers.getall("Accept", ()))
        document = self._discovery.document(path, accept, request.host)
        if document is None:
            return None
        return ApiResponse(body=msgspec.json.encode(document[0]), content_type=document[1])

    def _schema(self, path: str) -> ApiResponse | None:
        if path == "/openapi/v3":
            return ApiResponse(body=msgspec.json.encode(self._openapi.index()))
        if path == "/openapi/v2":
            return ApiResponse(body=_EMPTY_DOCUMENT, content_type=_DOCUMENT_TYPE)
        body = self._openapi.v3(path.removeprefix("/openapi/v3/"))
        return ApiResponse(body=body) if body is not None else None


def _health(path: str, *, verbose: bool) -> ApiResponse:
    text = f"[+]ping ok\n[+]storage ok\n{path[1:]} check passed\n" if verbose else "ok"
    return ApiResponse(body=text.encode(), content_type="text/plain; charset=utf-8")


def private(handle: Callable[[bytes], JsonObject]) -> PathHandler:
    """Answer with what a handler returns, to administrators on this machine alone."""

    async def answer(
        request: web.BaseRequest, attributes: Attributes, user: UserInfo
    ) -> ApiResponse:
        if not user.is_admin or not _is_local(request.remote):
            raise refused(user, attributes)
        body = await request.read() if attributes.verb == "post" else b""
        return ApiResponse(body=msgspec.json.encode(handle(body)))

    return answer


def _is_local(address: str | None) -> bool:
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False


StreamHandler = Callable[[Call, web.BaseRequest], Awaitable[web.StreamResponse]]


class Core:
    """Answers requests. Later layers add authorizers, plugins and subresources to the public parts."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        clock: Clock,
        authenticators: Sequence[Authenticator],
        authorizers: Sequence[Authorizer],
        service_network: str,
    ) -> None:
        self.store = store
        self.types = BuiltinTypes()
        self.registry = builtin_registry(self.types)
        self.stamps = Stamps(clock=clock)
        self.gate = Gate(authenticators=authenticators, authorizers=authorizers)
        self.faults = FaultInjector(store)
        self.admission: list[AdmissionPlugin] = [
            NamespaceLifecycle(store),
            CleanupFinalizer(),
            TerminatingDefinitions(store),
        ]
        self.writer = ObjectWriter(
            store=store,
            stamps=self.stamps,
            tracker=FieldTracker(self.stamps),
            admission=self.admission,
            allocators=[ServiceAddresses(store, network=service_network)],
            observe=self._written,
        )
        self.endpoints = ResourceVerbs(self.writer)
        self.paths = NonResourcePaths(
            discovery=DiscoveryDocuments(self.registry),
            openapi=OpenApiDocuments(self.registry, self.types),
            faults=self.faults,
        )
        # Questions that look like objects and are never stored, by kind.
        self.reviews: dict[str, Callable[[Call], Awaitable[ApiResponse]]] = {}
        self._subresources: dict[str, Callable[[Call], ApiResponse]] = {
            "scale": functools.partial(answer_scale, self.writer),
            "binding": functools.partial(bind_pod, self.writer),
            "finalize": functools.partial(finalize_namespace, self.writer),
            "token": _no_tokens,
        }
        self.streams: dict[tuple[str, str], StreamHandler] = {}
        self.definitions = DefinitionController(
            writer=self.writer, registry=self.registry, types=self.types
        )
        self.observers: list[Callable[[Call, WriteResult], None]] = [self.definitions.observe]
        store.taken_back = self.definitions.restore

    def serve(self, subresource: str, handler: Callable[[Call], ApiResponse]) -> None:
        """Answer a subresource with a handler, in place of the one before."""
        self._subresources[subresource] = handler

    def subresource(self, call: Call) -> StreamHandler | None:
        """Return the handler of a subresource that is more than an object, such as a log."""
        return self.streams.get((call.resource.plural, call.attributes.subresource))

    def answer(self, call: Call) -> ApiResponse | WatchResponse:
        """Answer a call."""
        subresource = call.attributes.subresource
        if subresource and subresource not in call.served.subresources:
            raise _no_such_subresource(call.resource.plural, subresource)
        special = self._subresources.get(subresource)
        return special(call) if special is not None else self.endpoints.answer(call)

    def _written(self, call: Call, written: WriteResult) -> None:
        for observer in self.observers:
            observer(call, written)


def _no_such_subresource(plural: str, name: str) -> status.StatusError:
    remedy = _NOT_HERE.get(name) if plural in ("pods", "services", "nodes") else None
    if remedy is None:
        return status.no_such_path()
    return status.no_such_path(f"a development cluster does not serve {plural}/{name}; {remedy}")


def _no_tokens(call: Call) -> ApiResponse:
    """Stand in until an issuer of ServiceAccount tokens registers its own handler."""
    text = "this server issues no ServiceAccount tokens: no issuer is configured"
    raise status.failure(501, "NotImplemented", text)
