"""The page's server. On loopback it serves the user who started it, with that user's own rights.

Other programs and other pages can reach a loopback port, so every request must pass all of these checks:

- `Host` is this address, so no foreign name points here (DNS rebinding).
- `Origin` and `Sec-Fetch-Site`, if a browser sends them, are this page's. The page refuses frames.
- The path begins with the session's key. A browser gets it in exchange for a code that works once. The code is not
  among the browser's arguments, which other users of the machine can read: a file leads the browser here. The key
  is not a cookie, because browsers send the cookies of 127.0.0.1 to every port of it.
- A request that changes something carries a second token, which only the page itself knows.

`PageServer` is the part that it shares with the server for many visitors (`elasti.dashboard.visitors`). The page
loads everything from here; its content security policy allows nothing else.
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
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator

import msgspec
import yaml

from elasti.api.names import CLI_FIELD_MANAGER, ELASTISERVICES, GROUP, KIND, PLURAL
from elasti.api.states import RESTING
from elasti.api.types import ElastiService
from elasti.api.view import dependency_tree
from elasti.api.wire import Ask
from elasti.dashboard.feed import Feed, Listener
from elasti.dashboard.fleet import fleet_view
from elasti.dashboard.live import read_trigger_values
from elasti.dashboard.model import cold_start_stages, service_detail, state_of
from kubeloop.client import Client
from kubeloop.client.errors import ApiError, KubeError, ServiceUnavailable, Status
from kubeloop.http.server import ConnectionLimits, HttpError, HttpServer, Request, Response, Router
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.names import DNS_LABEL_63, DNS_SUBDOMAIN
from kubeloop.objects.patches import MergePatch

_LOOPBACK = "127.0.0.1"
# Fewer than the connections of a server, so that a page always loads, however many are open.
MOST_STREAMS = 16
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
_ASSETS = {"dashboard.css": "text/css", "dashboard.js": "text/javascript"}
_DAYS = ("1", "7", "30", "90")
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
NAMESPACE = re.compile(DNS_LABEL_63)
_NAME = re.compile(rf"(?=.{{1,253}}\Z){DNS_SUBDOMAIN}")


@dataclasses.dataclass(slots=True)
class Visit:
    """One user's view of the cluster."""

    client: Client
    feed: Feed
    until: float | None = None
    """The loop time at which its streams end."""
    rights: dict[tuple[str, str], bool] = dataclasses.field(default_factory=dict)
    """The user's rights at the API server, by namespace and verb."""
    streams: int = 0

    @contextlib.contextmanager
    def streaming(self) -> Iterator[Listener]:
        """Have a listener during the block. Raises ServiceUnavailable if too many pages are open."""
        if self.streams >= MOST_STREAMS:
            message = f"this page is open {MOST_STREAMS} times; close one of them"
            raise ServiceUnavailable(Status(code=503, message=message))
        self.streams += 1
        try:
            with self.feed.listening() as listener:
                yield listener
        finally:
            self.streams -= 1


class PageServer(abc.ABC):
    """Serves the page, from `open` to `close`."""

    def __init__(self, elasti_namespace: str, limits: ConnectionLimits, base: str = "") -> None:
        """Serve below `base`, a path without a slash at its end."""
        self._elasti_namespace = elasti_namespace
        self._server = HttpServer(
            self._guard, limits, max_body=4096, shutdown_timeout=0.5, headers=_HEADERS
        )
        service = base + "/api/services/{namespace}/{name}"
        self._routes = Router(
            {
                f"GET {base}/": self._page,
                f"GET {base}/assets/{{name}}": self._asset,
                f"GET {base}/api/events": self._events,
                f"GET {base}/api/fleet": self._fleet,
                f"GET {service}": self._detail,
                f"POST {service}/{{action}}": self._act,
            }
        )

    async def open(self, port: int = 0, address: str | None = _LOOPBACK) -> None:
        """Listen; port 0 takes any free one, address None is all."""
        await self._server.open(address, port)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    async def close(self) -> None:
        """Stop."""
        await self._server.close()

    # Who may come in

    async def _guard(self, request: Request) -> Response:
        try:
            answered = self._admit(request)
            return await self._routes(request) if answered is None else answered
        except KubeError as error:
            status = error.status.code if isinstance(error, ApiError) else 502
            return _json(status or 502, {"message": str(error)})
        except HttpError as error:
            return _json(error.status, {"message": str(error)})

    @abc.abstractmethod
    def _admit(self, request: Request) -> Response | None:
        """Let a request in, or answer it. Raises HttpError."""

    @abc.abstractmethod
    def _csrf_of(self, request: Request) -> str:
        """Return the token that only this visitor's page knows."""

    @abc.abstractmethod
    def _place_of(self, request: Request) -> str:
        """Return the cluster and namespace that the page shows."""

    @abc.abstractmethod
    def _visit(self, request: Request) -> contextlib.AbstractAsyncContextManager[Visit]:
        """Have the visitor's view during the block. Raises KubeError, HttpError."""

    def _check_page(
        self, request: Request, scheme: str, hosts: Collection[str], *, arrives: bool = False
    ) -> None:
        """Refuse other hosts, other pages and frames. Raises HttpError.

        arrives: another site may have led the visitor to the page itself.
        """
        if request.header("host") not in hosts:
            raise HttpError(403, "this server answers only at its own address")
        own = (None, "none", "same-origin")
        is_own = arrives or request.header("sec-fetch-site") in own
        allowed = (None, f"{scheme}://{request.header('host')}")
        if request.header("origin") not in allowed or not is_own:
            raise HttpError(403, "only this server's own page may send requests")
        if request.header("sec-fetch-dest") in _FRAMES:
            raise HttpError(403, "this page refuses to be shown in a frame")

    def _check_csrf(self, request: Request) -> None:
        token = request.header("x-csrf-token") or ""
        if request.method not in ("GET", "HEAD") and not same(token, self._csrf_of(request)):
            raise HttpError(403, "the page's own token is missing; load the page again")

    # Reads

    async def _page(self, request: Request) -> Response:
        text = _file("index.html").replace("{csrf}", self._csrf_of(request))
        text = text.replace("{place}", html.escape(self._place_of(request)))
        return Response(body=text.encode(), content_type="text/html; charset=utf-8")

    async def _asset(self, request: Request) -> Response:
        name = request.arguments["name"]
        if name not in _ASSETS:
            raise HttpError(404, "there is no such file")
        return Response(body=_file(name).encode(), content_type=f"{_ASSETS[name]}; charset=utf-8")

    async def _events(self, request: Request) -> Response:
        stream = _stream(self._visit(request), self._csrf_of(request).encode())
        return Response(200, stream, "text/event-stream", {"X-Accel-Buffering": "no"})

    async def _fleet(self, request: Request) -> Response:
        days = request.parameter("days", "7")
        if days not in _DAYS:
            raise HttpError(400, f"ask for {', '.join(_DAYS)} days")
        async with self._visit(request) as visit:
            return _json(200, await fleet_view(visit.client, visit.feed, int(days)))

    async def _detail(self, request: Request) -> Response:
        namespace, name = _named(request)
        async with self._visit(request) as visit:
            client, feed = visit.client, visit.feed
            raw = await client.resource(ELASTISERVICES).get(name, namespace=namespace)
            raw["metadata"].pop("managedFields", None)
            try:
                es = msgspec.convert(raw, ElastiService)
            except msgspec.ValidationError as error:
                es = ElastiService.salvaged(msgspec.json.encode(raw), str(error))
            found = service_detail(es, feed.around())
            found["dependencies"] = await _dependencies_of(client, es)
            events, why = await _events_of(client, es)
            actions = [one for one in _sensible(es) if await _allowed(visit, namespace, one)]
            values = await read_trigger_values(
                client, self._elasti_namespace, asks_pods=feed.asks_pods
            )
            found |= {
                "actions": actions,
                "actionsWhy": "" if actions else "Read-only: your rights do not let you change it.",
                "events": events,
                "eventsWhy": why,
                "heldWhy": feed.held.why,
                "stages": cold_start_stages(es, await _pods_of(client, es)),
                "values": values.get(f"{namespace}/{name}", {}),
                "yaml": yaml.safe_dump(raw, sort_keys=False, allow_unicode=True),
            }
        return _json(200, found)

    async def _act(self, request: Request) -> Response:
        namespace, name = _named(request)
        if request.arguments["action"] not in _ACTIONS:
            raise HttpError(404, f"there is no such action; use one of {', '.join(_ACTIONS)}")
        ask, hours, done = _ACTIONS[request.arguments["action"]]
        now = dt.datetime.now(dt.UTC)
        body = ask.patch(now, now + dt.timedelta(hours=hours) if hours else None)
        async with self._visit(request) as visit:
            await visit.client.resource(ELASTISERVICES).patch(
                name, MergePatch(body), namespace=namespace, field_manager=CLI_FIELD_MANAGER
            )
        return _json(200, {"message": done})


class DashboardServer(PageServer):
    """Serves the user who started it: `url` lets one browser in."""

    def __init__(self, client: Client, feed: Feed, *, elasti_namespace: str, place: str) -> None:
        self._session = secrets.token_urlsafe(32)
        super().__init__(elasti_namespace, _LIMITS, f"/{self._session}")
        self._own = Visit(client, feed)
        self._place = place
        self._code: str | None = secrets.token_urlsafe(32)
        self._csrf = secrets.token_urlsafe(32)

    @property
    def url(self) -> str:
        """The address to open, once."""
        return f"http://{_LOOPBACK}:{self.port}/?code={self._code}"

    def _admit(self, request: Request) -> Response | None:
        hosts = {f"{_LOOPBACK}:{self.port}", f"localhost:{self.port}"}
        # The file that leads here counts as another site, also after the redirection to the page.
        arrives = request.method == "GET" and request.path in ("/", f"/{self._session}/")
        self._check_page(request, "http", hosts, arrives=arrives)
        if request.path == "/" and "code" in request.query:
            # The code of the address is exchanged for the session's path, once.
            if self._code is None or not same(request.parameter("code"), self._code):
                raise HttpError(
                    403, "this address has already been used; start elasti dashboard again"
                )
            self._code = None
            return Response(303, headers={"Location": f"/{self._session}/"})
        if not same(request.path.split("/")[1], self._session):
            raise HttpError(403, "this is not a page's address; start elasti dashboard again")
        self._check_csrf(request)
        return None

    def _csrf_of(self, request: Request) -> str:
        return self._csrf

    def _place_of(self, request: Request) -> str:
        return self._place

    @contextlib.asynccontextmanager
    async def _visit(self, request: Request) -> AsyncIterator[Visit]:
        yield self._own


def _named(request: Request) -> tuple[str, str]:
    """Return the namespace and name that a path names. Raises HttpError."""
    namespace, name = request.arguments["namespace"], request.arguments["name"]
    if not NAMESPACE.fullmatch(namespace) or not _NAME.fullmatch(name):
        raise HttpError(400, "the path does not name a namespace and an ElastiService")
    return namespace, name


async def _stream(
    visiting: contextlib.AbstractAsyncContextManager[Visit], csrf: bytes
) -> AsyncGenerator[bytes, None]:
    try:
        async with visiting as visit:
            with visit.streaming() as listener, contextlib.suppress(TimeoutError):
                # The visitor may have another token by now, and with it another CSRF token.
                yield b"retry: 500\nevent: csrf\ndata: %b\n\n" % csrf
                while True:
                    async with asyncio.timeout_at(visit.until):
                        news = await _news(listener)
                    yield news
    except KubeError as error:
        # EventSource hides every answer that is not a stream from the page.
        body = msgspec.json.encode(f"Nothing can be shown: {error}")
        yield b"retry: 30000\nevent: problem\ndata: %b\n\n" % body


async def _news(listener: Listener) -> bytes:
    """Return the next message, or an empty one in quiet times: writing it finds out if the page was closed."""
    try:
        async with asyncio.timeout(_HEARTBEAT):
            return b"data: %b\n\n" % await listener.next()
    except TimeoutError:
        return b":\n\n"


async def _dependencies_of(client: Client, es: ElastiService) -> list[str]:
    """Return the tree below an ElastiService; empty if the others may not be listed."""
    if not es.spec.depends_on:
        return []
    resource = client.resource(ELASTISERVICES, ElastiService, namespace=es.metadata.namespace)
    try:
        others = {one.metadata.name: one async for one in resource.items()}
    except KubeError:
        return []
    return dependency_tree(es, others)


async def _events_of(client: Client, es: ElastiService) -> tuple[list[JsonObject], str]:
    events = client.resource("v1/events", namespace=es.metadata.namespace)
    selector = f"involvedObject.name={es.metadata.name},involvedObject.kind={KIND}"
    try:
        return await events.items(field_selector=selector).to_list(), ""
    except KubeError as error:
        return [], f"Events cannot be read: {error}"


async def _pods_of(client: Client, es: ElastiService) -> list[JsonObject]:
    """Return the target's pods; none if they cannot be read, which only leaves stages out."""
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
    if es.spec.observes:
        return []
    if es.spec.suspend:
        return ["resume"]
    rests = ["wake", *_KEEP, "suspend"]
    return rests if state_of(es) in RESTING else [*_KEEP, "sleep", "suspend"]


async def _allowed(visit: Visit, namespace: str, action: str) -> bool:
    """Ask the API server whether the user may do this; the action itself asks again."""
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
    """Compare two secrets in constant time. Headers may hold any bytes."""
    return hmac.compare_digest(given.encode(), wanted.encode())


def _file(name: str) -> str:
    return (importlib.resources.files("elasti.dashboard") / "assets" / name).read_text("utf-8")


def _json(status: int, body: JsonObject) -> Response:
    return Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
