"""First messages of protocols whose clients speak first."""

from __future__ import annotations

import pytest

from elasti.resolver.proxy.first_message import is_first_message

STARTUP = b"\x00\x00\x00\x29\x00\x03\x00\x00user\x00postgres\x00"
SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
TLS = b"\x16\x03\x01\x02\x00\x01"
REDIS = b"*1\r\n$4\r\nPING\r\n"


@pytest.mark.parametrize("message", [STARTUP, SSL_REQUEST, TLS, REDIS, b"PING\r\n", b"ping\n"])
def test_a_message_is_known_and_none_of_its_beginnings_is_refused(message):
    assert is_first_message(message) is True
    known = [is_first_message(message[:size]) for size in range(len(message))]
    assert False not in known
    assert known[0] is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.0\r\n", b"\x00\x00scan\r\n", b"\r\n\r\n", b"HELP\r\n", b"*x", b"\x16\x02",
        b"\x00\x00\x00\x04\x00\x03\x00\x00", b"\x00\x00\xff\xff\x00\x03\x00\x00", b"\x01\x00", b"*0\r\n",
    ],
)  # fmt: skip
def test_other_bytes_are_not_a_message(data):
    assert is_first_message(data) is False


def test_a_proxy_header_may_come_in_pieces():
    assert {is_first_message(b"PROXY "[:size]) for size in range(6)} == {None}


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 5432\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12),
    ],
)
def test_a_message_is_known_behind_a_proxy_header(header):
    assert is_first_message(header) is None
    assert is_first_message(header + STARTUP) is True
    assert is_first_message(header + b"GET / HTTP/1.0\r\n") is False
