"""The turns of one exchange that sockets cannot be made to take on demand."""

from __future__ import annotations

import pytest
from tests.resolver.proxy.fakes import ConnectionRig

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"


def test_a_pod_that_answers_while_it_is_slow_to_read_is_not_used_again():
    rig = ConnectionRig()
    rig.client.feed(POST)
    (pod,) = rig.pods
    pod.protocol.pause_writing()
    assert not rig.client.reading
    pod.feed(OK)
    assert rig.client.written == OK
    assert pod.closing
    assert rig.client.reading
    rig.client.feed(GET)
    assert len(rig.pods) == 2
    rig.end()


def test_a_slow_pod_stops_the_client_and_lets_it_go_on():
    rig = ConnectionRig()
    rig.client.feed(POST[:-3])
    (pod,) = rig.pods
    pod.protocol.pause_writing()
    assert not rig.client.reading
    pod.protocol.resume_writing()
    assert rig.client.reading
    rig.end()


def test_a_slow_client_stops_the_pod_and_lets_it_go_on():
    rig = ConnectionRig()
    rig.client.feed(GET)
    (pod,) = rig.pods
    pod.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    rig.client.protocol.pause_writing()
    assert not pod.reading
    rig.client.protocol.resume_writing()
    assert pod.reading
    rig.end()


def test_a_connection_to_a_pod_goes_back_reading_even_where_its_client_was_slow():
    rig = ConnectionRig()
    rig.client.feed(GET)
    (pod,) = rig.pods
    pod.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok")
    rig.client.protocol.pause_writing()
    pod.feed(b"ok")
    assert pod.reading
    rig.end()


def test_no_request_is_begun_for_a_client_that_does_not_read():
    rig = ConnectionRig()
    rig.client.feed(GET)
    (pod,) = rig.pods
    rig.client.protocol.pause_writing()
    pod.feed(OK)
    rig.client.feed(GET)
    assert rig.handler.statistics.requests == 1
    rig.client.protocol.resume_writing()
    assert rig.handler.statistics.requests == 2
    rig.end()


def test_requests_pipelined_before_the_client_finished_sending_are_answered():
    rig = ConnectionRig()
    rig.client.feed(GET * 3)
    assert rig.client.protocol.eof_received()
    for _ in range(3):
        rig.pods[-1].feed(OK)
    assert rig.client.written.count(OK) == 3
    assert rig.client.closing
    rig.end()


@pytest.mark.parametrize("ending", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b""])
def test_thousands_of_interim_responses_in_one_piece_pass(ending):
    rig = ConnectionRig()
    rig.client.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    (pod,) = rig.pods
    wire = b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + ending
    pod.feed(wire)
    assert rig.client.written == wire
    rig.end()
