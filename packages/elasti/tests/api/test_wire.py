"""What both sides of the wire agree on."""

from __future__ import annotations

import h11
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.wire import (
    PROBE_HEADER,
    PROBE_LIMIT,
    PROBE_PATH,
    PROBE_PREFIX,
    ActivityReport,
    IncomingRequest,
    ProbeIdentity,
    WakeOutcome,
    could_be_probe,
    is_probe,
    probe_answer,
    probe_request,
    read_probe_answer,
)

LABEL = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(LABEL, LABEL)
def test_a_probe_is_plain_http_that_any_parser_reads(namespace, service):
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(probe_request(namespace, service))
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    assert event.target == PROBE_PATH.encode()
    headers = dict(event.headers)
    assert headers[PROBE_HEADER.lower().encode()] == f"{namespace}/{service}".encode()
    assert isinstance(connection.next_event(), h11.EndOfMessage)


@given(LABEL, LABEL)
def test_a_probe_is_known_by_its_first_bytes(namespace, service):
    request = probe_request(namespace, service)
    assert len(request) <= PROBE_LIMIT
    assert is_probe(request)
    for length in range(len(request)):
        assert could_be_probe(request[:length])
        assert is_probe(request[:length]) is (length >= len(PROBE_PREFIX))


@given(st.binary(max_size=64))
def test_other_first_bytes_are_not_a_probe(data):
    if not data.startswith(PROBE_PREFIX):
        assert not is_probe(data)


@given(LABEL, LABEL)
def test_an_answer_says_whose_port_it_is(namespace, service):
    identity = ProbeIdentity(namespace, service)
    assert read_probe_answer(probe_answer(identity)) == identity


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 404 Not Found\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\n\r\n{"namespace":1}',
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b'HTTP/1.1 200 OK\r\n\r\n{"namespace":"\xff","service":"web"}',
        b'HTTP/1.1 200 OK\r\n\r\n{"else":' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
)
def test_an_unreadable_answer_is_ignored(data):
    assert read_probe_answer(data) is None


def test_kubeelastis_message_is_read_unchanged():
    message = b'{"count":1,"svc":"web","namespace":"shop"}'
    assert msgspec.json.decode(message, type=IncomingRequest) == IncomingRequest("web", "shop", 1)


def test_every_outcome_has_a_status():
    assert {outcome: outcome.code for outcome in WakeOutcome} == {
        WakeOutcome.SCALING: 202,
        WakeOutcome.ALREADY_UP: 202,
        WakeOutcome.WAITS: 202,
        WakeOutcome.NOT_FOUND: 404,
        WakeOutcome.UNAVAILABLE: 503,
    }


def test_a_report_is_camel_case():
    report = ActivityReport(held=1, open=2, last_arrival_age=0.5)
    assert msgspec.json.encode(report) == b'{"held":1,"open":2,"lastArrivalAge":0.5}'
