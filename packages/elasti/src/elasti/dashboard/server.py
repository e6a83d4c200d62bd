"""The page's server: on loopback, for the one who started it, with that user's own rights.

Other programs and other pages can reach a loopback port, so nothing is answered without all of these:

- `Host` is this address, so that no foreign name was pointed here (DNS rebinding).
- `Origin` and `Sec-Fetch-Site`, where a browser sends them, are this page's; nothing is shown in a frame.
- A session: a token in the address that is good for one request, exchanged for a cookie.
- For what changes anything, a second token that only the page itself knows.

Everything that the page is made of comes from here; its policy lets a browser load nothing else.
"""

from __future__ import annotations

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
    from collections.abc import Awaitable, Callable

    from elasti.dashboard.feed import Feed
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


class DashboardServer:
    """Serves the page, from `open` to `close`; `url` lets one browser in."""

    def __init__(self, client: Client, feed: Feed, *, elasti_namespace: str, place: str) -> None:
        self._client = client
        self._feed = feed
        self._elasti_namespace = elasti_namespace
        self._place = place
        self._token: str | None = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._csrf = secrets.token_urlsafe(32)
        self._server = HardenedServer(_LIMITS)
        self._rights: dict[tuple[str, str], bool] = {}

    @property
    def url(self) -> str:
        """The address to open, once."""
        return f"http://{_LOOPBACK}:{self._server.port}/?token={self._token}"

    async def open(self, port: int = 0) -> None:
        """Listen; port 0 takes any free one."""
        app = web.Application(client_max_size=4096, middlewares=[self._guard])
        service = "/api/services/{namespace}/{name}"
        app.router.add_get("/", self._page)
        app.router.add_get("/assets/{name}", self._asset)
        app.router.add_get("/api/events", self._events)
        app.router.add_get(service, self._detail)
        app.router.add_post(service + "/{action}", self._act)
        await self._server.open(app, _LOOPBACK, port, shutdown_timeout=0.5)

    async def close(self) -> None:
        """Stop."""
        await self._server.close()

    # Who may come in

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._admit(request)
            response = await handler(request)
        except web.HTTPException as error:
            response = _json(error.status, {"message": error.text or error.reason})
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _admit(self, request: web.Request) -> None:
        port = self._server.port
        hosts = {f"{_LOOPBACK}:{port}", f"localhost:{port}"}
        if request.headers.get("Host", "") not in hosts:
            raise web.HTTPForbidden(text="this server is only for its own address")
        origin = request.headers.get("Origin")
        site = request.headers.get("Sec-Fetch-Site", "none")
        if origin not in (None, f"http://{request.host}") or site not in ("none", "same-origin"):
            raise web.HTTPForbidden(text="another page may not ask this server")
        if request.headers.get("Sec-Fetch-Dest") in _FRAMES:
            raise web.HTTPForbidden(text="this page is not shown in a frame")
        if request.path == "/" and "token" in request.query:
            return
        if not _same(request.cookies.get(self._cookie, ""), self._session):
            raise web.HTTPForbidden(
                text="this browser has no session here; start elasti dashboard again"
            )
        token = request.headers.get("X-CSRF-Token", "")
        if request.method not in ("GET", "HEAD") and not _same(token, self._csrf):
            raise web.HTTPForbidden(text="the page's own token is missing; load the page again")

    @property
    def _cookie(self) -> str:
        # Browsers send cookies to every port of a host.
        return f"elasti-dashboard-{self._server.port}"

    def _enter(self, token: str) -> web.Response:
        """Exchange the token of the address for a session; it is good once."""
        if self._token is None or not _same(token, self._token):
            raise web.HTTPForbidden(
                text="this address was used already; start elasti dashboard again"
            )
        self._token = None
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
        return response

    # What there is

    async def _page(self, request: web.Request) -> web.Response:
        if "token" in request.query:
            return self._enter(request.query["token"])
        text = _file("index.html").replace("{csrf}", self._csrf)
        text = text.replace("{place}", html.escape(self._place))
        return web.Response(text=text, content_type="text/html")

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _ASSETS:
            raise web.HTTPNotFound(text=f"there is no {name}")
        return web.Response(text=_file(name), content_type=_ASSETS[name])

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_HEADERS | {"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with self._feed.listening() as listener:
            while True:
                await response.write(b"data: %b\n\n" % await listener.next())

    async def _detail(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        try:
            raw = await self._client.resource(ELASTISERVICES).get(name, namespace=namespace)
        except KubeError as error:
            return _failure(error)
        raw["metadata"].pop("managedFields", None)
        try:
            es = msgspec.convert(raw, ElastiService)
        except msgspec.ValidationError as error:
            es = ElastiService.salvaged(msgspec.json.encode(raw), str(error))
        found = service_detail(es, self._feed.around())
        events, why = await self._events_of(es)
        actions = [one for one in self._sensible(es) if await self._allowed(namespace, one)]
        values = await read_trigger_values(self._client, self._elasti_namespace)
        found |= {
            "actions": actions,
            "actionsWhy": "" if actions else "You may look at it, and not change it.",
            "events": events,
            "eventsWhy": why,
            "heldWhy": self._feed.held.why,
            "stages": cold_start_stages(es, await self._pods_of(es)),
            "values": values.get(f"{namespace}/{name}", {}),
            "yaml": yaml.safe_dump(raw, sort_keys=False, allow_unicode=True),
        }
        return _json(200, found)

    async def _events_of(self, es: ElastiService) -> tuple[list[JsonObject], str]:
        events = self._client.resource("v1/events", namespace=es.metadata.namespace)
        selector = f"involvedObject.name={es.metadata.name},involvedObject.kind={KIND}"
        try:
            return await events.items(field_selector=selector).to_list(), ""
        except KubeError as error:
            return [], f"Events cannot be read: {error}"

    async def _pods_of(self, es: ElastiService) -> list[JsonObject]:
        """Return the target's pods; none where they cannot be read, which only leaves stages out."""
        ref, namespace = es.spec.scale_target_ref, es.metadata.namespace
        try:
            targets = await self._client.resource_for(ref.api_version, ref.kind)
            scale = await targets.subresource("scale").get(ref.name, namespace=namespace)
            selector = (scale.get("status") or {}).get("selector")
            pods = self._client.resource("v1/pods", namespace=namespace)
            return await pods.items(selector=selector).to_list() if selector else []
        except KubeError:
            return []

    # What can be done

    def _sensible(self, es: ElastiService) -> list[str]:
        """Return the actions that mean something now, the likeliest first."""
        if es.spec.suspend:
            return ["resume"]
        asleep = es.status.state == "Proxy"
        return ["wake", *_KEEP, "suspend"] if asleep else [*_KEEP, "sleep", "suspend"]

    async def _allowed(self, namespace: str, action: str) -> bool:
        """Ask the API server whether the user may; it is asked again by the act itself."""
        verb = _ACTIONS[action][0].verb
        if (namespace, verb) not in self._rights:
            asked = {"verb": verb, "group": GROUP, "resource": PLURAL, "namespace": namespace}
            kind, version = "SelfSubjectAccessReview", "authorization.k8s.io/v1"
            body = {"apiVersion": version, "kind": kind, "spec": {"resourceAttributes": asked}}
            try:
                answer = await self._client.resource(f"{version}/{kind.lower()}s").create(body)
            except KubeError:
                return False
            self._rights[namespace, verb] = bool((answer.get("status") or {}).get("allowed"))
        return self._rights[namespace, verb]

    async def _act(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if request.match_info["action"] not in _ACTIONS:
            raise web.HTTPNotFound(text=f"there is no action {request.match_info['action']}")
        ask, hours, done = _ACTIONS[request.match_info["action"]]
        now = dt.datetime.now(dt.UTC)
        body = ask.patch(now, now + dt.timedelta(hours=hours) if hours else None)
        try:
            await self._client.resource(ELASTISERVICES).patch(
                name, MergePatch(body), namespace=namespace, field_manager=CLI_FIELD_MANAGER
            )
        except KubeError as error:
            return _failure(error)
        return _json(200, {"message": done})


def _same(given: str, wanted: str) -> bool:
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
