"""The turns of one exchange that sockets cannot be made to take on demand."""

from __future__ import annotations

import pytest
from tests.resolver.proxy.fakes import World

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"


def test_a_pod_that_answers_while_it_is_slow_to_read_is_not_used_again():
    world = World()
    world.client.feed(POST)
    (pod,) = world.pods
    pod.protocol.pause_writing()
    assert not world.client.reading
    pod.feed(OK)
    assert world.client.written == OK
    assert pod.closing
    assert world.client.reading
    world.client.feed(GET)
    assert len(world.pods) == 2
    world.end()


def test_a_slow_pod_stops_the_client_and_lets_it_go_on():
    world = World()
    world.client.feed(POST[:-3])
    (pod,) = world.pods
    pod.protocol.pause_writing()
    assert not world.client.reading
    pod.protocol.resume_writing()
    assert world.client.reading
    world.end()


def test_a_slow_client_stops_the_pod_and_lets_it_go_on():
    world = World()
    world.client.feed(GET)
    (pod,) = world.pods
    pod.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    world.client.protocol.pause_writing()
    assert not pod.reading
    world.client.protocol.resume_writing()
    assert pod.reading
    world.end()


def test_a_connection_to_a_pod_goes_back_reading_even_where_its_client_was_slow():
    world = World()
    world.client.feed(GET)
    (pod,) = world.pods
    pod.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok")
    world.client.protocol.pause_writing()
    pod.feed(b"ok")
    assert pod.reading
    world.end()


def test_no_request_is_begun_for_a_client_that_does_not_read():
    world = World()
    world.client.feed(GET)
    (pod,) = world.pods
    world.client.protocol.pause_writing()
    pod.feed(OK)
    world.client.feed(GET)
    assert world.handler.statistics.requests == 1
    world.client.protocol.resume_writing()
    assert world.handler.statistics.requests == 2
    world.end()


def test_what_was_pipelined_before_the_client_sent_no_more_is_answered():
    world = World()
    world.client.feed(GET * 3)
    assert world.client.protocol.eof_received()
    for _ in range(3):
        world.pods[-1].feed(OK)
    assert world.client.written.count(OK) == 3
    assert world.client.closing
    world.end()


@pytest.mark.parametrize("ending", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b""])
def test_thousands_of_interim_responses_in_one_piece_pass(ending):
    world = World()
    world.client.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    (pod,) = world.pods
    wire = b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + ending
    pod.feed(wire)
    assert world.client.written == wire
    world.end()
