"""A Kubernetes client for asyncio.

    async with Client.from_env() as client:
        pods = client.resource("v1/pods")
        pod = await pods.get("web-0", namespace="default")

The client owns the connections, and everything that is per client and not per resource: identity,
rate, retries, discovery. It belongs to one event loop. Objects are dictionaries unless a type is
given: any msgspec Struct with a `metadata` field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from kubeloop.client.auth.identity import Identity
from kubeloop.client.config.client_config import ClientConfig
from kubeloop.client.discovery import DiscoveryClient
from kubeloop.client.mapper import RestMapper
from kubeloop.client.pipeline import RequestPipeline
from kubeloop.client.pod_streams import PodStreams
from kubeloop.client.ratelimit import RateLimit, TokenBucket
from kubeloop.client.request import Request, ResourceScope
from kubeloop.client.resource import Resource
from kubeloop.client.wire.streams import StreamTransport
from kubeloop.client.wire.transport import HttpTransport, Timeouts
from kubeloop.objects.codec import codec_for
from kubeloop.objects.gvk import GroupVersionResource, ServedKind, resource_and_kind
from kubeloop.objects.owners import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kubeloop.client.responses import Response
    from kubeloop.client.retry import RetryPolicy
    from kubeloop.objects.meta import JsonObject

T = TypeVar("T")
K = TypeVar("K", bound=ServedKind)


class Client(PodStreams):
    """The connection to one API server. Use it as an `async with` block, or call `aclose`.

    `rate` limits how fast requests are begun (default: not at all, see `ratelimit`), `retry` says
    which are sent again, `compression` asks for gzip on large answers.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        rate: RateLimit | None = None,
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
        user_agent: str = "",
        compression: bool = False,
    ) -> None:
        timeouts = timeouts or Timeouts()
        self._config = config
        self._transport = HttpTransport(
            config.endpoint, connect_timeout=timeouts.connect, compression=compression
        )
        self._pipeline = RequestPipeline(
            identity=Identity(config, user_agent=user_agent),
            transport=self._transport,
            timeout=timeouts.request,
            retry=retry,
            bucket=TokenBucket(rate) if rate is not None else None,
        )
        self._streams = StreamTransport(
            pipeline=self._pipeline, endpoint=config.endpoint, timeouts=timeouts
        )
        self._discovery = DiscoveryClient(self._pipeline)
        self._mapper = RestMapper(self._discovery)

    @classmethod
    def from_env(cls, *, context: str | None = None) -> Client:
        """Use the pod's ServiceAccount if there is one, else the kubeconfig."""
        return cls(ClientConfig.from_env(context=context))

    @classmethod
    def from_kubeconfig(
        cls, paths: str | Path | Iterable[str | Path] | None = None, *, context: str | None = None
    ) -> Client:
        """Use kubeconfig files: the ones given, or those of KUBECONFIG, or ~/.kube/config."""
        return cls(ClientConfig.from_kubeconfig(paths, context=context))

    @classmethod
    def in_cluster(cls) -> Client:
        """Use the ServiceAccount of the pod that this runs in."""
        return cls(ClientConfig.in_cluster())

    def __repr__(self) -> str:
        return f"<Client {self._config.endpoint}>"

    @property
    def config(self) -> ClientConfig:
        """Where the server is and who we are."""
        return self._config

    @property
    def namespace(self) -> str:
        """The namespace that the configuration names, `default` if it names none."""
        return self._config.namespace

    @property
    def mapper(self) -> RestMapper:
        """Kinds and names to resources."""
        return self._mapper

    @property
    def discovery(self) -> DiscoveryClient:
        """The resources that the server offers, read again each time."""
        return self._discovery

    @overload
    def resource(self, resource: type[K], *, namespace: str = "") -> Resource[K]: ...

    @overload
    def resource(
        self, resource: str | GroupVersionResource, *, namespace: str = ""
    ) -> Resource[JsonObject]: ...

    @overload
    def resource(
        self, resource: str | GroupVersionResource, kind: type[T], *, namespace: str = ""
    ) -> Resource[T]: ...

    def resource(
        self,
        resource: str | GroupVersionResource | type[Any],
        kind: type[Any] = dict,
        *,
        namespace: str = "",
    ) -> Resource[Any]:
        """Return a resource by its path: `v1/pods`, `apps/v1/deployments`. Sends nothing.

        A class of kubeloop-kinds, or any with a `RESOURCE`, says its path itself.
        """
        gvr, kind = resource_and_kind(resource, kind)
        return self._bind(ResourceScope(gvr=gvr, namespace=namespace), kind)

    @overload
    async def resource_for(
        self, api_version: str, kind: str, *, namespace: str = ""
    ) -> Resource[JsonObject]: ...

    @overload
    async def resource_for(
        self, api_version: str, kind: str, type_: type[T], *, namespace: str = ""
    ) -> Resource[T]: ...

    async def resource_for(
        self, api_version: str, kind: str, type_: type[Any] = dict, *, namespace: str = ""
    ) -> Resource[Any]:
        """Return the resource that serves a kind, by discovery. Raises `NoMatch`."""
        info = await self._mapper.by_kind(api_version, kind)
        scope = ResourceScope(gvr=info.gvr, namespace=namespace, namespaced=info.namespaced)
        return self._bind(scope, type_)

    async def apply(
        self,
        obj: T,
        *,
        manager: str,
        force: bool = False,
        namespace: str | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> T:
        """Make an object have these fields, by server-side apply; creates it where missing.

        `obj` is a dictionary or a Struct, partial or whole, that says what it is: apiVersion and
        kind, as fields `api_version` and `kind` of a Struct. Fields that are `UNSET` are not sent,
        so they are not `manager`'s; what it applied before and leaves out now is removed. Raises
        `ApplyConflict`, which names the other managers and their fields, unless `force` takes them.
        """
        try:
            gvk = kind_of(obj)
        except ValueError:
            raise ValueError(
                f"apply must know what the object is: give {type(obj).__name__} apiVersion and kind"
                " (fields api_version and kind of a Struct), or call apply on"
                " client.resource('v1/configmaps')"
            ) from None
        resource = await self.resource_for(gvk.api_version, gvk.kind, type(obj))
        return await resource.apply(
            obj,
            namespace=namespace,
            force=force,
            field_manager=manager,
            dry_run=dry_run,
            timeout=timeout,
        )

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        """Send any request, with this client's identity, rate and retries. Raises `KubeError`."""
        return await self._pipeline.send(request, timeout=timeout)

    async def server_version(self) -> str:
        """Return the server's own version, such as `v1.36.4`."""
        return await self._discovery.server_version()

    async def aclose(self) -> None:
        """Close every pooled connection. Safe to repeat; watches are closed by their owners."""
        await self._transport.aclose()
        await self._streams.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def _bind(self, scope: ResourceScope, kind: type[T]) -> Resource[T]:
        return Resource(
            scope, codec=codec_for(kind), pipeline=self._pipeline, streams=self._streams
        )
