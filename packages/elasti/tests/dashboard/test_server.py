"""Who gets in: every way that a foreign page or program has to the server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from yarl import URL

from elasti.api.crd import custom_resource_definition
from elasti.api.names import ELASTISERVICES
from elasti.api.types import ElastiService
from elasti.dashboard.feed import Feed
from elasti.dashboard.fleet import BUCKETS
from elasti.dashboard.live import HeldCounts
from elasti.dashboard.server import MOST_STREAMS, DashboardServer, _sensible
from kubeloop.client.errors import Forbidden, Status
from kubeloop.objects.meta import JsonObject
from kubeloop.testing.fake_client import FakeClient as ServingClient
from tests.waiting import eventually

ES: JsonObject = {
    "metadata": {"name": "web", "namespace": "shop", "managedFields": [{}]},
    "spec": {
        "service": "web",
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
    },
}


READY = {"type": "Ready", "status": "True", "reason": "Valid"}


class Nothing:
    """A list without items."""

    async def to_list(self) -> list[JsonObject]:
        return []

    async def __aiter__(self) -> AsyncIterator[JsonObject]:
        for item in list[JsonObject]():
            yield item


class FakeResource:
    """What the server asks of a cluster; `may`: which verbs a review allows."""

    def __init__(self, may: set[str]) -> None:
        self.may = may
        self.spec: JsonObject = ES["spec"]
        self.patches: list[Any] = []

    async def get(self, _name: str, **_options: Any) -> JsonObject:
        return {"metadata": dict(ES["metadata"]), "spec": self.spec}

    async def create(self, body: JsonObject) -> JsonObject:
        verb = body["spec"]["resourceAttributes"]["verb"]
        return {"status": {"allowed": verb in self.may}}

    async def patch(self, _name: str, patch: Any, **_options: Any) -> None:
        if "patch" not in self.may:
            raise Forbidden(Status(code=403, message="not you"))
        self.patches.append(patch.body)

    def items(self, **_options: Any) -> Nothing:
        return Nothing()

    def subresource(self, _name: str) -> FakeResource:
        return self


class FakeClient:
    def __init__(self, *may: str) -> None:
        self.objects = FakeResource(set(may))

    def resource(self, *_arguments: Any, **_options: Any) -> FakeResource:
        return self.objects

    async def resource_for(self, *_arguments: Any) -> FakeResource:
        return self.objects


class FakeFeed(Feed):
    def __init__(self) -> None:
        self.asks_pods = False
        self.namespace = ""
        self._rows = {}
        self._listeners = set()
        self._own = None
        self._problem = ""
        self.services = {}
        self.held = HeldCounts(None, "not asked")


class Visitor:
    """A browser, more or less: it keeps cookies and goes where it is sent."""

    def __init__(self, server: DashboardServer, client: FakeClient, session: Any) -> None:
        self.server, self.client, self.session = server, client, session
        self.first = server.url
        self.origin = self.base = self.first.partition("/?")[0]

    async def get(self, path: str = "/", **headers: str) -> tuple[int, str, Any]:
        return await self._ask("GET", path, headers)

    async def post(self, path: str, **headers: str) -> tuple[int, str, Any]:
        return await self._ask("POST", path, headers)

    async def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(
            method, self.base + path, headers=named, allow_redirects=False
        ) as answer:
            return answer.status, await answer.text(), answer.headers

    async def enter(self) -> str:
        """Come in by the address; returns the page's own token."""
        status, _, headers = await self.get(self.first.removeprefix(self.base))
        assert status == 303
        assert re.fullmatch(r"/[\w-]{40,}/", headers["Location"])
        self.base += headers["Location"].removesuffix("/")
        status, text, _ = await self.get()
        assert status == 200
        found = re.search(r'name="csrf" content="([^"]{40,})"', text)
        assert found is not None
        return found[1]


@contextlib.asynccontextmanager
async def visiting(*may: str, client: Any = None) -> AsyncIterator[Visitor]:
    client = client or FakeClient(*may)
    server = DashboardServer(client, FakeFeed(), elasti_namespace="elasti", place="<b>here")
    await server.open()
    jar = aiohttp.CookieJar(unsafe=True)
    try:
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            yield Visitor(server, client, session)
    finally:
        await server.close()


@pytest.fixture
async def visitor() -> AsyncIterator[Visitor]:
    async with visiting("patch", "update") as made:
        yield made


WAKE = "/api/services/shop/web/wake"


async def test_without_a_session_nothing_is_answered(visitor: Visitor):
    for path in ("/", "/assets/dashboard.js", "/api/events", "/api/services/shop/web"):
        status, text, _ = await visitor.get(path)
        assert status == 403
        assert "not a page's address" in text
        assert (await visitor.get(f"/wrong{path}"))[0] == 403
    assert (await visitor.post(WAKE))[0] == 403


async def test_a_code_lets_one_browser_in_once(visitor: Visitor):
    assert (await visitor.get("/?code=wrong"))[0] == 403
    await visitor.enter()
    visitor.base = visitor.origin
    status, text, headers = await visitor.get(visitor.first.removeprefix(visitor.base))
    assert status == 403
    assert "already been used" in text
    assert "Location" not in headers


async def test_a_file_leads_to_the_page_and_to_nothing_else(visitor: Visitor):
    first = visitor.first.removeprefix(visitor.base)
    status, _, headers = await visitor.get(first, Sec_Fetch_Site="cross-site")
    assert status == 303
    visitor.base += headers["Location"].removesuffix("/")
    for path, expected in (("/", 200), ("/assets/dashboard.js", 403), ("/api/events", 403)):
        assert (await visitor.get(path, Sec_Fetch_Site="cross-site"))[0] == expected
    assert (await visitor.post("/", Sec_Fetch_Site="cross-site"))[0] == 403


async def test_another_port_of_this_machine_gets_nothing_of_the_session(visitor: Visitor):
    await visitor.enter()
    got: list[str] = []

    async def receive(request: web.Request) -> web.Response:
        got.extend((str(request.rel_url), *request.headers.values()))
        return web.Response()

    app = web.Application()
    app.router.add_get("/", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    async with visitor.session.get(f"{site.name}/") as answer:
        assert answer.status == 200
    await runner.cleanup()
    secret = visitor.base.rpartition("/")[2]
    assert got
    assert not any(secret in text for text in got)
    assert not list(visitor.session.cookie_jar)


ODD = "..%2fother", "a%00b", "a" * 5000, "%ff%fe", "%C3%A9", "A%20B", "%2e%2e", "a%0d%0ab"


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_name_is_a_bad_request(visitor: Visitor, odd: str):
    csrf = await visitor.enter()
    for path in (f"/api/services/shop/{odd}", f"/api/services/{odd}/web"):
        for method in ("GET", "POST"):
            url = URL(f"{visitor.base}{path}{'/wake' * (method == 'POST')}", encoded=True)
            headers = {"X-CSRF-Token": csrf}
            async with visitor.session.request(method, url, headers=headers) as answer:
                assert answer.status == 400
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["Cache-Control"] == "no-store"
    assert visitor.client.objects.patches == []


async def test_odd_bytes_are_refused_and_not_an_error(visitor: Visitor):
    await visitor.enter()
    path = visitor.base.removeprefix(visitor.origin)
    for line in (
        b"GET / HTTP/1.1\r\nCookie: elasti-dashboard=\xc3\xa9\xff",
        b"GET /?code=%FF%00 HTTP/1.1",
        b"GET /%C3%A9/ HTTP/1.1",
        b"GET /%ED%A0%80/ HTTP/1.1",
        b"POST %b/api/services/shop/web/wake HTTP/1.1\r\nX-CSRF-Token: \xc3\xa9\xff"
        % path.encode(),
        b"POST %b/api/services/shop/web/%%ff HTTP/1.1\r\nX-CSRF-Token: \xff" % path.encode(),
        b"GET %b/assets/%%ed%%a0%%80 HTTP/1.1" % path.encode(),
        b"GET / HTTP/1.1\r\nOrigin: \xff\xfe",
        b"GET / HTTP/1.1\r\nCookie: a=\0",
        b"GET \xff\xfe HTTP/1.1",
    ):
        answer = await raw(visitor.server.port, line)
        status = int(answer.split()[1])
        assert status in (400, 403, 404), (line, answer)
        assert b"frame-ancestors 'none'" in answer, (line, answer)


async def raw(port: int, head: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    host = b"Host: 127.0.0.1:%d\r\nConnection: close\r\nContent-Length: 0" % port
    writer.write(head + b"\r\n" + host + b"\r\n\r\n")
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_many_streams_of_one_session_leave_its_page_open(visitor: Visitor):
    csrf = await visitor.enter()
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        for number in range(80):
            answer = await stack.enter_async_context(session.get(f"{visitor.base}/api/events"))
            if number < MOST_STREAMS:
                await answer.content.readuntil(b"data: {")
            else:
                assert b"event: problem" in await answer.content.read()
        assert (await visitor.get())[0] == 200
        assert (await visitor.post(WAKE, X_CSRF_Token=csrf))[0] == 200
    await eventually(lambda: not visitor.server._own.feed._listeners)


async def test_a_foreign_host_is_refused(visitor: Visitor):
    await visitor.enter()
    status, text, _ = await visitor.get(Host="evil.example:80")
    assert status == 403
    assert "only at its own address" in text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_a_foreign_page_is_refused(visitor: Visitor, headers: dict[str, str]):
    csrf = await visitor.enter()
    assert (await visitor.get("/api/services/shop/web", **headers))[0] == 403
    assert (await visitor.post(WAKE, X_CSRF_Token=csrf, **headers))[0] == 403
    assert visitor.client.objects.patches == []


async def test_a_request_without_the_pages_own_token_is_refused(visitor: Visitor):
    await visitor.enter()
    for headers in ({}, {"X_CSRF_Token": "wrong"}):
        status, text, _ = await visitor.post(WAKE, Origin=visitor.origin, **headers)
        assert status == 403
        assert "token is missing" in text
    assert visitor.client.objects.patches == []


async def test_it_is_shown_in_no_frame_and_loads_nothing_from_elsewhere(visitor: Visitor):
    await visitor.enter()
    assert (await visitor.get(Sec_Fetch_Dest="iframe"))[0] == 403
    for path in ("/", "/assets/dashboard.js", "/nowhere"):
        _, text, headers = await visitor.get(path)
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "https://" not in text
    assert "&lt;b&gt;here" in (await visitor.get())[1], "what a kubeconfig says is text"


async def test_what_is_asked_for_is_asked_of_the_cluster(visitor: Visitor):
    csrf = await visitor.enter()
    status, text, _ = await visitor.post(WAKE, X_CSRF_Token=csrf, Origin=visitor.origin)
    assert (status, text) == (200, '{"message":"asked to wake"}')
    assert b"wake-requested-at" in visitor.client.objects.patches[0]
    for action, part in {
        "keep-3h": b"keep-awake-until",
        "sleep": b"sleep-requested-at",
        "suspend": b'"suspend":true',
        "resume": b'"suspend":null',
    }.items():
        path = f"/api/services/shop/web/{action}"
        assert (await visitor.post(path, X_CSRF_Token=csrf))[0] == 200
        assert part in visitor.client.objects.patches[-1]
    assert (await visitor.post("/api/services/shop/web/delete", X_CSRF_Token=csrf))[0] == 404


@pytest.mark.parametrize(
    ("doze", "first"), [("", "keep-1h"), ("Dozing", "wake"), ("Growing", "keep-1h")]
)
def test_the_likeliest_button_is_first(doze: str, first: str):
    status: JsonObject = {"state": "Serve", "conditions": [READY]}
    if doze:
        status["doze"] = {"state": doze, "since": "2030-01-01T00:00:00Z"}
    es = msgspec.convert({**ES, "status": status}, ElastiService)
    found = _sensible(es)
    assert found[0] == first
    assert ("sleep" in found) is (first != "wake")


@pytest.mark.parametrize(
    ("may", "actions"),
    [
        ((), '"actions":[]'),
        (("patch",), '"actions":["keep-1h","keep-3h"]'),
        (("patch", "update"), '"actions":["keep-1h","keep-3h","sleep","suspend"]'),
    ],
)
async def test_buttons_are_those_that_the_user_may_press(may: tuple[str, ...], actions: str):
    async with visiting(*may) as visitor:
        csrf = await visitor.enter()
        status, text, _ = await visitor.get("/api/services/shop/web")
        assert status == 200
        assert actions in text
        assert "managedFields" not in text
        if not may:
            status, text, _ = await visitor.post(WAKE, X_CSRF_Token=csrf)
            assert status == 403
            assert "not you" in text


def part(name: str, state: str, *depends_on: str) -> JsonObject:
    refs = [{"name": one} for one in depends_on]
    return {
        "apiVersion": "elasti.truefoundry.com/v1alpha1",
        "kind": "ElastiService",
        "metadata": {"name": name},
        "spec": ES["spec"] | {"service": name, "dependsOn": refs},
        "status": {"state": state},
    }


@pytest.mark.parametrize("may_list", [True, False])
async def test_the_tree_of_what_it_needs_has_the_state_of_each(may_list: bool):
    parts = [
        part("web", "Proxy", "api", "gone"),
        part("api", "Proxy", "db"),
        part("db", "Serve"),
    ]
    client = ServingClient(custom_resource_definition(), *parts, namespace="shop")
    async with visiting(client=client) as visitor:
        await visitor.enter()
        if not may_list:
            client.source(ELASTISERVICES).fail_lists(Forbidden(Status(code=403)))
        status, text, _ = await visitor.get("/api/services/shop/web")
        assert status == 200
        tree = ["api: asleep", "  db: awake", "gone: ignored"]
        assert json.loads(text)["dependencies"] == (tree if may_list else [])


async def test_a_page_that_was_closed_is_noticed(visitor: Visitor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("elasti.dashboard.server._HEARTBEAT", 0.01)
    await visitor.enter()
    listeners = visitor.server._own.feed._listeners
    async with visitor.session.get(f"{visitor.base}/api/events") as answer:
        await answer.content.readuntil(b":\n\n")
        assert len(listeners) == 1
    await eventually(lambda: not listeners)


async def test_closed_pages_leave_nothing_in_the_terminal(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("elasti.dashboard.server._HEARTBEAT", 0.01)
    await visitor.enter()
    listeners = visitor.server._own.feed._listeners
    for _ in range(20):
        async with visitor.session.get(f"{visitor.base}/api/events") as answer:
            await answer.content.readuntil(b":\n\n")
    await eventually(lambda: not listeners)
    await asyncio.sleep(0.05)
    assert caplog.text == ""


async def test_an_object_that_cannot_be_read_is_shown_as_far_as_it_can(visitor: Visitor):
    await visitor.enter()
    visitor.client.objects.spec = ES["spec"] | {"cooldownPeriod": "soon"}
    status, text, _ = await visitor.get("/api/services/shop/web")
    assert status == 200
    assert "cooldownPeriod: soon" in text
    assert '"target":"Deployment/web"' in text


async def test_a_history_is_of_a_few_lengths(visitor: Visitor):
    assert (await visitor.get("/api/fleet"))[0] == 403
    await visitor.enter()
    for days in ("1", "7"):
        status, text, _ = await visitor.get(f"/api/fleet?days={days}")
        assert status == 200
        assert len(json.loads(text)["cpu"]) == BUCKETS
    for days in ("0", "", "-1", "366", "7%00", "x"):
        assert (await visitor.get(f"/api/fleet?days={days}"))[0] == 400
