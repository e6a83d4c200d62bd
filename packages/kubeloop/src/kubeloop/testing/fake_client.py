"""A client without a server, for unit tests of controllers.

    client = FakeClient({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    factory = SharedInformerFactory(client)
    ...
    assert client.writes == ["PATCH /api/v1/namespaces/default/configmaps/a"]

It is a `Client`: requests are made, encoded and decoded as always, and answered from memory. It
keeps resourceVersions (a write at an old one is a Conflict), uids, generations and finalizers; it
knows create, get, list with selectors, replace, merge and JSON patches, apply, delete,
delete_collection, `status` and `scale`; and it delivers every change to watches, so that informers
and controllers run on it unchanged. Kinds of your own are served once it has their definition:
`FakeClient(custom_resource_definition(Website, "example.com/v1/websites"))`.

What it does not do, and an API server does: validate, default, admit or authorise; run controllers
(nothing owned is collected, no Deployment makes pods); check that a namespace exists; merge lists by
their keys in an apply; show `managedFields`; strategic merge patches; several versions of a kind;
logs, commands and ports of containers, which are a `NotImplementedError`. What depends on these is
tested against devkube, which is a server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.client.auth.credentials import Anonymous
from kubeloop.client.auth.identity import AuthContext, Identity
from kubeloop.client.client import Client
from kubeloop.client.config.client_config import ClientConfig
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.discovery import Discovered, DiscoveryClient
from kubeloop.client.mapper import RestMapper
from kubeloop.client.pipeline import RequestPipeline, decode
from kubeloop.client.responses import error_from_response
from kubeloop.client.wire.streams import StreamTransport
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.list_watch import ADDED, DELETED, MODIFIED, Page, WatchEvent, WatchOptions
from kubeloop.objects.meta import JsonObject, make_key
from kubeloop.objects.owners import kind_of
from kubeloop.testing.fake_api import FakeApi, OnChange
from kubeloop.testing.fake_connection import FakeConnection

if TYPE_CHECKING:
    from kubeloop.client.request import Request
    from kubeloop.client.wire.watch import WireWatch
    from kubeloop.objects.codec import Codec
    from kubeloop.testing.fake_source import FakeSource
    from kubeloop.testing.fake_watch import FakeWatch

T = TypeVar("T")


class FakeClient(Client):
    """A `Client` with a server of its own, which has `objects` already; see the module.

    Objects of a namespaced kind that name no namespace are put into `namespace`. With `server`, the
    client is one more client of that client's server: two replicas, or a user beside a controller.
    Each client has its own `requests`, faults and `on_write`.
    """

    def __init__(
        self,
        *objects: JsonObject | msgspec.Struct,
        namespace: str = "default",
        clock: Clock | None = None,
        server: FakeClient | None = None,
    ) -> None:
        config = ClientConfig(
            endpoint=Endpoint.parse("http://fake.invalid"),
            credentials=Anonymous(),
            source="a FakeClient",
            namespace=namespace,
        )
        super().__init__(config)
        self._api: FakeApi = FakeApi(clock or SystemClock()) if server is None else server._api
        self._connection = FakeConnection(self._api)
        self._pipeline = RequestPipeline(
            identity=Identity(config), transport=self._connection, timeout=30.0
        )
        self._streams = _FakeStreams(self._api, self._connection)
        self._discovery = _FakeDiscovery(self._api)
        self._mapper = RestMapper(self._discovery, seconds_between=0.0)
        for obj in objects:
            self.put(obj)

    @property
    def requests(self) -> list[Request]:
        """Every request of this client so far, including those of informers."""
        return self._connection.requests

    @property
    def writes(self) -> list[str]:
        """The writes of this client so far: method and path, without the query."""
        return [f"{sent.method} {sent.path}" for sent in self.requests if sent.method != "GET"]

    @property
    def on_write(self) -> Callable[[Request, bool], None] | None:
        """Called with each write before (False) and after (True) the server made it; may raise.

        An `ApiError` is the server's answer. Any other exception ends the call: raised after the
        write, it is a crash that the server does not notice.
        """
        return self._connection.on_write

    @on_write.setter
    def on_write(self, hook: Callable[[Request, bool], None] | None) -> None:
        self._connection.on_write = hook

    @property
    def on_change(self) -> list[OnChange]:
        """Functions that the server calls after each change, by any client: append yours.

        Each receives the resource, the object and whether it is gone.
        """
        return self._api.on_change

    def put(self, obj: JsonObject | msgspec.Struct) -> JsonObject:
        """Store an object whole, new or not, its status too, as another program would have."""
        content: JsonObject = msgspec.to_builtins(obj)
        gvk = kind_of(obj)  # a Struct may leave out what is its default
        content |= {"apiVersion": gvk.api_version, "kind": gvk.kind}
        return self._api.put(content, self.namespace)

    def remove(self, resource: str, name: str, *, namespace: str | None = None) -> None:
        """Delete an object as another program would; its finalizers are waited for."""
        place = self.namespace if namespace is None else namespace
        self._api.delete(GroupVersionResource.parse(resource), place, name)

    def find(self, resource: str, name: str, *, namespace: str | None = None) -> JsonObject | None:
        """Return an object's present state without a request; None if it does not exist."""
        source = self.source(resource)
        place = self.namespace if namespace is None else namespace
        found = source.objects.get(make_key(place, name)) or source.objects.get(make_key("", name))
        return None if found is None else source.represent(found)

    def source(self, resource: str | GroupVersionResource) -> FakeSource[JsonObject]:
        """Return the store of one resource: to end its watches, or to make its lists fail."""
        return self._api.source(GroupVersionResource.parse(resource))

    def fail_next(self, error: Exception, *, method: str = "", path: str = "") -> None:
        """Answer the next request of that method, to a path with that text in it, by an error."""
        self._connection.faults.append((method, path, error))


class _FakeDiscovery(DiscoveryClient):
    def __init__(self, api: FakeApi) -> None:
        self._api = api

    async def fetch(self) -> Discovered:
        """Return the kinds that the fake serves."""
        found = tuple(self._api.resources.values())
        return Discovered(
            versions={info.gvr.group: (info.gvr.version,) for info in found}, resources=found
        )

    async def server_version(self) -> str:
        """Return a version that no server has."""
        return "v0.0.0-fake"


class _FakeStreams(StreamTransport):
    def __init__(self, api: FakeApi, connection: FakeConnection) -> None:
        self._api = api
        self._connection = connection

    async def aclose(self) -> None:
        """Nothing is kept."""

    async def list(
        self, request: Request, codec: Codec[T], *, on_answer: Callable[[], None] | None = None
    ) -> Page[T]:
        """Answer an informer's list."""
        auth = AuthContext(authorization={}, ssl_context=None)
        response = await self._connection.send(request, auth, timeout=0)
        if not response.ok:
            raise error_from_response(response, now=SystemClock().now())
        return decode(response, codec.decode_page)

    async def watch(self, request: Request, codec: Codec[T], *, seconds: int) -> WireWatch[T]:
        """Open an informer's watch."""
        self._connection.note(request)
        place, query = self._api.place(request.path), dict(request.query)
        options = WatchOptions(
            **self._api.options(request, place),
            timeout_seconds=seconds,
            allow_bookmarks="allowWatchBookmarks" in query,
            send_initial_events="sendInitialEvents" in query,
        )
        watch = await self._api.source(place.info.gvr).watch(options)
        return cast("WireWatch[T]", _DecodedWatch(watch, codec))

    async def text(self, request: Request, *, patient: bool) -> AsyncGenerator[bytes, None]:
        """Refuse a log."""
        yield await self._connection.open_socket(request)


class _DecodedWatch(Generic[T]):
    """A watch of dictionaries, its objects as the reader wants them."""

    def __init__(self, watch: FakeWatch[JsonObject], codec: Codec[T]) -> None:
        self._watch = watch
        self._codec = codec

    async def read(self) -> list[WatchEvent[T]]:
        """Return the next events; an empty list is the end."""
        return [
            WatchEvent(kind, self._decoded(obj) if kind in {ADDED, MODIFIED, DELETED} else obj)
            for kind, obj in await self._watch.read()
        ]

    async def close(self) -> None:
        """Free everything."""
        await self._watch.close()

    def _decoded(self, obj: Any) -> T:
        return self._codec.decode(msgspec.json.encode(obj))
