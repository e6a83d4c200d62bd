from __future__ import annotations

import pytest

from elasti.resolver.proxy.http1.heads import parse_request, parse_response
from elasti.resolver.proxy.http1.writer import HeadForwarder, forwarder_for, response_head


def sent(fields: str = "", line: str = "GET /a?b HTTP/1.1", peer: str = "192.0.2.1") -> list[str]:
    head = parse_request(f"{line}\r\nHost: web:80\r\n{fields}\r\n".encode())
    assert head is not None
    wire = HeadForwarder(peer).request_head(head).decode()
    assert wire.endswith("\r\n\r\n")
    return wire.split("\r\n")[:-2]


def test_the_pod_sees_the_request_line_host_and_client_address():
    assert sent("Accept: */*\r\n") == [
        "GET /a?b HTTP/1.1",
        "Host: web:80",
        "Accept: */*",
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: web:80",
        'Forwarded: for=192.0.2.1;host="web:80";proto=http',
    ]


def test_the_address_is_appended_to_the_line_of_a_proxy_before_us():
    """Many servers read the first line only: a second one would hide the address that is certain."""
    lines = sent(
        "X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https\r\nx-forwarded-for:10.9.9.9 \r\n"
        "Forwarded: for=198.51.100.7\r\n"
    )
    assert [line for line in lines if line.lower().startswith("x-forwarded-for")] == [
        "X-Forwarded-For: 198.51.100.7, 10.9.9.9, 192.0.2.1"
    ]
    assert [line for line in lines if line.startswith("Forwarded")] == [
        'Forwarded: for=198.51.100.7, for=192.0.2.1;host="web:80";proto=http'
    ]
    assert [line for line in lines if "Proto" in line] == ["X-Forwarded-Proto: https"]


@pytest.mark.parametrize("name", ["X_Forwarded_For", "x-forwarded_for", "X_Forwarded-Proto"])
def test_an_underscore_does_not_pass_for_a_dash(name):
    lines = sent(f"{name}: 10.9.9.9\r\n")
    assert not [line for line in lines if "10.9.9.9" in line]
    assert "X-Forwarded-For: 192.0.2.1" in lines
    assert "X-Forwarded-Proto: http" in lines


def test_a_peer_of_ipv4_is_shown_as_one_also_by_a_socket_for_both_families():
    assert HeadForwarder("::ffff:192.0.2.1")._address == b"192.0.2.1"
    assert HeadForwarder("::ffff:1:2")._address == b"::ffff:1:2"


def test_an_ipv6_peer_is_quoted_where_the_grammar_asks_for_it():
    lines = sent(peer="2001:db8::1")
    assert "X-Forwarded-For: 2001:db8::1" in lines
    assert 'Forwarded: for="[2001:db8::1]";host="web:80";proto=http' in lines


@pytest.mark.parametrize(
    ("fields", "gone"),
    [
        ("Connection: keep-alive\r\nKeep-Alive: 5\r\n", "Keep-Alive"),
        ("Connection: X-Private\r\nX-Private: 1\r\n", "X-Private"),
        ("Proxy-Connection: keep-alive\r\n", "Proxy-Connection"),
        ("TE: gzip\r\n", "TE"),
        ("Upgrade: h2c\r\n", "Upgrade"),
    ],
)
def test_hop_by_hop_fields_stop_here(fields, gone):
    assert not [line for line in sent(fields) if line.startswith(gone + ":")]


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Transfer-Encoding"])
def test_connection_cannot_talk_a_framing_field_away(name):
    value = {"Host": "", "Content-Length": "Content-Length: 3\r\n"}.get(
        name, "Transfer-Encoding: chunked\r\n"
    )
    lines = sent(f"Connection: {name}\r\n{value}", "POST / HTTP/1.1")
    assert [line for line in lines if line.startswith(name + ":")]


def test_an_upgrade_goes_through():
    lines = sent("Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n")
    assert lines[-2:] == ["Connection: Upgrade", "Upgrade: websocket"]


def test_a_request_for_trailers_goes_through():
    assert sent("Connection: TE\r\nTE: trailers\r\n")[-2:] == ["Connection: TE", "TE: trailers"]


def answered(fields: str, **options: object) -> bytes:
    raw = f"HTTP/1.1 200 OK\r\n{fields}\r\n".encode()
    head = parse_response(raw, b"GET")
    assert head is not None
    choices: dict[str, object] = {"close": False, "keep_alive_1_0": False, "extra": b"", **options}
    return response_head(head, **choices)  # type: ignore[arg-type]  # built from a table


def test_a_plain_response_passes_untouched():
    fields = "Content-Length: 3\r\nSet-Cookie: a=b\r\n"
    assert answered(fields) == f"HTTP/1.1 200 OK\r\n{fields}\r\n".encode()


def test_a_closing_connection_is_announced():
    assert answered("Content-Length: 3\r\n", close=True).endswith(b"Connection: close\r\n\r\n")


def test_a_held_response_says_so():
    wire = answered("Content-Length: 3\r\n", extra=b"X-Elasti-Cold-Start: 1\r\n")
    assert wire == b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Elasti-Cold-Start: 1\r\n\r\n"


def test_the_pods_own_hop_by_hop_fields_stop_here():
    wire = answered("Connection: close, X-A\r\nX-A: 1\r\nKeep-Alive: 5\r\nContent-Length: 3\r\n")
    assert wire == b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"


def test_connections_of_a_client_share_its_lines_but_no_host_of_any_length():
    shared = forwarder_for("192.0.2.7")
    assert forwarder_for("192.0.2.7") is shared
    for host in (b"web", b"h" * 60_000, b"web", b"other"):
        head = parse_request(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
        assert head is not None
        assert b"X-Forwarded-Host: %b\r\n" % host in shared.request_head(head)
    assert len(shared._lines) < 1024
