from __future__ import annotations

import contextlib

import h11
import httptools
import pytest
from h11._connection import _body_framing
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.resolver.proxy.smuggling import SMUGGLING

from elasti.resolver.proxy.http1 import heads as heads_module
from elasti.resolver.proxy.http1.heads import (
    Framing,
    HeadError,
    Http1RequestHead,
    Http1ResponseHead,
    PlainRequestHead,
    PlainResponseHead,
    parse_request,
    parse_response,
)
from kubeloop.http.framing import FramingError, parse_request_head


def request(fields: str = "", line: str = "GET / HTTP/1.1", host: str = "Host: web\r\n") -> bytes:
    return f"{line}\r\n{host}{fields}\r\n".encode("latin-1")


def test_a_plain_request_is_read():
    head = parse_request(request("Accept: */*\r\n") + b"rest")
    assert head is not None
    assert (head.method, head.target, head.minor, head.host) == (b"GET", b"/", 1, b"web")
    assert (head.framing, head.keep_alive, head.upgrade) == (Framing.NONE, True, None)
    assert head.end == len(request("Accept: */*\r\n"))


@pytest.mark.parametrize("size", range(len(request())))
def test_an_unfinished_head_waits_for_more(size):
    assert parse_request(request()[:size]) is None


@pytest.mark.parametrize(
    ("fields", "framing", "length"),
    [
        ("Content-Length: 5\r\n", Framing.LENGTH, 5),
        ("content-LENGTH:5  \r\n", Framing.LENGTH, 5),
        ("Content-Length: 0\r\n", Framing.NONE, 0),
        ("Transfer-Encoding: chunked\r\n", Framing.CHUNKED, 0),
        ("Transfer-Encoding: Chunked\r\n", Framing.CHUNKED, 0),
        ("X-Content-Length: 5\r\n", Framing.NONE, 0),
    ],
)
def test_the_body_is_framed_as_the_fields_say(fields, framing, length):
    head = parse_request(request(fields, "POST / HTTP/1.1"))
    assert head is not None
    assert (head.framing, head.length) == (framing, length)


@pytest.mark.parametrize("fields", SMUGGLING)
def test_an_ambiguous_head_is_refused(fields):
    with pytest.raises(HeadError):
        parse_request(request(fields, "POST / HTTP/1.1") + b"5\r\nhello\r\n0\r\n\r\n")


@pytest.mark.parametrize("fields", [one for one in SMUGGLING if not one.startswith("Expect")])
def test_kubeloops_server_refuses_it_too(fields):
    head = request(fields, "POST / HTTP/1.1").removesuffix(b"\r\n")
    with pytest.raises(FramingError):
        parse_request_head(head).body()


@pytest.mark.parametrize(
    "line",
    [
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET / HTTP/2.0",
        "GET / HTTP/1.10",
        "GET / http/1.1",
        "GET /",
        "G<T / HTTP/1.1",
        "GET\t/ HTTP/1.1",
    ],
)
def test_a_malformed_request_line_is_refused(line):
    with pytest.raises(HeadError):
        parse_request(request(line=line))


@pytest.mark.parametrize(
    "host", ["", "Host: a b\r\n", "Host: a/b\r\n", "Host: a@b\r\n", "Host: [::1\r\n"]
)
def test_a_missing_or_malformed_host_is_refused(host):
    with pytest.raises(HeadError):
        parse_request(request(host=host))


@pytest.mark.parametrize("host", ["web", "web:80", "[::1]:80", "1.2.3.4", ""])
def test_a_host_may_be_a_name_or_an_address(host):
    head = parse_request(request(host=f"Host: {host}\r\n"))
    assert head is not None
    assert head.host == host.encode()


def test_a_head_that_never_ends_is_refused_at_the_limit():
    endless = b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000
    with pytest.raises(HeadError) as caught:
        parse_request(endless)
    assert caught.value.status == 431
    with pytest.raises(HeadError) as whole:
        parse_request(request("X: " + "a" * 70_000 + "\r\n"))
    assert whole.value.status == 431


@pytest.mark.parametrize(
    ("line", "fields", "keep_alive"),
    [
        ("GET / HTTP/1.1", "", True),
        ("GET / HTTP/1.1", "Connection: close\r\n", False),
        ("GET / HTTP/1.1", "Connection: x, Close\r\n", False),
        ("GET / HTTP/1.0", "", False),
        ("GET / HTTP/1.0", "Connection: Keep-Alive\r\n", True),
    ],
)
def test_connections_are_kept_as_the_version_and_the_fields_say(line, fields, keep_alive):
    head = parse_request(request(fields, line))
    assert head is not None
    assert head.keep_alive is keep_alive


def test_a_target_may_have_bytes_that_clients_should_have_encoded():
    head = parse_request("GET /grüße HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert head is not None
    assert head.target == "/grüße".encode()


def test_an_upgrade_counts_only_when_connection_names_it():
    asked = parse_request(request("Connection: Upgrade\r\nUpgrade: websocket\r\n"))
    stray = parse_request(request("Upgrade: websocket\r\n"))
    assert asked is not None
    assert stray is not None
    assert (asked.upgrade, stray.upgrade) == (b"websocket", None)


@pytest.mark.parametrize(
    ("method", "status", "fields", "framing"),
    [
        (b"GET", "200 OK", "Content-Length: 3\r\n", Framing.LENGTH),
        (b"HEAD", "200 OK", "Content-Length: 3\r\n", Framing.NONE),
        (b"GET", "204 No Content", "", Framing.NONE),
        (b"GET", "304 Not Modified", "Content-Length: 3\r\n", Framing.NONE),
        (b"GET", "100 Continue", "", Framing.NONE),
        (b"GET", "200 OK", "Transfer-Encoding: chunked\r\n", Framing.CHUNKED),
        (b"GET", "200 OK", "Transfer-Encoding: gzip, chunked\r\n", Framing.CHUNKED),
        (b"GET", "200 OK", "Transfer-Encoding: gzip\r\n", Framing.CLOSE),
        (b"GET", "200", "", Framing.CLOSE),
        (b"CONNECT", "200 OK", "Content-Length: 3\r\n", Framing.NONE),
    ],
)
def test_a_response_is_framed_in_the_light_of_its_request(method, status, fields, framing):
    head = parse_response(f"HTTP/1.1 {status}\r\n{fields}\r\n".encode(), method)
    assert head is not None
    assert head.framing is framing


tokens = st.sampled_from(
    [
        b"GET", b"POST", b" ", b"  ", b"/", b"*", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", b"\r", b":",
        b"Host", b"a", b"Content-Length", b"Transfer-Encoding", b"chunked", b"5", b"0", b",", b"\t",
        b"\x00", b"\xff", b"Connection", b"close", b"Upgrade", b"X", b"hello",
    ]
)  # fmt: skip
field_lines = st.builds(
    lambda name, gap, value, end: name + gap + value + end,
    st.sampled_from(
        [b"Content-Length", b"Transfer-Encoding", b"Host", b"X", b"connection", b"X ", b""]
    ),
    st.sampled_from([b":", b": ", b" : ", b":\t", b""]),
    st.sampled_from([b"5", b"chunked", b"a", b"", b"5,5", b"close", b" 5 ", b"chunked ", b"\x0b5"]),
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r\n "]),
)
heads = st.one_of(
    st.lists(tokens, max_size=24).map(b"".join),
    st.lists(field_lines, max_size=5).map(
        lambda lines: b"POST / HTTP/1.1\r\nHost: a\r\n" + b"".join(lines) + b"\r\n"
    ),
)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(heads)
@example(b"GET / HTTP/1.1\r\nHost:\r\n\r\n")
def test_whatever_is_accepted_h11_and_httptools_read_the_same_way(data):
    try:
        head = parse_request(data)
    except HeadError:
        return
    if head is None:
        return
    wire = data[: head.end]
    assert_h11_agrees(wire, head)
    assert_httptools_agrees(wire, head)


# h11 wants ASCII in targets, where we take any byte, as most servers do; it changes no framing.
TO_ASCII = bytes(byte if byte < 0x80 else 0x78 for byte in range(256))


def assert_h11_agrees(wire: bytes, head) -> None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(wire.translate(TO_ASCII))
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (head.method, head.target.translate(TO_ASCII))
    assert event.http_version == b"1.%d" % head.minor
    fields = dict(event.headers)
    assert (b"transfer-encoding" in fields) == (head.framing is Framing.CHUNKED)
    assert int(fields.get(b"content-length", 0)) == head.length


class Seen:
    def __init__(self) -> None:
        self.complete = False
        self.fields: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def assert_httptools_agrees(wire: bytes, head) -> None:
    seen = Seen()
    parser = httptools.HttpRequestParser(seen)
    # Methods that llhttp does not know are ours to pass on; upgrades end its parsing.
    try:
        with contextlib.suppress(httptools.HttpParserUpgrade):
            parser.feed_data(wire)
    except httptools.HttpParserInvalidMethodError:
        return
    assert seen.complete
    assert (parser.get_http_version() == "1.1") == (head.minor == 1)
    lengths = [value for name, value in seen.fields if name == b"content-length"]
    assert [int(value) for value in lengths] == ([head.length] if lengths else [])


def assert_same_request(data: bytes) -> None:
    """What the one match of a plain head tells, the careful readers tell, too."""
    plain = heads_module._PLAIN_REQUEST.match(data)
    if plain is None:
        return
    head = PlainRequestHead(plain) if plain[4] else heads_module._read_proxied(data, plain)
    if head is None:
        return
    match = heads_module._REQUEST.match(data)
    assert match is not None
    careful = Http1RequestHead(match)
    found = heads_module._MATTERS.findall(data, match.end(3), match.end())
    heads_module._read_request(careful, heads_module._collect(found))
    assert careful.connection <= {b"keep-alive"}
    for name in set(Http1RequestHead.__slots__) - {"connection"}:
        assert getattr(head, name) == getattr(careful, name), name


def assert_same_response(data: bytes) -> None:
    plain = heads_module._PLAIN_RESPONSE.match(data)
    if plain is None:
        return
    head = PlainResponseHead(plain)
    match = heads_module._RESPONSE.match(data)
    assert match is not None
    careful = Http1ResponseHead(match)
    found = heads_module._MATTERS.findall(data, match.end(2), match.end())
    heads_module._read_response(careful, heads_module._collect(found), b"GET")
    assert careful.connection <= {b"keep-alive"}
    for name in set(Http1ResponseHead.__slots__) - {"connection", "framing"}:
        assert getattr(head, name) == getattr(careful, name), name
    assert careful.framing is (Framing.LENGTH if head.length else Framing.NONE)


plain_lines = st.builds(
    lambda name, gap, value: name + gap + value + b"\r\n",
    st.sampled_from(
        [
            b"Host", b"host", b"Content-Length", b"content-length", b"Connection", b"X-A", b"Cookie",
            b"TE", b"Upgrade", b"Trailer", b"Expect", b"X-Forwarded-For", b"X-Forwarded-Proto",
            b"Forwarded", b"Keep-Alive", b"Transfer-Encoding", b"Content-Type", b"Hosts", b"T",
        ]
    ),
    st.sampled_from([b":", b": ", b":  ", b":\t"]),
    st.sampled_from([b"a", b"5", b"0", b"keep-alive", b"Keep-Alive", b"close", b"chunked", b"5 ", b""]),
)  # fmt: skip


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(
    st.sampled_from([b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\n", b"CONNECT a:1 HTTP/1.1\r\n"]),
    st.lists(plain_lines, max_size=5).map(b"".join),
)
def test_a_plain_request_is_read_as_the_careful_reader_does(line, fields):
    try:
        assert_same_request(line + fields + b"\r\n")
    except HeadError as error:
        pytest.fail(f"only the careful reader refuses: {error}")


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(
    st.sampled_from(
        [b"200 OK", b"204 No", b"304 N", b"101 S", b"299 ", b"404", b"599 x", b"600 x"]
    ),
    st.lists(plain_lines, max_size=5).map(b"".join),
)
def test_a_plain_response_is_read_as_the_careful_reader_does(status, fields):
    try:
        assert_same_response(b"HTTP/1.1 " + status + b"\r\n" + fields + b"\r\n")
    except HeadError as error:
        pytest.fail(f"only the careful reader refuses: {error}")


responses = st.builds(
    lambda status, fields, end: b"HTTP/1.1 " + status + b"\r\n" + fields + end,
    st.sampled_from(
        [b"200 OK", b"200", b"204 x", b"304 x", b"100 x", b"2000 x", b"99 x", b"200\tx"]
    ),
    st.lists(field_lines, max_size=5).map(b"".join),
    st.sampled_from([b"\r\n", b"\n", b"", b"\r\n\r\n"]),
)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(responses, st.sampled_from([b"GET", b"HEAD"]))
def test_whatever_response_is_accepted_h11_frames_the_same_way(data, method):
    try:
        head = parse_response(data, method)
    except HeadError:
        return
    if head is None or head.status < 200:
        return
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data[: head.end])
    if head.framing is not Framing.LENGTH and b"ransfer-" in data and b"chunked\r" not in data:
        return  # codings that h11 does not know are passed on to the end of the connection
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError as error:
        if "Transfer-Encoding" not in str(error):
            raise
        return
    assert isinstance(event, h11.Response)
    assert event.status_code == head.status
    framed, how = h11_framing(method, event)
    assert framed is head.framing
    assert how == head.length


def h11_framing(method: bytes, event: h11.Response) -> tuple[Framing, int]:
    kind, arguments = _body_framing(method, event)
    match kind:
        case "content-length":
            (length,) = arguments or (0,)
            return (Framing.LENGTH, length) if length else (Framing.NONE, 0)
        case "chunked":
            return Framing.CHUNKED, 0
        case _:
            return Framing.CLOSE, 0


@pytest.mark.parametrize("target", ["http://other/", "HTTP://web:80/a", "https://user@web/"])
def test_a_target_that_names_another_host_is_refused(target):
    """A server may go by either, and routing by the other would be a way around it."""
    with pytest.raises(HeadError, match="different hosts"):
        parse_request(f"GET {target} HTTP/1.1\r\nHost: web\r\n\r\n".encode())


@pytest.mark.parametrize("target", ["http:/web/", "http:///a", "web", "ftp://web/", "?x", "http:"])
def test_a_target_without_a_path_or_a_host_is_refused(target):
    with pytest.raises(HeadError, match="neither a path nor a URL"):
        parse_request(f"GET {target} HTTP/1.1\r\nHost: web\r\n\r\n".encode())


@pytest.mark.parametrize("target", ["http://web/", "http://WEB?x", "/http://other/", "*"])
def test_a_target_that_names_the_same_host_passes(target):
    head = parse_request(f"OPTIONS {target} HTTP/1.1\r\nHost: web\r\n\r\n".encode())
    assert head is not None
    assert head.target == target.encode()
