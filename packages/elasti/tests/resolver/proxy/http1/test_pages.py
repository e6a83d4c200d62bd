"""A navigation that gets the waiting page was sent to no pod; an open page waits as a request does."""

from __future__ import annotations

import json

from tests.resolver.proxy.fakes import POD, ConnectionRig

from elasti.resolver.proxy.upstream.interface import LocalAnswer, Refusal, Stage

NAVIGATION = b"GET /cart HTTP/1.1\r\nHost: a\r\nSec-Fetch-Mode: navigate\r\n\r\n"
FETCH = b"GET /cart HTTP/1.1\r\nHost: a\r\nSec-Fetch-Mode: cors\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
WATCH = b"GET /cart HTTP/1.1\r\nHost: a\r\nX-Elasti-Wait: 1\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class FakePage:
    after = 3.0

    def __init__(self) -> None:
        self.stage = Stage.ASKED

    def offers(self, request) -> bool:
        return request.field(b"sec-fetch-mode") == b"navigate"

    def answer(self) -> LocalAnswer:
        return LocalAnswer(503, b"<p>", b"Content-Type: text/html\r\nCache-Control: no-store\r\n")

    def line(self, stage: Stage | None = None) -> bytes:
        return json.dumps({"stage": stage or self.stage}).encode() + b"\n"


class PageRig(ConnectionRig):
    """A port without a pod, whose browsers get a page after three seconds; time is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.upstream.pods = []
        self.page = self.upstream.page = FakePage()
        self.time = 100.0
        self.handler.now = lambda: self.time

    def pass_seconds(self, count: int) -> None:
        for _ in range(count):
            self.time += 1
            self.path.sweeper.tick += 1
            self.client.protocol.sweep(self.path.sweeper.tick)

    def taken(self) -> bytes:
        written, self.client.written = self.client.written, b""
        return bytes(written)


def test_a_navigation_is_held_and_then_gets_the_page():
    rig = PageRig()
    rig.client.feed(NAVIGATION)
    rig.pass_seconds(2)
    assert rig.taken() == b""
    assert len(rig.upstream.waiting) == 1
    rig.pass_seconds(1)
    answer = rig.taken()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b"Cache-Control: no-store\r\nContent-Length: 3\r\n\r\n<p>")
    assert rig.upstream.waiting == []
    assert rig.handler.statistics.holds["page"].count == 1
    assert "5xx" not in rig.handler.statistics.holds
    rig.upstream.pods = [POD]
    rig.client.feed(NAVIGATION)
    (pod,) = rig.pods
    assert pod.written.count(b"GET /cart") == 1
    rig.end()


def test_every_other_request_is_held_on():
    rig = PageRig()
    rig.client.feed(FETCH)
    rig.pass_seconds(60)
    assert rig.taken() == b""
    rig.upstream.release(POD)
    assert len(rig.pods) == 1
    rig.end()


def test_without_a_page_a_navigation_is_held_on():
    rig = PageRig()
    rig.upstream.page = None
    rig.client.feed(NAVIGATION)
    rig.pass_seconds(60)
    assert len(rig.upstream.waiting) == 1
    rig.end()


def test_a_navigation_that_a_pod_may_have_seen_gets_no_page():
    rig = PageRig()
    rig.upstream.pods = [POD]
    rig.client.feed(NAVIGATION)
    rig.upstream.pods = []
    rig.pods[0].lose()
    assert len(rig.upstream.waiting) == 1
    rig.pass_seconds(60)
    assert rig.taken() == b""
    rig.client.lose()


def test_where_too_many_wait_a_navigation_gets_the_page_and_others_a_refusal():
    rig = PageRig()
    rig.upstream.max_held = 0
    rig.client.feed(NAVIGATION)
    assert b"<p>" in rig.taken()
    rig.client.feed(FETCH)
    assert b"too many requests are waiting" in rig.taken()
    rig.end()


def test_a_page_that_asks_for_a_click_comes_at_once_and_wakes_nothing():
    rig = PageRig()
    rig.page.after = 0.0
    rig.client.feed(NAVIGATION)
    assert b"<p>" in rig.taken()
    assert rig.upstream.waiting == []
    rig.end()


def test_a_request_after_a_page_is_held_although_the_page_came_at_once():
    rig = PageRig()
    rig.page.after = 0.0
    rig.client.feed(NAVIGATION)
    rig.taken()
    rig.page.after = 3.0
    rig.client.feed(POST)
    rig.pass_seconds(60)
    assert rig.taken() == b""
    rig.upstream.release(POD)
    assert rig.pods[0].written.endswith(b"body")
    rig.end()


def test_many_pipelined_navigations_end_with_the_first_page():
    rig = PageRig()
    rig.page.after = 0.0
    rig.client.feed(NAVIGATION * 1000)
    answer = rig.taken()
    assert answer.count(b"<p>") == 1
    assert b"Connection: close\r\n" in answer
    rig.end()


def test_an_open_page_waits_in_the_queue_and_receives_stages():
    rig = PageRig()
    rig.client.feed(WATCH)
    head, _, first = rig.taken().partition(b"\r\n\r\n")
    assert b"X-Elasti-State: waiting" in head
    assert b"no-store" in head
    assert json.loads(first) == {"stage": "asked"}
    assert len(rig.upstream.waiting) == 1
    assert rig.handler.statistics.in_use == 1
    rig.pass_seconds(1)
    assert rig.taken() == b""
    rig.page.stage = Stage.STARTING
    rig.pass_seconds(1)
    assert json.loads(rig.taken()) == {"stage": "starting"}
    rig.pass_seconds(15)
    assert rig.taken() == b"\n"
    rig.upstream.release(POD)
    assert json.loads(rig.taken()) == {"stage": "ready"}
    assert rig.pods == []
    assert rig.client.closing
    rig.end()


def test_an_open_page_never_reaches_a_pod_that_serves():
    rig = PageRig()
    rig.upstream.pods = [POD]
    rig.client.feed(WATCH)
    assert rig.pods == []
    rig.upstream.release(POD)
    assert rig.taken().endswith(b'{"stage": "ready"}\n')
    rig.end()


def test_where_pages_are_off_their_field_means_nothing():
    rig = PageRig()
    rig.upstream.page = None
    rig.upstream.pods = [POD]
    rig.client.feed(WATCH)
    assert b"X-Elasti-Wait: 1" in rig.pods[0].written
    rig.end()


def test_an_open_page_learns_that_there_is_no_place_and_that_no_pod_came():
    for refusal, stage in (
        (Refusal.OVERFLOW, "busy"),
        (Refusal.TIMEOUT, "failed"),
        (Refusal.GONE, "ready"),
    ):
        rig = PageRig()
        rig.client.feed(WATCH)
        rig.taken()
        rig.client.protocol.give_up(refusal)
        assert json.loads(rig.taken()) == {"stage": stage}
        rig.end()


def test_a_resolver_that_steps_aside_lets_open_pages_ask_again():
    rig = PageRig()
    rig.client.feed(WATCH)
    rig.taken()
    rig.upstream.stepping_aside = True
    rig.pass_seconds(1)
    assert rig.taken() == b""
    assert rig.client.closing
    rig.end()


def test_a_tab_that_is_closed_leaves_the_queue():
    rig = PageRig()
    rig.client.feed(WATCH)
    assert rig.client.protocol.eof_received() is False
    rig.client.lose()
    assert rig.upstream.waiting == []
    rig.end()
