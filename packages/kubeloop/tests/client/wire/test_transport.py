"""One attempt over real sockets: what goes out, what comes in, and every way to fail."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gzip
import platform
import re
import socket
import ssl
import threading

import pytest
from tests.certs import Authority, make_authority, server_context
from tests.client.rest import config_for
from tests.testing.scripted_answers import drop, raw, reply, reset, silence
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client import request as requests
from kubeloop.client.auth.credentials import Anonymous
from kubeloop.client.auth.identity import AuthContext, Identity, Impersonation
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import (
    CertificateError,
    ConnectionLost,
    ConnectionRefused,
    HostNotFound,
    ProtocolError,
    RequestTimeout,
    TransportError,
)
from kubeloop.client.wire.transport import HttpTransport, Timeouts

GET = requests.get("/api/v1/pods")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority()


def auth(context: ssl.SSLContext | None = None, **authorization: str) -> AuthContext:
    return AuthContext(authorization=authorization, ssl_context=context)


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


@contextlib.asynccontextmanager
async def transport_to(url: str, **options):
    endpoint = Endpoint.parse(url, server_name=options.pop("server_name", None))
    transport = HttpTransport(endpoint, **options)
    try:
        yield transport
    finally:
        await transport.aclose()


async def attempt(url: str, context: ssl.SSLContext | None = None, request=GET, **options):
    timeout = options.pop("timeout", 5.0)
    async with transport_to(url, **options) as transport:
        return await transport.send(request, auth(context), timeout=timeout)


async def failure(url: str, context: ssl.SSLContext | None = None, request=GET, **options):
    with pytest.raises((TransportError, ProtocolError)) as caught:
        await attempt(url, context, request, **options)
    assert url in str(caught.value)
    return caught.value


async def test_an_answer_comes_back_whole_whatever_its_status():
    async with ScriptedServer() as server:
        server.expect(
            "GET", "/api/v1/pods", reply({"a": 1}, status=418, headers={"X-Y": "1", "x-y": "2"})
        )
        response = await attempt(server.url)
    assert (response.status, response.ok, response.body) == (418, False, b'{"a": 1}')
    assert response.header("x-y") == "1"
    assert response.header_values("x-y") == ["1", "2"]
    assert response.header("absent") == ""
    assert response.url == f"{server.url}/api/v1/pods"


async def test_request_line_is_exactly_target_below_endpoints_path():
    request = requests.get("/api/v1/namespaces/a/pods/x%20y", {"labelSelector": "a=b,c in (d)"})
    async with ScriptedServer() as server:
        server.serve("GET", "/k8s/c-1/api/v1/namespaces/a/pods/x y", reply({}))
        await attempt(f"{server.url}/k8s/c-1", request=request)
    target = "/k8s/c-1/api/v1/namespaces/a/pods/x%20y?labelSelector=a%3Db%2Cc%20in%20%28d%29"
    assert server.requests[0].target == target


async def test_the_headers_say_who_asks_and_for_what():
    acting = Impersonation(
        user="jane", uid="7", groups=("dev", "ops"), extra={"acme.com/team": ("a", "b")}
    )
    config = config_for("http://127.0.0.1:1", impersonate=acting)
    write = requests.write("PATCH", "/x", b"[]", content_type="application/json-patch+json")
    async with ScriptedServer() as server:
        server.serve("PATCH", "/x", reply({}))
        async with transport_to(server.url) as transport:
            await transport.send(write, await Identity(config).auth(), timeout=5)
        (seen,) = server.requests
    assert seen.headers["user-agent"].startswith("kubeloop/")
    assert f"(python {platform.python_version()};" in seen.headers["user-agent"]
    assert seen.headers["accept"] == "application/json"
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers["content-type"] == "application/json-patch+json"
    assert seen.headers["impersonate-user"] == "jane"
    assert seen.headers["impersonate-uid"] == "7"
    assert seen.header_values("impersonate-group") == ["dev", "ops"]
    assert seen.header_values("impersonate-extra-acme.com%2fteam") == ["a", "b"]
    assert seen.body == b"[]"


async def test_a_read_has_no_body_and_no_content_type():
    async with ScriptedServer() as server:
        server.serve("GET", "/api/v1/pods", reply({}))
        await attempt(server.url)
    assert "content-type" not in server.requests[0].headers
    assert server.requests[0].body == b""


async def test_a_packed_answer_that_was_not_asked_for_is_not_unpacked():
    packed = gzip.compress(bytes(10_000_000))
    async with ScriptedServer() as server:
        server.serve(
            "GET", "/api/v1/pods", reply(body=packed, headers={"Content-Encoding": "gzip"})
        )
        response = await attempt(server.url)
    assert response.body == packed


async def test_compression_is_asked_for_only_where_wanted_and_undone():
    packed = gzip.compress(b'{"big": true}')
    async with ScriptedServer() as server:
        server.serve(
            "GET", "/api/v1/pods", reply(body=packed, headers={"Content-Encoding": "gzip"})
        )
        response = await attempt(server.url, compression=True)
    assert server.requests[0].headers["accept-encoding"] == "gzip"
    assert response.body == b'{"big": true}'


async def test_connections_are_reused():
    async with ScriptedServer() as server:
        server.serve("GET", "/api/v1/pods", reply({}))
        async with transport_to(server.url) as transport:
            for _ in range(3):
                await transport.send(GET, auth(), timeout=5)
    assert server.accepted == 1


async def test_new_tls_context_gets_new_connections_and_running_requests_finish(authority):
    server_side = server_context(authority.server())
    old, new = trusting(authority), trusting(authority)
    may_answer = asyncio.Event()

    async def later(exchange):
        await may_answer.wait()
        await exchange.respond_json({"late": True})

    async with ScriptedServer(ssl_context=server_side) as server:
        server.expect("GET", "/api/v1/pods", later, reply({}), reply({}))
        async with transport_to(server.url) as transport:
            running = asyncio.ensure_future(transport.send(GET, auth(old), timeout=5))
            await server.arrived(1)
            await transport.send(GET, auth(new), timeout=5)
            may_answer.set()
            assert (await running).body == b'{"late": true}'
            await transport.send(GET, auth(new), timeout=5)
    assert [request.connection for request in server.requests] == [1, 2, 2]


async def test_redirects_are_returned_and_not_followed():
    async with ScriptedServer() as server:
        server.expect("GET", "/api/v1/pods", reply(status=307, headers={"Location": "/x"}))
        response = await attempt(server.url)
    assert (response.status, response.header("location")) == (307, "/x")


async def test_cookies_are_not_kept():
    async with ScriptedServer() as server:
        server.serve("GET", "/api/v1/pods", reply({}, headers={"Set-Cookie": "a=b"}))
        async with transport_to(server.url) as transport:
            await transport.send(GET, auth(), timeout=5)
            await transport.send(GET, auth(), timeout=5)
    assert "cookie" not in server.requests[1].headers


async def test_no_listener_is_reported_as_such():
    async with ScriptedServer() as server:
        await server.stop_listening()
        error = await failure(server.url)
    assert isinstance(error, ConnectionRefused)
    assert "is the API server running" in str(error)


async def test_a_name_that_does_not_resolve_is_reported_as_such():
    error = await failure("http://nowhere.invalid:6443")
    assert isinstance(error, HostNotFound)
    assert "DNS" in str(error)


@pytest.mark.parametrize("way", [reset, drop])
async def test_connection_that_ends_before_answer_is_lost_before_answer(way):
    async with ScriptedServer() as server:
        server.expect("POST", "/x", way)
        error = await failure(server.url, request=requests.write("POST", "/x", b"{}"))
    assert isinstance(error, ConnectionLost)
    assert not error.answer_begun
    assert "before an answer came" in str(error)


async def test_a_connection_reset_on_accept_is_lost_before_the_answer():
    async with ScriptedServer() as server:
        server.reset_next_connections(5)
        error = await failure(server.url, request=requests.write("POST", "/x", b"{}"))
    assert isinstance(error, ConnectionLost)
    assert not error.answer_begun


@pytest.mark.parametrize(
    "part",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal",
    ],
)
async def test_body_that_ends_too_early_is_lost_inside_answer(part):
    async with ScriptedServer() as server:
        server.expect("GET", "/api/v1/pods", raw(part))
        error = await failure(server.url)
    assert isinstance(error, ConnectionLost)
    assert error.answer_begun
    assert "in the middle of the answer" in str(error)


async def test_what_is_not_http_is_a_protocol_error():
    async with ScriptedServer() as server:
        server.expect("GET", "/api/v1/pods", raw(b"SSH-2.0-OpenSSH_9.6\r\n"))
        error = await failure(server.url)
    assert isinstance(error, ProtocolError)
    assert "not HTTP" in str(error)


@pytest.mark.virtual_time
async def test_silence_ends_with_the_requests_timeout():
    async with ScriptedServer() as server:
        server.expect("GET", "/api/v1/pods", silence)
        error = await failure(server.url, timeout=30)
    assert isinstance(error, RequestTimeout)
    assert "within 30 s" in str(error)


@pytest.mark.virtual_time
async def test_a_body_that_never_ends_meets_the_same_timeout():
    async def forever(exchange):
        await exchange.start()
        await exchange.chunk(b"{")
        await exchange.client_left()

    async with ScriptedServer() as server:
        server.expect("GET", "/api/v1/pods", forever)
        error = await failure(server.url, timeout=30)
    assert isinstance(error, RequestTimeout)


async def test_a_body_without_an_end_is_read_up_to_a_bound():
    async def flood(exchange):
        await exchange.start()
        with contextlib.suppress(ConnectionError):
            while True:
                await exchange.chunk(b" " * 65536)

    async with ScriptedServer() as server:
        server.expect("GET", "/api/v1/pods", flood)
        error = await failure(server.url, max_body=1_000_000)
    assert "longer than 1000000 bytes" in str(error)


@pytest.mark.virtual_time
async def test_server_that_does_not_shake_hands_meets_timeout_for_connecting():
    async def mute(reader, writer):
        await reader.read()

    async with ScriptedServer() as server:
        server.hand_over_next_connection(mute)
        url = server.url.replace("http:", "https:")
        error = await failure(url, ssl.create_default_context(), connect_timeout=3)
    assert isinstance(error, RequestTimeout)
    assert "connecting did not finish within 3 s" in str(error)


async def test_tls_with_the_right_authority_works_and_credentials_travel(authority):
    async with ScriptedServer(ssl_context=server_context(authority.server())) as server:
        server.serve("GET", "/api/v1/pods", reply({}))
        async with transport_to(server.url) as transport:
            who = auth(trusting(authority), Authorization="Bearer t")
            await transport.send(GET, who, timeout=5)
    assert server.requests[0].headers["authorization"] == "Bearer t"


async def test_a_server_of_another_authority_is_not_trusted(authority):
    async with ScriptedServer(ssl_context=server_context(authority.server())) as server:
        error = await failure(server.url, trusting(make_authority("other")))
    assert isinstance(error, CertificateError)
    assert "not trusted" in str(error)
    assert "certificate-authority" in str(error)


async def test_certificate_for_another_name_is_reported_and_can_be_overridden(authority):
    issued = authority.server("kubernetes.example")
    async with ScriptedServer(ssl_context=server_context(issued)) as server:
        server.serve("GET", "/api/v1/pods", reply({}))
        error = await failure(server.url, trusting(authority))
        response = await attempt(server.url, trusting(authority), server_name="kubernetes.example")
    assert isinstance(error, CertificateError)
    assert "tls-server-name" in str(error)
    assert response.ok


async def test_an_expired_certificate_is_reported(authority):
    issued = authority.server(not_after=dt.datetime(2021, 1, 1, tzinfo=dt.UTC))
    async with ScriptedServer(ssl_context=server_context(issued)) as server:
        error = await failure(server.url, trusting(authority))
    assert isinstance(error, CertificateError)
    assert "has expired" in str(error)
    assert "clock" in str(error)


@contextlib.contextmanager
def alerting_server(context: ssl.SSLContext):
    """A TLS server on blocking sockets: unlike asyncio's it tells the client why it refuses."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                accepted.settimeout(5)
                tls = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
                with tls, contextlib.suppress(OSError):
                    with contextlib.suppress(ssl.SSLError):
                        tls.do_handshake()
                    # Take what the client sends, or closing would reset and wipe out the alert.
                    while socket.socket.recv(tls, 65536):
                        pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


V1_2, V1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("presented", "version"), [("none", V1_3), ("foreign", V1_2), ("foreign", V1_3)]
)
async def test_a_server_that_refuses_our_certificate_is_reported(
    authority, tmp_path, presented, version
):
    strict = server_context(authority.server(), client_ca=authority)
    strict.maximum_version = version
    ours = trusting(authority)
    if presented != "none":
        ours.load_cert_chain(*make_authority("other").client().write(tmp_path, "wrong"))
    with alerting_server(strict) as url:
        error = await failure(url, ours)
    assert isinstance(error, CertificateError)
    assert "refuses our client certificate" in str(error)


async def test_a_handshake_refused_without_a_reason_names_the_likely_ones(authority):
    strict = server_context(authority.server(), client_ca=authority)
    strict.maximum_version = V1_2
    with alerting_server(strict) as url:
        error = await failure(url, trusting(authority))
    assert "does it want a client certificate" in str(error)


async def test_our_certificate_is_presented(authority, tmp_path):
    strict = server_context(authority.server(), client_ca=authority)
    ours = trusting(authority)
    ours.load_cert_chain(*authority.client("jane").write(tmp_path, "jane"))
    async with ScriptedServer(ssl_context=strict) as server:
        server.serve("GET", "/api/v1/pods", reply({}))
        assert (await attempt(server.url, ours)).ok
    certificate = server.requests[0].client_certificate
    assert certificate is not None
    assert (("commonName", "jane"),) in certificate["subject"]


async def test_tls_towards_a_plain_server_says_so():
    async def plain(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with ScriptedServer() as server:
        server.hand_over_next_connection(plain)
        url = server.url.replace("http:", "https:")
        error = await failure(url, ssl.create_default_context())
    assert "does not speak TLS" in str(error)


async def test_a_closed_transport_refuses_to_open_again_and_closing_repeats():
    async with ScriptedServer() as server:
        server.serve("GET", "/api/v1/pods", reply({}))
        async with transport_to(server.url) as transport:
            await transport.send(GET, auth(), timeout=5)
            await transport.aclose()
            await transport.aclose()
            with pytest.raises(RuntimeError, match="the client is closed"):
                await transport.send(GET, auth(), timeout=5)


async def test_a_cancelled_request_frees_its_connection():
    async with ScriptedServer() as server:
        server.expect("GET", "/api/v1/pods", silence, reply({}))
        async with transport_to(server.url) as transport:
            task = asyncio.ensure_future(transport.send(GET, auth(), timeout=5))
            await server.arrived(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await transport.send(GET, auth(), timeout=5)).ok
    assert [request.connection for request in server.requests] == [1, 2]


def through(proxy: ScriptedServer, url: str) -> HttpTransport:
    address = f"http://me:secret@{proxy.host}:{proxy.port}"
    return HttpTransport(Endpoint.parse(url, proxy=address))


async def test_plain_server_behind_proxy_is_asked_for_by_whole_url():
    async with ScriptedServer() as proxy:
        proxy.serve("GET", re.compile(".*"), reply({}))
        transport = through(proxy, "http://cluster.invalid:8080/k8s")
        assert (await transport.send(GET, auth(), timeout=5)).ok
        await transport.aclose()
        (request,) = proxy.requests
    assert request.target == "http://cluster.invalid:8080/k8s/api/v1/pods"
    assert request.headers["proxy-authorization"].startswith("Basic ")


async def test_tls_server_behind_proxy_is_reached_through_tunnel(authority):
    async with ScriptedServer(ssl_context=server_context(authority.server("inner"))) as server:
        server.serve("GET", "/api/v1/pods", reply({"inner": True}))

        async def connect(exchange):
            await exchange.raw(b"HTTP/1.1 200 Connection established\r\n\r\n")
            upstream = await asyncio.open_connection(server.host, server.port)
            await relay(exchange, *upstream)

        async with ScriptedServer() as proxy:
            proxy.expect("CONNECT", "inner:6443", connect)
            transport = through(proxy, "https://inner:6443")
            response = await transport.send(GET, auth(trusting(authority)), timeout=5)
            await transport.aclose()
    assert response.body == b'{"inner": true}'


async def relay(exchange, reader, writer) -> None:
    """Carry bytes both ways until either side has had enough."""

    async def carry(source, sink) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    pumps = [
        asyncio.ensure_future(carry(exchange._reader, writer)),
        asyncio.ensure_future(carry(reader, exchange._writer)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        writer.close()


async def test_a_proxy_that_refuses_the_tunnel_is_reported():
    async with ScriptedServer() as proxy:
        proxy.expect("CONNECT", "inner:6443", reply(status=407))
        transport = through(proxy, "https://inner:6443")
        with pytest.raises(
            TransportError, match="the proxy refused the tunnel: HTTP 407"
        ) as caught:
            await transport.send(GET, auth(ssl.create_default_context()), timeout=5)
        await transport.aclose()
    assert "proxy-url" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_proxy_that_is_not_there_is_reported_apart_from_server():
    async with ScriptedServer() as gone:
        transport = through(gone, "https://inner:6443")
    with pytest.raises(ConnectionRefused, match="is the proxy running") as caught:
        await transport.send(GET, auth(ssl.create_default_context()), timeout=5)
    await transport.aclose()
    assert f"proxy http://{gone.host}:{gone.port}" in str(caught.value)
    assert "https://inner:6443" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_timeouts_must_be_positive():
    with pytest.raises(ValueError, match="connect=0"):
        Timeouts(connect=0)


async def test_a_login_does_not_show_its_secrets():
    config = config_for("http://127.0.0.1:1", Anonymous())
    assert "secret" not in repr(auth(Authorization="Bearer secret"))
    assert (await Identity(config).auth()).authorization == {}
