"""The page's server, and who gets in: on loopback the one who started it, with that user's own rights.

Other programs and other pages can reach a loopback port, so nothing is answered without all of these:

- `Host` is this address, so that no foreign name was pointed here (DNS rebinding).
- `Origin` and `Sec-Fetch-Site`, where a browser sends them, are this page's; nothing is shown in a frame.
- A session: a token in the address that is good for one request, exchanged for a cookie.
- For what changes anything, a second token that only the page itself knows.

`PageServer` is what it has in common with the server for many visitors (`elasti.dashboard.visitors`). Everything that the page is made of comes from here; its policy lets a browser load nothing else.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import datetime as dt
import hmac
import html
import importlib.resources
import secrets
from typing import TYPE_CHECKING

import msgspec
import yaml
from aiohttp import web

from elasti.api.names import CLI_FIELD_MANAGER, ELASTISERVICES, GROUP, KIND, PLURAL
from elasti.api.types import ElastiService
from elasti.api.wire import Ask
from elasti.dashboard.live import read_trigger_values
from elasti.dashboard.model import cold_start_stages, service_detail
from kubeloop.client.errors import ApiError, KubeError
from kubeloop.http.server import ConnectionLimits, HardenedServer
from kubeloop.objects.patches import MergePatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from elasti.dashboard.feed import Feed, Listener
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LOOPBACK = "127.0.0.1"
_LIMITS = ConnectionLimits(answer=3600.0, connections=64)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HEARTBEAT = 15.0
_STREAM = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
_ASSETS = {"dashboard.css": "text/css", "dashboard.js": "text/javascript"}
_FRAMES = frozenset({"iframe", "frame", "embed", "object", "fencedframe"})
_ACTIONS = {
    "wake": (Ask.WAKE, 0, "asked to wake"),
    "keep-1h": (Ask.WAKE, 1, "kept awake for an hour"),
    "keep-3h": (Ask.WAKE, 3, "kept awake for three hours"),
    "sleep": (Ask.SLEEP, 0, "asked to sleep"),
    "suspend": (Ask.SUSPEND, 0, "suspended: left alone until it is resumed"),
    "resume": (Ask.RESUME, 0, "resumed: it may sleep again"),
}
_KEEP = ("keep-1h", "keep-3h")


@dataclasses.dataclass(slots=True)
class Visit:
    """One user's client, what it follows, and what the user was found to be allowed; until that loop time."""

    client: Client
    feed: Feed
    until: float | None = None
    rights: dict[tuple[str, str], bool] = dataclasses.field(default_factory=dict)


class PageServer(abc.ABC):
    """Serves the page, from `open` to `close`."""

    def __init__(self, elasti_namespace: str, limits: ConnectionLimits) -> None:
        self._elasti_namespace = elasti_namespace
        self._server = HardenedServer(limits)

    async def open(self, port: int = 0, address: str | None = _LOOPBACK) -> None:
        """Listen; port 0 takes any free one, address None is all."""
        app = web.Application(client_max_size=4096, middlewares=[self._guard])
        service = "/api/services/{namespace}/{name}"
        app.router.add_get("/", self._page)
        app.router.add_get("/assets/{name}", self._asset)
        app.router.add_get("/api/events", self._events)
        app.router.add_get(service, self._detail)
        app.router.add_post(service + "/{action}", self._act)
        await self._server.open(app, address, port, shutdown_timeout=0.5)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    async def close(self) -> None:
        """Stop."""
        await self._server.close()

    # Who may come in

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            answered = self._admit(request)
            response = await handler(request) if answered is None else answered
        except KubeError as error:
            response = _failure(error)
        except web.HTTPException as error:
            response = _json(error.status, {"message": error.text or error.reason})
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    @abc.abstractmethod
    def _admit(self, request: web.Request) -> web.Response | None:
        """Let a request in, or answer it. Raises HTTPException."""

    @abc.abstractmethod
    def _csrf_of(self, request: web.Request) -> str:
        """Return what only the page of this visitor knows."""

    @abc.abstractmethod
    def _place_of(self, request: web.Request) -> str:
        """Return what the page is about."""

    @abc.abstractmethod
    def _visit(self, request: web.Request) -> contextlib.AbstractAsyncContextManager[Visit]:
        """Have the visitor's client during the block. Raises KubeError, HTTPBadRequest."""

    def _check_page(
        self, request: web.Request, scheme: str, hosts: Collection[str], *, arrives: bool = False
    ) -> None:
        """Refuse what does not come from this server's own page, not in a frame. Raises HTTPForbidden.

        arrives: another site may have led the visitor to the page itself.
        """
        if request.headers.get("Host", "") not in hosts:
            raise web.HTTPForbidden(text="this server is only for its own address")
        origin = request.headers.get("Origin")
        is_own = arrives or request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        if origin not in (None, f"{scheme}://{request.host}") or not is_own:
            raise web.HTTPForbidden(text="another page may not ask this server")
        if request.headers.get("Sec-Fetch-Dest") in _FRAMES:
            raise web.HTTPForbidden(text="this page is not shown in a frame")

    def _check_csrf(self, request: web.Request) -> None:
        token = request.headers.get("X-CSRF-Token", "")
        if request.method not in ("GET", "HEAD") and not same(token, self._csrf_of(request)):
            raise web.HTTPForbidden(text="the page's own token is missing; load the page again")

    # What there is

    async def _page(self, request: web.Request) -> web.Response:
        text = _file("index.html").replace("{csrf}", self._csrf_of(request))
        text = text.replace("{place}", html.escape(self._place_of(request)))
        return web.Response(text=text, content_type="text/html")

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _ASSETS:
            raise web.HTTPNotFound(text=f"there is no {name}")
        return web.Response(text=_file(name), content_type=_ASSETS[name])

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_HEADERS | _STREAM)
        try:
            async with self._visit(request) as visit:
                await response.prepare(request)
                # A visitor's token may be another one by now, and this with it.
                csrf = self._csrf_of(request).encode()
                await response.write(b"retry: 500\nevent: csrf\ndata: %b\n\n" % csrf)
                with visit.feed.listening() as listener, contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(visit.until):
                        while True:
                            await response.write(await _news(listener))
        except KubeError as error:
            # A page learns nothing of an answer that is no stream, and would ask again at once.
            await response.prepare(request)
            body = msgspec.json.encode(f"Nothing can be shown: {error}")
            await response.write(b"retry: 30000\nevent: problem\ndata: %b\n\n" % body)
        return response

    async def _detail(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        async with self._visit(request) as visit:
            client, feed = visit.client, visit.feed
            raw = await client.resource(ELASTISERVICES).get(name, namespace=namespace)
            raw["metadata"].pop("managedFields", None)
            try:
                es = msgspec.convert(raw, ElastiService)
            except msgspec.ValidationError as error:
                es = ElastiService.salvaged(msgspec.json.encode(raw), str(error))
            found = service_detail(es, feed.around())
            events, why = await _events_of(client, es)
            actions = [one for one in _sensible(es) if await _allowed(visit, namespace, one)]
            values = await read_trigger_values(
                client, self._elasti_namespace, asks_pods=feed.asks_pods
            )
            found |= {
                "actions": actions,
                "actionsWhy": "" if actions else "You may look at it, and not change it.",
                "events": events,
                "eventsWhy": why,
                "heldWhy": feed.held.why,
                "stages": cold_start_stages(es, await _pods_of(client, es)),
                "values": values.get(f"{namespace}/{name}", {}),
                "yaml": yaml.safe_dump(raw, sort_keys=False, allow_unicode=True),
            }
        return _json(200, found)

    async def _act(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if request.match_info["action"] not in _ACTIONS:
            raise web.HTTPNotFound(text=f"there is no action {request.match_info['action']}")
        ask, hours, done = _ACTIONS[request.match_info["action"]]
        now = dt.datetime.now(dt.UTC)
        body = ask.patch(now, now + dt.timedelta(hours=hours) if hours else None)
        async with self._visit(request) as visit:
            await visit.client.resource(ELASTISERVICES).patch(
                name, MergePatch(body), namespace=namespace, field_manager=CLI_FIELD_MANAGER
            )
        return _json(200, {"message": done})


class DashboardServer(PageServer):
    """For the one who started it: `url` lets one browser in."""

    def __init__(self, client: Client, feed: Feed, *, elasti_namespace: str, place: str) -> None:
        super().__init__(elasti_namespace, _LIMITS)
        self._own = Visit(client, feed)
        self._place = place
        self._token: str | None = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._csrf = secrets.token_urlsafe(32)

    @property
    def url(self) -> str:
        """The address to open, once."""
        return f"http://{_LOOPBACK}:{self.port}/?token={self._token}"

    def _admit(self, request: web.Request) -> web.Response | None:
        hosts = {f"{_LOOPBACK}:{self.port}", f"localhost:{self.port}"}
        self._check_page(request, "http", hosts)
        if request.path == "/" and "token" in request.query:
            return self._enter(request.query["token"])
        if not same(request.cookies.get(self._cookie, ""), self._session):
            raise web.HTTPForbidden(
                text="this browser has no session here; start elasti dashboard again"
            )
        self._check_csrf(request)
        return None

    def _csrf_of(self, request: web.Request) -> str:
        return self._csrf

    def _place_of(self, request: web.Request) -> str:
        return self._place

    @contextlib.asynccontextmanager
    async def _visit(self, request: web.Request) -> AsyncIterator[Visit]:
        yield self._own

    @property
    def _cookie(self) -> str:
        # Browsers send cookies to every port of a host.
        return f"elasti-dashboard-{self.port}"

    def _enter(self, token: str) -> web.Response:
        """Exchange the token of the address for a session; it is good once."""
        if self._token is None or not same(token, self._token):
            raise web.HTTPForbidden(
                text="this address was used already; start elasti dashboard again"
            )
        self._token = None
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
        return response


async def _news(listener: Listener) -> bytes:
    """Return the next message; one that says nothing now and then, which finds that a page was closed."""
    try:
        async with asyncio.timeout(_HEARTBEAT):
            return b"data: %b\n\n" % await listener.next()
    except TimeoutError:
        return b":\n\n"


async def _events_of(client: Client, es: ElastiService) -> tuple[list[JsonObject], str]:
    events = client.resource("v1/events", namespace=es.metadata.namespace)
    selector = f"involvedObject.name={es.metadata.name},involvedObject.kind={KIND}"
    try:
        return await events.items(field_selector=selector).to_list(), ""
    except KubeError as error:
        return [], f"Events cannot be read: {error}"


async def _pods_of(client: Client, es: ElastiService) -> list[JsonObject]:
    """Return the target's pods; none where they cannot be read, which only leaves stages out."""
    ref, namespace = es.spec.scale_target_ref, es.metadata.namespace
    try:
        targets = await client.resource_for(ref.api_version, ref.kind)
        scale = await targets.subresource("scale").get(ref.name, namespace=namespace)
        selector = (scale.get("status") or {}).get("selector")
        pods = client.resource("v1/pods", namespace=namespace)
        return await pods.items(selector=selector).to_list() if selector else []
    except KubeError:
        return []


def _sensible(es: ElastiService) -> list[str]:
    """Return the actions that mean something now, the likeliest first."""
    if es.spec.suspend:
        return ["resume"]
    asleep = es.status.state == "Proxy"
    return ["wake", *_KEEP, "suspend"] if asleep else [*_KEEP, "sleep", "suspend"]


async def _allowed(visit: Visit, namespace: str, action: str) -> bool:
    """Ask the API server whether the user may; it is asked again by the act itself."""
    verb = _ACTIONS[action][0].verb
    if (namespace, verb) not in visit.rights:
        asked = {"verb": verb, "group": GROUP, "resource": PLURAL, "namespace": namespace}
        kind, version = "SelfSubjectAccessReview", "authorization.k8s.io/v1"
        body = {"apiVersion": version, "kind": kind, "spec": {"resourceAttributes": asked}}
        try:
            answer = await visit.client.resource(f"{version}/{kind.lower()}s").create(body)
        except KubeError:
            return False
        visit.rights[namespace, verb] = bool((answer.get("status") or {}).get("allowed"))
    return visit.rights[namespace, verb]


def same(given: str, wanted: str) -> bool:
    """Whether two secrets are one, in a time that does not tell how nearly."""
    return hmac.compare_digest(given.encode(), wanted.encode())


def _file(name: str) -> str:
    return (importlib.resources.files("elasti.dashboard") / "assets" / name).read_text("utf-8")


def _failure(error: KubeError) -> web.Response:
    status = error.status.code if isinstance(error, ApiError) else 502
    return _json(status or 502, {"message": str(error)})


def _json(status: int, body: JsonObject) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )
