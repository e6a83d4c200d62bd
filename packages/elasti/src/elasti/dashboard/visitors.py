"""The page's server in a cluster: every read and write is made with the visitor's own bearer token.

An authenticating proxy in front signs visitors in and sends each one's token in `Authorization`. The server has
no rights of its own: of its pod it uses the API server's address and CA. Without a token, or with one that the API
server does not take, there is nothing to see; a client that reaches the port can do what its token can, and no more.

Nothing is shared between tokens: each has a client, a watch and a cache of its own (`Visits`). These are bounded in
number, closed soon after the last request, and made again every ten minutes, so that a token that has expired, or
lost its rights, gets nothing from a cache.

`Host`, `Origin`, frames and the page's own token are as on loopback, for the configured hosts and https: the proxy
keeps visitors' sessions in cookies, which other sites' pages can use.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from typing import TypeAlias

from aiohttp import web

from elasti.api.names import CLI_FIELD_MANAGER, ELASTISERVICES
from elasti.dashboard.feed import Feed
from elasti.dashboard.server import PageServer, Visit
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.client import Client, ClientConfig, Timeouts
from kubeloop.client.auth.credentials import (
    ComposedCredentials,
    FixedHeaders,
    NoCertificate,
    bearer,
)
from kubeloop.client.auth.tls import PemSource, TlsContexts
from kubeloop.client.config.client_config import ClientSettings, in_cluster_endpoint
from kubeloop.client.errors import KubeError, ServiceUnavailable, Status, TransportError
from kubeloop.http.server import ConnectionLimits
from kubeloop.informer.sync import NotSynced
from kubeloop.objects.list_watch import ListOptions

HEALTH_PATH = "/healthz"
MOST_VISITS = 32
MOST_VISITS_EACH = 4
LIFETIME = 600.0
IDLE = 60.0
_LIMITS = ConnectionLimits(answer=LIFETIME + 60.0, connections=256)
_TIMEOUTS = Timeouts(connect=5.0, request=30.0)
_NAMESPACE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?\Z")

Key: TypeAlias = tuple[bytes, str]
Begin: TypeAlias = Callable[[str, str], contextlib.AbstractAsyncContextManager[Visit]]
"""Begins a visit with a token, to a namespace or, where it is empty, to all. Raises KubeError, NotSynced."""


@dataclasses.dataclass(eq=False, slots=True)
class _Kept:
    visit: asyncio.Future[Visit]
    task: asyncio.Task[None] | None = None
    users: int = 0
    used: float = 0.0
    changed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class Visits(BackgroundTasks):
    """Visits by token and namespace, each in a task; to be used inside its `async with` block."""

    def __init__(self, begin: Begin) -> None:
        super().__init__()
        self._begin = begin
        self._kept: dict[Key, _Kept] = {}

    @contextlib.asynccontextmanager
    async def of(self, token: str, namespace: str) -> AsyncIterator[Visit]:
        """Have the visit during the block. Raises KubeError."""
        loop = asyncio.get_running_loop()
        # Tokens are not kept in memory for longer than their clients.
        key = (hashlib.sha256(token.encode()).digest(), namespace)
        kept = self._kept.get(key)
        if kept is None:
            self._make_room(key[0])
            kept = self._kept[key] = _Kept(loop.create_future())
            kept.task = self.start(self._keep(key, kept, token), name="visit")
        kept.users += 1
        kept.changed.set()
        try:
            yield await asyncio.shield(kept.visit)
        finally:
            kept.users -= 1
            kept.used = loop.time()
            kept.changed.set()

    def _make_room(self, who: bytes) -> None:
        """End the visit that was idle for longest, where there are too many of one token or of all."""
        own = [key for key in self._kept if key[0] == who]
        for keys, most in ((own, MOST_VISITS_EACH), ([*self._kept], MOST_VISITS)):
            if len(keys) < most:
                continue
            idle = [key for key in keys if not self._kept[key].users]
            if not idle:
                raise ServiceUnavailable(Status(code=503, message="too many pages are open here"))
            ended = self._kept.pop(min(idle, key=lambda key: self._kept[key].used))
            assert ended.task is not None
            ended.task.cancel()
            return

    async def _keep(self, key: Key, kept: _Kept, token: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._begin(token, key[1]) as visit:
                visit.until = until = loop.time() + LIFETIME
                kept.visit.set_result(visit)
                while loop.time() < (end := until if kept.users else min(until, kept.used + IDLE)):
                    kept.changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(end):
                            await kept.changed.wait()
                # The next request begins another; what is being answered has this one to its end.
                self._forget(key, kept)
                while kept.users:
                    kept.changed.clear()
                    await kept.changed.wait()
        except (KubeError, NotSynced) as error:
            if not kept.visit.done():
                told = TransportError(str(error)) if isinstance(error, NotSynced) else error
                kept.visit.set_exception(told)
                kept.visit.exception()  # every waiter may be gone
        finally:
            kept.visit.cancel()
            self._forget(key, kept)

    def _forget(self, key: Key, kept: _Kept) -> None:
        if self._kept.get(key) is kept:
            del self._kept[key]


class VisitorServer(PageServer):
    """For everyone whom the proxy in front sends with a token, at the hosts that are named."""

    def __init__(
        self, visits: Visits, *, hosts: Collection[str], namespace: str, elasti_namespace: str
    ) -> None:
        super().__init__(elasti_namespace, _LIMITS)
        self._visits = visits
        self._hosts = frozenset(hosts)
        self._namespace = namespace
        self._secret = secrets.token_bytes(32)

    def _admit(self, request: web.Request) -> web.Response | None:
        if request.path == HEALTH_PATH:
            return web.Response(text="ok")
        # Signing in ends with a navigation that the browser counts as another site's.
        navigates = request.headers.get("Sec-Fetch-Mode") == "navigate"
        arrives = navigates and request.method == "GET" and request.path == "/"
        self._check_page(request, "https", self._hosts, arrives=arrives)
        changes = request.method not in ("GET", "HEAD")
        if changes and "Origin" not in request.headers:
            raise web.HTTPForbidden(text="only this server's own page may ask for that")
        _token(request)
        self._check_csrf(request)
        return None

    def _csrf_of(self, request: web.Request) -> str:
        return hmac.new(self._secret, _token(request).encode(), hashlib.sha256).hexdigest()

    def _place_of(self, request: web.Request) -> str:
        return self._namespace_of(request) or "all namespaces; one is at /?namespace=NAME"

    def _namespace_of(self, request: web.Request) -> str:
        found = request.query.get("namespace", self._namespace)
        if not _NAMESPACE.match(found):
            raise web.HTTPBadRequest(text=f"{found!r} is no namespace")
        return found

    def _visit(self, request: web.Request) -> contextlib.AbstractAsyncContextManager[Visit]:
        return self._visits.of(_token(request), self._namespace_of(request))


def _token(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip() or not token.isascii():
        raise web.HTTPUnauthorized(
            text="no bearer token came with this request: the proxy in front of the dashboard has to send one"
        )
    return token.strip()


def visits_in_cluster(elasti_namespace: str, settings: ClientSettings) -> Visits:
    """Return visits to the API server of this pod. Raises ConfigError outside a pod."""
    endpoint = in_cluster_endpoint(settings).through_environment(settings.environ)
    authority = PemSource(origin="the API server's CA", path=settings.serviceaccount_dir / "ca.crt")
    tls = TlsContexts(authority=authority)
    tls.context()

    @contextlib.asynccontextmanager
    async def begin(token: str, namespace: str) -> AsyncIterator[Visit]:
        credentials = ComposedCredentials(
            headers=FixedHeaders(bearer(token, origin="Authorization")),
            certificates=NoCertificate(),
            tls=tls,
        )
        config = ClientConfig(endpoint=endpoint, credentials=credentials, source="visitor")
        async with Client(config, timeouts=_TIMEOUTS, user_agent=CLI_FIELD_MANAGER) as client:
            # A watch would try again without end what is not allowed.
            objects = client.resource(ELASTISERVICES, namespace=namespace)
            await objects.list(ListOptions(limit=1))
            feed = Feed(client, namespace, elasti_namespace, asks_pods=False)
            async with feed.running():
                yield Visit(client, feed)

    return Visits(begin)
