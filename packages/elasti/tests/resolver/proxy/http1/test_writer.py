from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.resolver.proxy.http1 import heads as heads_module
from elasti.resolver.proxy.http1.heads import (
    Http1RequestHead,
    ProxiedRequestHead,
    parse_request,
    parse_response,
)
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


def careful(wire: bytes) -> Http1RequestHead:
    """Read a head without the short ways."""
    match = heads_module._REQUEST.match(wire)
    assert match is not None
    head = Http1RequestHead(match)
    found = heads_module._MATTERS.findall(wire, match.end(3), match.end())
    heads_module._read_request(head, heads_module._collect(found))
    return head


fields_of_an_ingress = st.lists(
    st.builds(
        "{}:{}{}{}\r\n".format,
        st.sampled_from(
            [
                *("X-Forwarded-For", "x-forwarded-for", "X-FORWARDED-PROTO", "X-Forwarded-Host"),
                *("X-Forwarded-Port", "X-Request-ID", "Accept", "X-Forwarded-Fo", "X-Real-IP"),
            ]
        ),
        st.sampled_from(["", " ", " \t "]),
        st.sampled_from(["a", "198.51.100.7, 10.0.0.1", "https", "", "x y"]),
        st.sampled_from(["", " ", "\t"]),
    ),
    max_size=6,
).map("".join)


@given(fields_of_an_ingress, st.sampled_from(["192.0.2.1", "2001:db8::1"]))
def test_the_short_way_of_an_ingress_sends_what_the_careful_one_does(fields, peer):
    wire = f"GET /a HTTP/1.1\r\nHost: web\r\n{fields}\r\n".encode()
    short = parse_request(wire)
    assert short is not None
    forwarder = HeadForwarder(peer)
    sent_lines, expected = (
        sorted(_squeezed(forwarder.request_head(head))) for head in (short, careful(wire))
    )
    assert sent_lines == expected


def _squeezed(wire: bytes) -> list[bytes]:
    """Lines without the case of their names and the blanks around their values."""
    lines = (line.partition(b":") for line in wire.split(b"\r\n"))
    return [name.lower() + colon + value.strip() for name, colon, value in lines]


def test_an_ingress_takes_the_short_way():
    wire = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1\r\nX-Forwarded-Proto: https\r\n\r\n"
    # Older versions match possessive groups wrongly, and every head takes the careful way.
    short = ProxiedRequestHead if sys.version_info >= (3, 11, 5) else Http1RequestHead
    assert type(parse_request(wire)) is short
    repeated = wire.replace(b"\r\n\r\n", b"\r\nX-Forwarded-For: 2\r\n\r\n")
    assert type(parse_request(repeated)) is Http1RequestHead


def test_blanks_in_a_field_of_an_ingress_are_read_in_linear_time():
    wire = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For:%b\r\n\r\n" % (b" " * 60_000)
    began = time.process_time()
    parse_request(wire)
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    "name",
    [
        *("X_Forwarded_For", "x-forwarded_for", "X_Forwarded-Proto", "X_Forwarded_Port"),
        *("Content_Length", "Transfer_Encoding", "Keep_Alive", "Proxy_Connection"),
        *("X_Real_IP", "X-Real_Ip", "X_Client_IP", "True_Client-IP", "CF_Connecting_IP"),
        *("Remote_User", "X_Remote_Group", "X_Auth_Request_Email", "X_Ssl-Client_Verify"),
    ],
)
@pytest.mark.parametrize("line", ["GET /a?b HTTP/1.1", "POST / HTTP/1.0"])
def test_an_underscore_does_not_pass_for_a_dash(name, line):
    """CGI and WSGI servers read both as one variable."""
    lines = sent(f"{name}: 10.9.9.9\r\n", line)
    assert not [line for line in lines if "10.9.9.9" in line]
    assert "X-Forwarded-For: 192.0.2.1" in lines
    assert "X-Forwarded-Proto: http" in lines


@pytest.mark.parametrize("name", ["api_key", "X_Request_ID", "sec_ret", "X-Real-IP"])
def test_other_fields_keep_their_underscores(name):
    assert f"{name}: 1" in sent(f"{name}: 1\r\n")


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
