"""A dashboard of as many ElastiServices as a test wants, without a cluster: the real server and feed, fed by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec

from elasti.api.types import ElastiService
from elasti.dashboard.feed import Feed
from elasti.dashboard.live import HeldCounts
from elasti.dashboard.server import DashboardServer
from kubeloop.informer import Added
from kubeloop.objects.meta import JsonObject, Key
from kubeloop.testing.fake_client import FakeClient
from tests.browser.conftest import Page

TEAMS = ("checkout", "platform", "data", "search")


class HandFed(Feed):
    """A feed that has what a test puts into it."""

    def __init__(self) -> None:
        super().__init__(FakeClient(), "", "elasti", asks_pods=False)

    def put(self, key: str, status: JsonObject, **labels: str) -> None:
        """Have an ElastiService with this status and labels; one whose status has `observed` observes."""
        namespace, name = key.split("/")
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        spec: JsonObject = {"service": name, "scaleTargetRef": target, "minTargetReplicas": 1}
        if "observed" in status:
            spec["policy"] = "Observe"
        meta = {"name": name, "namespace": namespace, "labels": labels}
        es = msgspec.convert({"metadata": meta, "spec": spec, "status": status}, ElastiService)
        self._on_event(Added(Key(key), es, initial=True))

    def hold(self, **counts: int) -> None:
        """Let the Services of namespace shop hold so many connections; the others hold none."""
        self.held = HeldCounts({("shop", name): count for name, count in counts.items()})
        self.refresh("")


@contextlib.asynccontextmanager
async def serving(page: Page, services: dict[str, JsonObject]) -> AsyncIterator[HandFed]:
    """Have the page open on these; what the browser complains about fails the test."""
    said: list[str] = []
    page.on("console", lambda text: said.append(text.text) if text.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    feed = HandFed()
    for number, (key, status) in enumerate(services.items()):
        feed.put(key, status, team=TEAMS[number % len(TEAMS)])
    feed.hold()
    server = DashboardServer(
        FakeClient(), feed, elasti_namespace="elasti", place="demo, all namespaces"
    )
    await server.open()
    try:
        await page.goto(server.url)
        await page.locator("body[data-ready]").wait_for()
        yield feed
        assert said == [], said
    finally:
        await page.goto("about:blank")
        await server.close()
