"""The waiting page: who gets it, what it says, and that a template can do nothing but look different."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from elasti.api.defaults import MAX_PAGE_BYTES
from elasti.api.types import PageConfigMap, PageSpec, PageTemplate, WakeSpec
from elasti.api.wire import IncomingReply, WakeOutcome, WakePart
from elasti.resolver.projections import ListedEndpoint, PodName, ServiceKey
from elasti.resolver.proxy.upstream.interface import Stage, UpstreamAddress
from elasti.resolver.readiness.plan import ProbePlan
from elasti.resolver.services.page import filled, is_navigation
from elasti.resolver.services.page_source import PageSource
from elasti.resolver.services.service import ServiceDeps, WakeableService
from kubeloop.client.errors import Forbidden, Status
from kubeloop.objects.meta import SlimMeta

POD = UpstreamAddress("10.0.0.1", 80)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"
NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


class Asked:
    target, host = b"/", b"web"

    def __init__(self, fields: dict[str, str], method: str = "GET") -> None:
        self.method = method.encode()
        self.fields = fields

    def field(self, name: bytes) -> bytes | None:
        value = self.fields.get(name.decode())
        return None if value is None else value.encode()


@pytest.mark.parametrize(
    ("fields", "method", "expected"),
    [
        (NAVIGATION, "GET", True),
        (NAVIGATION | {"accept": "*/*"}, "GET", True),
        (NAVIGATION, "POST", False),
        (NAVIGATION, "HEAD", False),
        (NAVIGATION | {"sec-purpose": "prefetch"}, "GET", False),
        (NAVIGATION | {"content-length": "2"}, "GET", False),
        (NAVIGATION | {"content-length": "0"}, "GET", True),
        (NAVIGATION | {"sec-fetch-dest": "iframe"}, "GET", False),
        ({"sec-fetch-mode": "cors", "sec-fetch-dest": "empty", "accept": BROWSER}, "GET", False),
        ({"sec-fetch-mode": "navigate", "accept": BROWSER}, "GET", False),
        ({"accept": BROWSER}, "GET", True),
        ({"accept": "application/xhtml+xml"}, "GET", True),
        ({"accept": BROWSER, "x-requested-with": "XMLHttpRequest"}, "GET", False),
        ({"accept": "application/json, text/html;q=0.9"}, "GET", False),
        ({"accept": "application/json;q=0.5, text/html"}, "GET", True),
        ({"accept": "text/html;q=x"}, "GET", False),
        ({"accept": "text/html;q=0"}, "GET", False),
        ({"accept": "*/*"}, "GET", False),
        ({"accept": "text/event-stream"}, "GET", False),
        ({}, "GET", False),
    ],
)
def test_only_a_top_level_navigation_is_one(fields, method, expected):
    assert is_navigation(Asked(fields, method)) is expected


class Rig:
    """One port of a Service that sleeps, and an operator that gives one answer."""

    def __init__(self, outcome=WakeOutcome.SCALING, source=None, **page):
        self.outcome = outcome
        unused: Any = None  # with probe: Ready nothing is probed
        self.services: dict[Any, Any] = {}
        deps = ServiceDeps(
            checks=unused,
            pods=self,
            operator=self,
            durable=self,
            pages=source,
            find=self.services.get,
        )
        for name in ("web", "pg"):
            key = ServiceKey("shop", name)
            self.services[key] = WakeableService(key, deps=deps)
        self.service, self.database = self.services.values()
        self.parts: tuple[WakePart, ...] = ()
        self.wakes = 0
        spec = WakeSpec(page=PageSpec(mode="Auto", **page), probe="Ready")
        self.service.configure(wake=spec, responses=())
        self.port = self.service.port("http")
        assert self.port.page is not None
        self.page = self.port.page

    async def wake(self, key, *, count, client, wake_id):
        self.wakes += 1
        return IncomingReply(self.outcome, parts=self.parts)

    async def write(self, key):
        """The durable request."""

    async def owns(self, pod, address):
        return True

    async def plan(self, pod):
        return ProbePlan()

    async def list_pod(self, *, ready):
        self.service.publish(published=True)
        listed = ListedEndpoint(ready, PodName("shop", "web-1", "uid-1"))
        self.service.set_endpoints({"http": {POD: listed}})
        await asyncio.sleep(0.01)

    def line(self, stage=None):
        return msgspec.json.decode(self.page.line(stage))

    def shown(self):
        answer = self.page.answer()
        fields = dict(line.split(": ", 1) for line in answer.fields.decode().split("\r\n") if line)
        return answer, fields, answer.body.decode()


class Waiter:
    held_since = None
    is_http = True

    def client(self):
        return "10.1.2.3"

    def admit(self, address):
        """Go there."""

    def give_up(self, refusal):
        """No pod will come."""


@pytest.mark.virtual_time
async def test_stages_follow_the_wake_up():
    rig = Rig()
    assert rig.page.stage() is Stage.ASLEEP
    rig.port.wait(Waiter())
    assert rig.page.stage() is Stage.ASKED
    await asyncio.sleep(0.5)
    assert rig.page.stage() is Stage.PLACED
    await rig.list_pod(ready=False)
    assert rig.page.stage() is Stage.STARTING
    await rig.list_pod(ready=True)
    assert rig.line() == {"stage": "ready", "text": "Ready", "reference": "", "parts": []}
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_each_part_of_a_wake_up_has_a_row():
    rig = Rig(require_click=True)
    rig.parts = (WakePart("post<gres", "pg"), WakePart("web", "web", (0,)))
    empty = '<ul class="parts" data-elasti="parts"></ul>'
    assert empty in rig.shown()[2]
    waiter = Waiter()
    rig.port.wait(waiter)
    await asyncio.sleep(0.5)
    assert rig.line()["parts"] == [["post<gres", "starting"], ["web", "waiting"]]
    assert rig.page.stage() is Stage.ASKED, "there is nothing yet to find a place for"
    rig.database.set_endpoints({"": {POD: ListedEndpoint(True, PodName("shop", "pg", "u"))}})
    assert rig.line()["parts"] == [["post<gres", "ready"], ["web", "starting"]]
    assert rig.page.stage() is Stage.PLACED
    rows = '<li data-state="ready">post&lt;gres: ready</li><li data-state="starting">web: starting</li>'
    assert empty.replace("></", f">{rows}</") in rig.shown()[2]
    rig.port.leave(waiter)
    assert rig.line()["parts"] == [], "what sleeps has not begun to wake"
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_an_operator_that_cannot_act_for_long_is_a_failure(log_output):
    rig = Rig(WakeOutcome.UNAVAILABLE)
    rig.port.wait(Waiter())
    await asyncio.sleep(5)
    assert rig.page.stage() is not Stage.FAILED
    await asyncio.sleep(10)
    line = rig.line()
    assert line["stage"] == "failed"
    (entry,) = [entry for entry in log_output if entry["event"].startswith("target cannot start")]
    assert (entry["service"], entry["reference"]) == ("shop/web", line["reference"])
    assert entry["reason"] not in str(line)
    rig.outcome = WakeOutcome.SCALING
    await asyncio.sleep(100)
    assert rig.page.stage() is Stage.PLACED
    await rig.service.aclose()


async def fail_once(rig):
    """A client waits for a pod in vain; the open page hears of it."""
    waiter = Waiter()
    rig.port.wait(waiter)
    await asyncio.sleep(0.5)
    assert rig.line(Stage.FAILED)["reference"]
    assert rig.page.stage() is Stage.FAILED
    return waiter


@pytest.mark.virtual_time
async def test_a_failure_is_forgotten_once_a_pod_serves():
    rig = Rig(require_click=True)
    waiter = await fail_once(rig)
    await rig.list_pod(ready=True)
    rig.service.set_endpoints({})
    rig.port.leave(waiter)
    assert rig.page.stage() is Stage.ASLEEP
    assert rig.page.after == 0
    _, fields, body = rig.shown()
    assert fields["X-Elasti-State"] == "asleep"
    assert 'data-click="true"' in body
    # Nor does it come back with the next wake-up.
    rig.port.wait(Waiter())
    assert rig.page.stage() is Stage.PLACED
    assert rig.line()["reference"] == ""
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_a_failure_does_not_wake_without_the_click():
    rig = Rig(require_click=True)
    waiter = await fail_once(rig)
    rig.port.leave(waiter)
    assert rig.page.after == 0
    assert 'data-click="true"' in rig.shown()[2]
    # Those who click see at once that it failed a moment ago.
    rig.port.wait(Waiter())
    assert rig.page.stage() is Stage.FAILED
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_a_pod_that_failed_long_ago_is_read_again_before_it_counts():
    pods: Any = Pods("CrashLoopBackOff")
    rig = Rig(source=PageSource(pods))
    rig.port.wait(Waiter())
    await rig.list_pod(ready=False)
    rig.page.stage()
    await asyncio.sleep(0.1)
    assert rig.page.stage() is Stage.FAILED
    await rig.list_pod(ready=True)
    pods.reason = ""
    await asyncio.sleep(120)
    await rig.list_pod(ready=False)
    rig.port.wait(Waiter())
    assert rig.page.stage() is Stage.STARTING
    await asyncio.sleep(0.1)
    assert rig.page.stage() is Stage.STARTING
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_a_sleeping_page_says_how_long_the_last_start_took():
    rig = Rig(title="Shop", require_click=True)
    assert rig.line()["text"] == "Shop is asleep to save resources."
    rig.port.wait(Waiter())
    await asyncio.sleep(5)
    await rig.list_pod(ready=True)
    rig.service.set_endpoints({})
    text = "Shop is asleep to save resources. It takes about 5 s to start."
    assert rig.line()["text"] == text
    assert text in rig.shown()[2]
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_no_page_may_frame_it():
    rig = Rig()
    assert "frame-ancestors 'none'" in rig.shown()[1]["Content-Security-Policy"]
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_no_cache_and_no_search_engine_keeps_the_page():
    rig = Rig(title="Shop")
    answer, fields, body = rig.shown()
    assert answer.status == 503
    assert fields["Cache-Control"] == "no-store"
    assert fields["X-Robots-Tag"] == "noindex"
    assert fields["Retry-After"] == "5"
    assert fields["Vary"] == "Sec-Fetch-Mode, Sec-Fetch-Dest, Accept"
    assert "http:" not in body
    assert "https:" not in body
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_every_page_has_a_nonce_of_its_own_for_one_script():
    rig = Rig()
    nonces = set()
    for _ in range(2):
        _, fields, body = rig.shown()
        (nonce,) = re.findall(r"script-src 'nonce-([^']+)'", fields["Content-Security-Policy"])
        assert re.findall(r'<script nonce="([^"]+)"', body) == [nonce]
        assert body.count("<script") == 1
        nonces.add(nonce)
    assert len(nonces) == 2
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_a_click_is_asked_for_only_while_nothing_wakes_it():
    rig = Rig(require_click=True, after="3s")
    assert rig.page.after == 0
    _, _, body = rig.shown()
    assert 'data-click="true"' in body
    assert 'http-equiv="refresh"' not in body
    rig.port.wait(Waiter())
    assert rig.page.after == 3
    assert 'data-click="false"' in rig.shown()[2]
    await rig.service.aclose()


class Maps:
    """A client that has ConfigMaps."""

    def __init__(self, data=None, error=None):
        self.data, self.error, self.reads = data, error, 0

    def resource(self, path, kind):
        self.kind = kind
        return self

    async def get(self, name, *, namespace, timeout):
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.kind(SlimMeta(), self.data)


class Pods(Maps):
    """A client that has one pod, which waits for the reason given."""

    def __init__(self, reason):
        super().__init__()
        self.reason = reason

    async def get(self, name, *, namespace, timeout):
        waiting = {"waiting": {"reason": self.reason}} if self.reason else {}
        status = {"containerStatuses": [{"state": waiting}]}
        return msgspec.convert({"metadata": {}, "status": status}, self.kind)


def branded(maps, **page):
    template = PageTemplate(PageConfigMap("elasti-page", "index.html"))
    return Rig(source=PageSource(maps), template=template, **page)


@pytest.mark.virtual_time
async def test_a_template_has_its_placeholders_filled_and_no_nonce():
    hostile = "<h1>{{title}}</h1><b>{{nonce}}</b><script>alert(1)</script><script src='"
    rig = branded(Maps({"index.html": hostile}), title="<img src=x onerror=alert(2)>")
    assert rig.page.offers(Asked(NAVIGATION))
    await asyncio.sleep(0.1)
    _, fields, body = rig.shown()
    policy = fields["Content-Security-Policy"]
    (nonce,) = re.findall(r"script-src 'nonce-([^']+)';", policy)
    ours, _, theirs = body.partition("</script>")
    assert nonce in ours
    assert nonce not in theirs
    assert "<h1>&lt;img src=x onerror=alert(2)&gt;</h1><b>{{nonce}}</b>" in theirs
    assert "form-action 'none'" in policy
    assert "base-uri 'none'" in policy
    assert "default-src 'none'" in policy
    await rig.service.aclose()


FORBIDDEN = Forbidden(Status(code=403, reason="Forbidden", message="may not"))


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "maps",
    [Maps({"other": "x"}), Maps(None), Maps({"index.html": "x" * (MAX_PAGE_BYTES + 1)}), Maps(error=FORBIDDEN)],
    ids=["no key", "empty", "too large", "forbidden"],
)  # fmt: skip
async def test_a_template_that_cannot_be_used_gives_the_built_in_page(maps):
    rig = branded(maps)
    rig.page.offers(Asked(NAVIGATION))
    await asyncio.sleep(0.1)
    assert maps.reads == 1
    assert 'data-elasti="stage"' in rig.shown()[2]
    await rig.service.aclose()


@pytest.mark.virtual_time
async def test_a_template_is_read_again_while_pages_are_shown():
    maps = Maps({"index.html": "one"})
    rig = branded(maps)
    for _ in range(20):
        rig.page.offers(Asked(NAVIGATION))
        await asyncio.sleep(1)
    assert maps.reads == 4
    await rig.service.aclose()


def test_unknown_placeholders_stay():
    assert (
        filled("{{title}} {{ title }} {{x}}", {"title": "a&b"}, {}) == "a&amp;b {{ title }} {{x}}"
    )
