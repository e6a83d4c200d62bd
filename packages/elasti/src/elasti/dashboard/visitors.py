"""The page's server in a cluster: every read and write is made with the visitor's own bearer token.

An authenticating proxy in front signs visitors in and sends each one's token in `Authorization`. The server has
no rights of its own: from its pod it uses only the API server's address and CA. Without a token that the API server
accepts there is nothing to see, so a client that reaches the port can do only what its token can.

Nothing is shared between tokens: each has a client, a watch and a cache of its own (`Visits`). These are bounded in
number, closed soon after the last request, and made again every ten minutes, so that a token that has expired, or
lost its rights, gets nothing from a cache. Only a token that the API server has accepted takes one of these places;
until then it is one of the few that are being checked, so garbage tokens crowd out only each other.

`Host`, `Origin`, frames and the page's own token are checked as on loopback, for the configured hosts and https: the
proxy keeps visitors' sessions in cookies, which other sites' pages can use.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from typing import TypeAlias

from elasti.api.names import CLI_FIELD_MANAGER, ELASTISERVICES
from elasti.dashboard.feed import Feed
from elasti.dashboard.server import NAMESPACE, PageServer, Visit
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
from kubeloop.http.server import ConnectionLimits, HttpError, Request, Response
from kubeloop.informer.sync import NotSynced
from kubeloop.objects.list_watch import ListOptions

HEALTH_PATH = "/healthz"
MOST_VISITS = 32
MOST_VISITS_EACH = 4
MOST_CHECKS = 8
"""Tokens that are checked at the same time."""
MOST_UNCHECKED = 64
"""Those and the ones that wait for it: far fewer than the connections, which all clients share."""
LIFETIME = 600.0
IDLE = 60.0
_LIMITS = ConnectionLimits(answer=LIFETIME + 60.0, connections=256)
_TIMEOUTS = Timeouts(connect=5.0, request=30.0)

Key: TypeAlias = tuple[bytes, str]
Begin: TypeAlias = Callable[[str, str], contextlib.AbstractAsyncContextManager[Visit]]
"""Checks a token, and has a client for one namespace, or for all if it is empty. Raises KubeError.

The visit's feed is not running yet.
"""


@dataclasses.dataclass(eq=False, slots=True)
class _Kept:
    visit: asyncio.Future[Visit]
    is_admitted: bool = False
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
        self._checks = asyncio.Semaphore(MOST_CHECKS)

    @contextlib.asynccontextmanager
    async def of(self, token: str, namespace: str) -> AsyncIterator[Visit]:
        """Have the visit during the block. Raises KubeError."""
        loop = asyncio.get_running_loop()
        # Tokens are not kept in memory for longer than their clients.
        key = (hashlib.sha256(token.encode()).digest(), namespace)
        kept = self._kept.get(key)
        if kept is None:
            if sum(not one.is_admitted for one in self._kept.values()) >= MOST_UNCHECKED:
                raise _unavailable("too many tokens are being checked here; try again")
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
        """End the visit that was idle for longest if there are too many of one token or of all."""
        every = [key for key, kept in self._kept.items() if kept.is_admitted]
        own = [key for key in every if key[0] == who]
        for keys, most in ((own, MOST_VISITS_EACH), (every, MOST_VISITS)):
            if len(keys) < most:
                continue
            idle = [key for key in keys if not self._kept[key].users]
            if not idle:
                raise _unavailable("too many pages are open here")
            ended = self._kept.pop(min(idle, key=lambda key: self._kept[key].used))
            assert ended.task is not None
            ended.task.cancel()
            return

    async def _keep(self, key: Key, kept: _Kept, token: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with self._checks:
                    visit = await stack.enter_async_context(self._begin(token, key[1]))
                self._make_room(key[0])
                kept.is_admitted = True
                await stack.enter_async_context(visit.feed.running())
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
                shown = TransportError(str(error)) if isinstance(error, NotSynced) else error
                kept.visit.set_exception(shown)
                kept.visit.exception()  # every waiter may be gone
        finally:
            kept.visit.cancel()
            self._forget(key, kept)

    def _forget(self, key: Key, kept: _Kept) -> None:
        if self._kept.get(key) is kept:
            del self._kept[key]


def _unavailable(message: str) -> ServiceUnavailable:
    return ServiceUnavailable(Status(code=503, message=message))


class VisitorServer(PageServer):
    """Serves every visitor that the proxy in front sends with a token, at the given hosts."""

    def __init__(
        self, visits: Visits, *, hosts: Collection[str], namespace: str, elasti_namespace: str
    ) -> None:
        super().__init__(elasti_namespace, _LIMITS)
        self._visits = visits
        self._hosts = frozenset(hosts)
        self._namespace = namespace
        self._secret = secrets.token_bytes(32)

    def _admit(self, request: Request) -> Response | None:
        if request.path == HEALTH_PATH:
            return Response(body=b"ok")
        # Signing in ends with a navigation that the browser counts as another site's.
        navigates = request.header("sec-fetch-mode") == "navigate"
        arrives = navigates and request.method == "GET" and request.path == "/"
        self._check_page(request, "https", self._hosts, arrives=arrives)
        changes = request.method not in ("GET", "HEAD")
        if changes and request.header("origin") is None:
            raise HttpError(403, "only this server's own page may change anything")
        _token(request)
        self._check_csrf(request)
        return None

    def _csrf_of(self, request: Request) -> str:
        return hmac.new(self._secret, _token(request).encode(), hashlib.sha256).hexdigest()

    def _place_of(self, request: Request) -> str:
        return self._namespace_of(request) or "all namespaces; one is at /?namespace=NAME"

    def _namespace_of(self, request: Request) -> str:
        found = request.parameter("namespace", self._namespace)
        if found and not NAMESPACE.fullmatch(found):
            raise HttpError(400, f"{found!r} is not a namespace")
        return found

    def _visit(self, request: Request) -> contextlib.AbstractAsyncContextManager[Visit]:
        return self._visits.of(_token(request), self._namespace_of(request))


def _token(request: Request) -> str:
    kind, _, token = (request.header("authorization") or "").partition(" ")
    if kind.lower() != "bearer" or not token.strip() or not token.isascii():
        raise HttpError(
            401,
            "the request has no bearer token: the proxy in front of the dashboard has to send one",
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
            # A watch would retry forever what is not allowed.
            objects = client.resource(ELASTISERVICES, namespace=namespace)
            await objects.list(ListOptions(limit=1))
            yield Visit(client, Feed(client, namespace, elasti_namespace, asks_pods=False))

    return Visits(begin)
