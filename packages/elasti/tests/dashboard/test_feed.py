"""What a page is told of ElastiServices as they change."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import msgspec
import pytest

from elasti.api.types import (
    ElastiService,
    ElastiServiceSpec,
    ScaleTargetRef,
    SleepRecord,
    StatusCondition,
)
from elasti.api.types import ElastiServiceStatus as Status
from elasti.dashboard.feed import Feed, Listener
from elasti.dashboard.live import HeldCounts
from kubeloop.informer import Added, Deleted, Updated
from kubeloop.objects.meta import Key, ObjectMeta

pytestmark = pytest.mark.virtual_time

READY = StatusCondition("Ready", "True", "Valid")


class NoInformer:
    """A cluster that says nothing by itself."""

    def add_handler(self, **_handlers: Any) -> None: ...

    def set_error_handler(self, _handler: Any) -> None: ...


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Feed:
    monkeypatch.setattr(
        "elasti.dashboard.feed.SharedInformerFactory.informer", lambda *_a, **_o: NoInformer()
    )
    client: Any = None
    return Feed(client, "", "elasti")


def service(name: str, **status: Any) -> ElastiService:
    spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", "Deployment", name), name)
    status = {"conditions": (READY,), **status}
    return ElastiService(spec, ObjectMeta(name=name, namespace="shop"), Status(**status))


async def message(listener: Listener) -> Any:
    return json.loads(await listener.next())


async def test_a_listener_gets_everything_and_then_what_changes(feed: Feed):
    web, mail = service("web", state="Serve"), service("mail", state="Proxy")
    for es in (web, mail):
        feed._on_event(Added(Key(f"shop/{es.metadata.name}"), es, initial=True))
    with feed.listening() as listener:
        first = await message(listener)
        assert first["all"] is True
        assert {row["key"] for row in first["rows"]} == {"shop/web", "shop/mail"}
        # What changes twice before it is taken is told once, as it is by then.
        for state in ("Engaging", "Proxy"):
            new = msgspec.structs.replace(web, status=Status(conditions=(READY,), state=state))
            feed._on_event(Updated(Key("shop/web"), web, new))
        feed._on_event(Deleted(Key("shop/mail"), mail))
        news = await message(listener)
        assert [row["state"] for row in news["rows"]] == ["asleep"]
        assert news["gone"] == ["shop/mail"]
        assert news["own"] is None


async def test_wakes_today_begin_again_at_midnight(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    evening = dt.datetime(2030, 1, 8, 23, 50, tzinfo=dt.UTC)
    now = evening + dt.timedelta(minutes=5)
    monkeypatch.setattr("elasti.dashboard.feed.local_time", lambda: now)
    woken = SleepRecord("2030-01-08T20:00:00Z", "2030-01-08T23:50:00Z", "Request", 1.0)
    feed._on_event(
        Added(Key("shop/web"), service("web", state="Serve", recent=(woken,)), initial=True)
    )
    with feed.listening() as listener:
        assert (await message(listener))["rows"][0]["wakesToday"] == "1"
        now = evening + dt.timedelta(minutes=15)
        feed.refresh("")
        assert (await message(listener))["rows"][0]["wakesToday"] == "0"


async def test_held_connections_and_a_broken_watch_are_shown_and_end(feed: Feed):
    feed._on_event(Added(Key("shop/web"), service("web", state="Proxy"), initial=True))
    with feed.listening() as listener:
        await message(listener)
        feed.held = HeldCounts({("shop", "web"): 4})
        feed.refresh("")
        assert (await message(listener))["rows"][0]["held"] == 4
        feed.refresh("connection refused")
        assert "connection refused" in (await message(listener))["problem"]
        feed.refresh("")
        assert (await message(listener))["problem"] == ""
