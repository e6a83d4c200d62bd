"""The server in a cluster: what a visitor's token allows, and nothing of another visitor's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from devkube.apiserver.auth import ADMIN_GROUP
from devkube.apiserver.server import ApiServer
from devkube.auth.install import fill, install
from devkube.auth.jwt import SigningKey
from elasti.api.crd import custom_resource_definition
from elasti.api.names import ELASTISERVICES, GROUP, PLURAL
from elasti.api.types import ElastiServiceSpec, ScaleTargetRef
from elasti.dashboard import visitors
from elasti.dashboard.feed import Feed
from elasti.dashboard.server import Visit
from elasti.dashboard.visitors import VisitorServer, Visits, visits_in_cluster
from kubeloop.client import AlreadyExists, Client
from kubeloop.client.config.client_config import ClientSettings
from kubeloop.client.errors import NotFound, ServiceUnavailable, Unauthorized
from kubeloop.client.errors import Status as ApiStatus
from tests.waiting import eventually

HOST = "elasti.example.com"
_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]


class Visitor:
    """A browser behind the proxy: each request has the token."""

    def __init__(self, base: str, session: aiohttp.ClientSession, token: str) -> None:
        self.base, self.session, self.token = base, session, token

    async def ask(self, method: str, path: str, **headers: str) -> tuple[int, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Host": HOST, "Authorization": f"Bearer {self.token}"} | named
        async with self.session.request(method, self.base + path, headers=sent) as answer:
            return answer.status, await answer.text()

    async def csrf(self) -> str:
        _, text = await self.ask("GET", "/")
        found = re.search(r'name="csrf" content="([^"]{40,})"', text)
        assert found is not None
        return found[1]

    async def post(self, path: str, **headers: str) -> tuple[int, str]:
        given = {"X_CSRF_Token": await self.csrf(), "Origin": f"https://{HOST}"} | headers
        return await self.ask("POST", path, **given)

    async def stream(self, path: str = "/api/events") -> tuple[str, Any]:
        """The first message of a stream, after the page's own token."""
        sent = {"Host": HOST, "Authorization": f"Bearer {self.token}"}
        async with self.session.get(self.base + path, headers=sent) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["X-Accel-Buffering"] == "no"
            event = "message"
            async for line in answer.content:
                name, _, value = line.decode().strip().partition(": ")
                if name == "event":
                    event = value
                elif name == "data" and event != "csrf":
                    return event, json.loads(value)
                elif not name:
                    event = "message"
        raise AssertionError("the stream ended without a message")

    async def rows(self, path: str = "/api/events") -> list[str]:
        event, message = await self.stream(path)
        assert event == "message", message
        return sorted(row["key"] for row in message["rows"])


async def grant(client: Client, name: str, verbs: list[str], namespace: str = "") -> None:
    """Let an account do that with ElastiServices."""
    kind = "Role" if namespace else "ClusterRole"
    rule = {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": verbs}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    where: Any = {"namespace": namespace} if namespace else {}
    meta = {"metadata": {"name": name}}
    await client.resource(f"{_RBAC}/v1/{kind.lower()}s", **where).create({**meta, "rules": [rule]})
    ref = {"kind": kind, "name": name, "apiGroup": _RBAC}
    bindings = client.resource(f"{_RBAC}/v1/{kind.lower()}bindings", **where)
    await bindings.create({**meta, "subjects": [subject], "roleRef": ref})


async def token_of(client: Client, name: str) -> str:
    accounts = client.resource("v1/serviceaccounts", namespace="default")
    await accounts.create({"metadata": {"name": name}})
    made = await accounts.subresource("token").create(name, {"spec": {"expirationSeconds": 3600}})
    return str(made["status"]["token"])


async def elastiservice(client: Client, namespace: str) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.resource("v1/namespaces").create({"metadata": {"name": namespace}})
    spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", "Deployment", "web"), "web")
    body = {"metadata": {"name": "web"}, "spec": msgspec.to_builtins(spec)}
    objects = client.resource(ELASTISERVICES, namespace=namespace)
    await eventually(lambda: objects.create(body), ignore=(NotFound,))


@contextlib.asynccontextmanager
async def api_server() -> AsyncIterator[tuple[ApiServer, Client]]:
    server = ApiServer()
    auth = install(server.core, key=SigningKey.create())
    async with server:
        fill(server.core, auth)
        async with Client(server.client_config("dev-admin", [ADMIN_GROUP])) as client:
            definitions = client.resource("apiextensions.k8s.io/v1/customresourcedefinitions")
            await definitions.create(custom_resource_definition())
            yield server, client


@contextlib.asynccontextmanager
async def serving(visits: Visits) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    server = VisitorServer(visits, hosts=[HOST], namespace="", elasti_namespace="elasti")
    async with visits, aiohttp.ClientSession() as session:
        try:
            await server.open()
            yield f"http://127.0.0.1:{server.port}", session
        finally:
            await server.close()


async def test_each_visitor_sees_and_does_what_their_own_token_allows(tmp_path: Path):
    async with api_server() as (server, client):
        (tmp_path / "ca.crt").write_bytes(server.ca_pem)
        host, _, port = server.url.removeprefix("https://").partition(":")
        pod = ClientSettings(service_host=host, service_port=port, serviceaccount_dir=tmp_path)
        tokens = [await token_of(client, name) for name in ("all", "shop", "none")]
        await elastiservice(client, "shop")
        await elastiservice(client, "bank")
        await grant(client, "all", _READ)
        await grant(client, "shop", [*_READ, "patch"], "shop")
        async with serving(visits_in_cluster("elasti", pod)) as (base, session):
            everything, shop, none = (Visitor(base, session, token) for token in tokens)
            assert await everything.rows() == ["bank/web", "shop/web"]
            # By now one visitor's cache has everything.
            for visitor, path in (
                (shop, ""),
                (shop, "?namespace=bank"),
                (none, ""),
                (none, "?namespace=shop"),
                (Visitor(base, session, "made.up.token"), ""),
            ):
                event, told = await visitor.stream(f"/api/events{path}")
                assert event == "problem"
                assert "Nothing can be shown" in told
                assert "web" not in told
                status, text = await visitor.ask("GET", f"/api/services/bank/web{path}")
                assert status in (401, 403), text
            assert "/?namespace=NAME" in (await shop.ask("GET", "/"))[1]
            assert await shop.rows("/api/events?namespace=shop") == ["shop/web"]
            path = "/api/services/{}/web{}?namespace=shop"
            assert (await shop.ask("GET", path.format("bank", "")))[0] == 403
            actions = json.loads((await shop.ask("GET", path.format("shop", "")))[1])["actions"]
            assert actions == ["keep-1h", "keep-3h"], "patch, and not update"
            text = (await everything.ask("GET", "/api/services/shop/web"))[1]
            assert json.loads(text)["actions"] == []
            assert (await everything.post("/api/services/shop/web/wake"))[0] == 403
            assert (await shop.post(path.format("bank", "/wake")))[0] == 403
            assert (await shop.post(path.format("shop", "/wake")))[0] == 200
        for namespace, woken in (("shop", True), ("bank", False)):
            found = await client.resource(ELASTISERVICES).get("web", namespace=namespace)
            assert ("wake-requested-at" in json.dumps(found)) is woken


# Which requests are answered


@contextlib.asynccontextmanager
async def no_visit(_token: str, _namespace: str) -> AsyncIterator[Visit]:
    raise AssertionError("the cluster was asked")
    yield


@pytest.fixture
async def visitor() -> AsyncIterator[Visitor]:
    async with serving(Visits(no_visit)) as (base, session):
        yield Visitor(base, session, "t1")


async def test_without_a_token_nothing_is_answered(visitor: Visitor):
    for value in ("", "Basic abc", "Bearer", "Bearer ", "Bearer \u00e9\udcff"):
        for path in ("/", "/assets/dashboard.js", "/api/events", "/api/services/shop/web"):
            status, text = await visitor.ask("GET", path, Authorization=value)
            assert (status, "has no bearer token" in text) == (401, True)
    assert await visitor.ask("GET", "/healthz", Host="10.0.0.1", Authorization="") == (200, "ok")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": f"http://{HOST}"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Dest": "iframe"},
    ],
)
async def test_a_foreign_host_or_page_is_refused_in_a_cluster(
    visitor: Visitor, headers: dict[str, str]
):
    assert (await visitor.ask("GET", "/", **headers))[0] == 403
    assert (await visitor.post("/api/services/shop/web/wake", **headers))[0] == 403


async def test_a_visitor_may_come_from_the_sign_in_of_another_site(visitor: Visitor):
    headers = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert (await visitor.ask("GET", "/", Sec_Fetch_Dest="document", **headers))[0] == 200
    assert (await visitor.ask("GET", "/", Sec_Fetch_Dest="iframe", **headers))[0] == 403
    assert (await visitor.ask("GET", "/api/services/shop/web", **headers))[0] == 403
    assert (await visitor.post("/api/services/shop/web/wake", **headers))[0] == 403


async def test_a_page_token_of_another_visitor_is_refused(visitor: Visitor):
    wake = "/api/services/shop/web/wake"
    csrf = await visitor.csrf()
    other = Visitor(visitor.base, visitor.session, "t2")
    for token in (csrf, "", "wrong"):
        status, text = await other.post(wake, X_CSRF_Token=token)
        assert (status, "token is missing" in text) == (403, True)
    own = {"X_CSRF_Token": csrf}
    assert (await visitor.ask("POST", wake, **own))[0] == 403, "a browser would name its origin"


async def test_a_namespace_is_a_name(visitor: Visitor):
    for path in ("/", "/api/events", "/api/services/shop/web"):
        assert (await visitor.ask("GET", f"{path}?namespace=../../nodes"))[0] == 400


# How many visits there are, and for how long


class SyncedFeed(Feed):
    def __init__(self) -> None:
        pass

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield


class Begun:
    """Visits that are open, by token and namespace."""

    def __init__(self) -> None:
        self.open: list[tuple[str, str]] = []
        self.begun = 0
        self.refuse = False

    @contextlib.asynccontextmanager
    async def begin(self, token: str, namespace: str) -> AsyncIterator[Visit]:
        self.begun += 1
        await asyncio.sleep(0.1)
        if self.refuse or token.startswith("garbage"):
            raise Unauthorized(ApiStatus(code=401, message="Unauthorized"))
        self.open.append((token, namespace))
        nothing: Any = None
        try:
            yield Visit(nothing, SyncedFeed())
        finally:
            self.open.remove((token, namespace))


@pytest.mark.virtual_time
async def test_one_token_has_one_visit_until_it_is_idle():
    begun = Begun()
    async with Visits(begun.begin) as visits:

        async def use(token: str) -> Visit:
            async with visits.of(token, "") as visit:
                await asyncio.sleep(visitors.IDLE * 3)
                return visit

        one, same, other = await asyncio.gather(use("a"), use("a"), use("b"))
        assert one is same
        assert one is not other
        assert begun.begun == 2
        await asyncio.sleep(visitors.IDLE - 1)
        assert begun.open == [("a", ""), ("b", "")]
        await asyncio.sleep(2)
        assert begun.open == []


@pytest.mark.virtual_time
async def test_a_visit_is_made_again_however_busy_it_is():
    begun = Begun()
    async with Visits(begun.begin) as visits, visits.of("a", "") as visit:
        assert visit.until is not None
        await asyncio.sleep(visitors.LIFETIME + 1)
        begun.refuse = True  # the token has expired
        with pytest.raises(Unauthorized):
            async with visits.of("a", ""):
                pass
        assert begun.open == [("a", "")], "what is being answered keeps its client"
    assert begun.open == []


@pytest.mark.virtual_time
async def test_visits_are_bounded_and_idle_ones_go_first():
    begun = Begun()
    async with Visits(begun.begin) as visits, contextlib.AsyncExitStack() as busy:
        for number in range(visitors.MOST_VISITS - 1):
            await busy.enter_async_context(visits.of(f"t{number}", ""))
        for token in ("idle", "newer"):
            async with visits.of(token, ""):
                pass
        assert len(begun.open) == visitors.MOST_VISITS
        assert ("newer", "") in begun.open
        await busy.enter_async_context(visits.of("newer", ""))
        with pytest.raises(ServiceUnavailable, match="too many"):
            await busy.enter_async_context(visits.of("one more", ""))


@pytest.mark.virtual_time
async def test_garbage_tokens_take_no_place_from_visitors():
    begun = Begun()
    async with Visits(begun.begin) as visits:

        async def attack(number: int) -> None:
            for attempt in range(20):
                with contextlib.suppress(Unauthorized, ServiceUnavailable):
                    async with visits.of(f"garbage-{number}-{attempt}", ""):
                        pass

        async def visit(token: str) -> None:
            for _ in range(25):
                async with visits.of(token, ""):
                    await asyncio.sleep(0.01)

        tokens = [f"t{number}" for number in range(visitors.MOST_VISITS - 1)]
        await asyncio.gather(*map(visit, tokens[:4]))
        for token in tokens[4:]:
            await visit(token)
        opened = begun.open.copy()
        attacks = [attack(number) for number in range(100)]
        await asyncio.gather(*attacks, *map(visit, tokens))
        assert begun.open == opened, "an idle visit was ended for a token that nothing is known of"
        await visit("a new one")


@pytest.mark.virtual_time
async def test_a_new_visitor_gets_in_beside_slow_garbage():
    begun = Begun()
    async with Visits(begun.begin) as visits:

        async def attack(number: int) -> None:
            with contextlib.suppress(Unauthorized, ServiceUnavailable):
                async with visits.of(f"garbage-{number}", ""):
                    pass

        crowd = [asyncio.create_task(attack(number)) for number in range(8)]
        await asyncio.sleep(0)
        async with asyncio.timeout(1.0), visits.of("a", ""):
            assert begun.open == [("a", "")]
        await asyncio.gather(*crowd)


@pytest.mark.virtual_time
async def test_one_token_cannot_take_every_visit():
    begun = Begun()
    async with Visits(begun.begin) as visits, contextlib.AsyncExitStack() as busy:
        for number in range(visitors.MOST_VISITS_EACH):
            await busy.enter_async_context(visits.of("a", f"n{number}"))
        with pytest.raises(ServiceUnavailable):
            await busy.enter_async_context(visits.of("a", "one-more"))
        await busy.enter_async_context(visits.of("b", ""))


@pytest.mark.virtual_time
async def test_one_visit_makes_room_for_one():
    begun = Begun()
    async with Visits(begun.begin) as visits:
        for number in range(visitors.MOST_VISITS):
            token = "a" if number < visitors.MOST_VISITS_EACH else f"t{number}"
            async with visits.of(token, f"n{number}"):
                pass
        async with visits.of("a", "one-more"):
            assert begun.open[0] == ("a", "n1")
            assert len(begun.open) == visitors.MOST_VISITS


@pytest.mark.virtual_time
async def test_a_refusal_is_not_kept():
    begun = Begun()
    begun.refuse = True
    async with Visits(begun.begin) as visits:
        for _ in range(2):
            with pytest.raises(Unauthorized):
                async with visits.of("a", ""):
                    pass
        assert begun.begun == 2
