from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import weakref
from typing import Any

import pytest
from tests.certs import make_authority, server_context
from tests.testing.scripted_answers import drop, event_line, raw, refuse, reply, reset, silence
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import (
    CertificateError,
    ConnectionLost,
    ConnectionRefused,
    Gone,
    ProtocolError,
    RequestTimeout,
    TooManyRequests,
    TransportError,
)
from kubeloop.client.wire.streams import StreamRequest, open_watch, read_list
from kubeloop.client.wire.watch import WireWatch
from kubeloop.objects.codec import codec_for
from kubeloop.objects.lazy import LazyObject

PODS = "/api/v1/pods"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def pod(number: int, **spec: object) -> dict[str, Any]:
    return {"metadata": {"name": f"p{number}", "resourceVersion": str(number)}, "spec": spec}


async def watch(
    server: ScriptedServer | str,
    *,
    kind: type = dict,
    ssl_context: ssl.SSLContext | None = None,
    connect_timeout: float = 5.0,
    idle_timeout: float = 30.0,
    **endpoint: Any,
) -> WireWatch[Any]:
    url = server if isinstance(server, str) else server.url
    return await open_watch(
        StreamRequest(
            endpoint=Endpoint.parse(url, **endpoint),
            ssl_context=ssl_context,
            headers=(("Authorization", "Bearer x"),),
            target=f"{PODS}?watch=true",
            connect_timeout=connect_timeout,
        ),
        codec_for(kind),
        idle_timeout=idle_timeout,
    )


async def listed(server: ScriptedServer | str, *, kind: type = dict, timeout: float = 5.0) -> Any:
    return await read_list(
        StreamRequest(
            endpoint=Endpoint.parse(server if isinstance(server, str) else server.url),
            ssl_context=None,
            headers=(),
            target=PODS,
            connect_timeout=5.0,
        ),
        codec_for(kind),
        timeout=timeout,
    )


async def read_all(stream: WireWatch[Any]) -> list[Any]:
    events: list[Any] = []
    try:
        while batch := await stream.read():
            events += batch
    finally:
        await stream.close()
    return events


def names(events: list[Any]) -> list[str]:
    return [event.object["metadata"]["name"] for event in events]


class TestEvents:
    async def test_events_arrive_in_order_and_empty_batch_is_end(self) -> None:
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            await script.event("ADDED", pod(1))
            await script.event("MODIFIED", pod(2))
            await script.end()

            events = await read_all(stream)

            assert [event.type for event in events] == ["ADDED", "MODIFIED"]
            assert names(events) == ["p1", "p2"]
            assert await stream.read() == []

    async def test_many_lines_of_one_read_are_one_batch(self) -> None:
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            await script.send(b"".join(event_line("ADDED", pod(n)) for n in range(100)))

            assert len(await stream.read()) == 100
            await stream.close()

    @pytest.mark.spec("X13", "R37")
    @pytest.mark.parametrize("size", [1, 2, 3, 1000])
    async def test_chunks_may_end_anywhere_even_inside_of_a_character(self, size: int) -> None:
        data = b"".join(
            json.dumps({"type": "ADDED", "object": pod(n, text="aé漢🙂" * 3)}, ensure_ascii=False)
            .encode() + b"\n"
            for n in range(5)
        )  # fmt: skip
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            await script.send_split(data, [size] * (len(data) // size))
            await script.end()

            events = await read_all(stream)

            assert names(events) == [f"p{n}" for n in range(5)]
            assert events[0].object["spec"]["text"] == "aé漢🙂" * 3

    @pytest.mark.spec("X13")
    async def test_a_line_of_one_and_a_half_megabytes_comes_whole(self) -> None:
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            async with asyncio.TaskGroup() as group:
                group.create_task(script.event("ADDED", pod(1, data="x" * 1_500_000)))
                [event] = await stream.read()
            await stream.close()

            assert len(event.object["spec"]["data"]) == 1_500_000

    @pytest.mark.parametrize(
        "head",
        [
            HEAD + b"Content-Length: %d\r\n\r\n" % len(event_line("ADDED", pod(1))),
            HEAD + b"Connection: close\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n\r\n",
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + HEAD + b"\r\n",
        ],
    )
    async def test_other_framings_are_read_as_well(self, head: bytes) -> None:
        async with ScriptedServer() as server:
            server.expect("GET", PODS, raw(head + event_line("ADDED", pod(1))))

            assert names(await read_all(await watch(server))) == ["p1"]

    async def test_extensions_and_trailers_are_passed_over(self) -> None:
        line = event_line("ADDED", pod(1))
        body = b"%x;a=b\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(line), line)
        async with ScriptedServer() as server:
            server.expect("GET", PODS, raw(CHUNKED + body))

            assert names(await read_all(await watch(server))) == ["p1"]

    async def test_blank_lines_are_not_events(self) -> None:
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            await script.send(b"\n\r\n \n" + event_line("ADDED", pod(1)) + b"\n")
            await script.end()

            assert names(await read_all(stream)) == ["p1"]


class TestEnds:
    @pytest.mark.spec("R37", "X13")
    @pytest.mark.parametrize("end", ["end", "drop", "reset"])
    async def test_half_a_line_is_dropped_however_the_peer_leaves(self, end: str) -> None:
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            await script.event("ADDED", pod(1))
            events = await stream.read()
            await script.send(event_line("MODIFIED", pod(2))[:-5])
            await getattr(script, end)()

            assert names(events) == ["p1"]
            assert await read_all(stream) == []

    @pytest.mark.spec("R39", "X14")
    @pytest.mark.virtual_time
    async def test_silence_for_the_idle_timeout_is_a_clean_end(self) -> None:
        loop = asyncio.get_running_loop()
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server, idle_timeout=305.0)
            opened = loop.time()

            assert await stream.read() == []
            assert loop.time() - opened == pytest.approx(305.0, abs=0.1)
            await script.client_left()
            await stream.close()

    @pytest.mark.spec("R39")
    @pytest.mark.virtual_time
    async def test_every_byte_counts_as_a_sign_of_life(self) -> None:
        loop = asyncio.get_running_loop()
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server, idle_timeout=305.0)
            reading = asyncio.create_task(stream.read())
            for byte in b'{"ty':
                await asyncio.sleep(300.0)
                await script.send(bytes([byte]))

            assert await reading == []
            assert loop.time() == pytest.approx(4 * 300.0 + 305.0, abs=0.1)
            await stream.close()

    @pytest.mark.virtual_time
    async def test_silence_that_we_made_by_not_reading_is_not_peers(self) -> None:
        line = event_line("ADDED", pod(1, data="x" * 100_000))
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server, idle_timeout=305.0)
            sending = asyncio.create_task(script.send(line * 400))
            await asyncio.sleep(1000.0)

            assert not sending.done()
            events: list[Any] = []
            while len(events) < 400:
                news = await stream.read()
                assert news, f"it ended after {len(events)}"
                events += news
            await sending
            await stream.close()


class TestBackPressure:
    async def test_reader_that_does_not_keep_up_holds_server_back(self) -> None:
        line = event_line("ADDED", pod(1, data="x" * 10_000))
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(5000):
                await script.send(line)
                sent += 1
            await script.end()

        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            sending = asyncio.create_task(send())
            before = -1
            # Until nothing moves any more: everything that may be buffered is.
            while sent != before:
                before = sent
                for _ in range(100):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.02)

            assert sent < 2500
            assert "paused" in repr(stream)
            assert len(await read_all(stream)) == 5000
            await sending


class TestRefusals:
    async def test_html_in_place_of_stream_is_reported_with_remedy(self) -> None:
        answer = reply(body=b"<html>log in here</html>", content_type="text/html; charset=utf-8")
        async with ScriptedServer() as server:
            server.serve("GET", PODS, answer)
            for ask in (watch, listed):
                with pytest.raises(ProtocolError, match="is this an API server's URL") as caught:
                    await ask(server)
                assert str(caught.value).startswith(f"{server.url}{PODS}")
                assert "log in here" in str(caught.value)

    async def test_a_refusal_is_not_its_own_cause(self) -> None:
        async with ScriptedServer() as server:
            server.serve("GET", PODS, refuse(410, "Expired"))
            for ask in (watch, listed):
                with pytest.raises(Gone) as caught:
                    await ask(server)
                assert caught.value.__cause__ is None

    @pytest.mark.spec("R31")
    async def test_a_refusal_is_the_typed_error(self) -> None:
        async with ScriptedServer() as server:
            server.expect("GET", PODS, refuse(410, "Expired", "too old"), refuse(410, "Expired"))

            with pytest.raises(Gone, match="too old"):
                await watch(server)
            with pytest.raises(Gone):
                await listed(server)

    @pytest.mark.spec("R32")
    async def test_retry_after_comes_along(self) -> None:
        answer = refuse(429, "TooManyRequests", headers={"Retry-After": "7"})
        async with ScriptedServer() as server:
            server.expect("GET", PODS, answer)

            with pytest.raises(TooManyRequests) as caught:
                await watch(server)
            assert caught.value.retry_after == 7.0

    async def test_a_foreign_response_is_reported_with_url_and_first_bytes(self) -> None:
        answer = reply(status=502, body=b"<html>Bad Gateway</html>", content_type="text/html")
        async with ScriptedServer() as server:
            server.expect("GET", PODS, answer)

            with pytest.raises(ProtocolError, match="Bad Gateway") as caught:
                await watch(server)
            assert f"{server.url}{PODS}" in str(caught.value)

    async def test_body_in_coding_that_was_not_asked_for_is_refused(self) -> None:
        answer = raw(HEAD + b"Content-Encoding: gzip\r\n\r\n")
        async with ScriptedServer() as server:
            server.expect("GET", PODS, answer)

            with pytest.raises(ProtocolError, match="gzip"):
                await watch(server)

    @pytest.mark.parametrize("answer", [drop, reset])
    async def test_no_answer_is_a_lost_connection(self, answer: Any) -> None:
        async with ScriptedServer() as server:
            server.expect("GET", PODS, answer)

            with pytest.raises(ConnectionLost, match="before an answer"):
                await watch(server)

    async def test_something_else_than_http_is_a_protocol_error(self) -> None:
        async with ScriptedServer() as server:
            server.expect("GET", PODS, raw(b"SSH-2.0-OpenSSH_9.6\r\n"))

            with pytest.raises(ProtocolError, match="SSH"):
                await watch(server)

    @pytest.mark.spec("R33")
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    async def test_no_listener_is_connection_refused(self, host: str) -> None:
        async with ScriptedServer() as server:
            url = f"http://{host}:{server.port}"

        with pytest.raises(ConnectionRefused):
            await watch(url)
        with pytest.raises(ConnectionRefused):
            await listed(url)

    @pytest.mark.virtual_time
    async def test_a_head_that_does_not_come_is_a_timeout(self) -> None:
        async with ScriptedServer() as server:
            server.expect("GET", PODS, silence, silence)

            with pytest.raises(RequestTimeout):
                await watch(server, idle_timeout=600.0)
            with pytest.raises(RequestTimeout):
                await listed(server, timeout=3.0)
        assert asyncio.get_running_loop().time() == pytest.approx(65.0 + 3.0, abs=0.1)

    @pytest.mark.spec("R37")
    async def test_events_before_undecodable_bytes_are_delivered_then_every_read_fails(
        self,
    ) -> None:
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            good = event_line("ADDED", pod(1))
            await script.send(good + b'{"type":"ADDED","object":5}\n' + good)

            assert names(await stream.read()) == ["p1"]
            for _ in range(2):
                with pytest.raises(ProtocolError, match="undecodable"):
                    await stream.read()
            await stream.close()

    async def test_broken_framing_is_a_protocol_error_after_what_came_before(self) -> None:
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            await script.event("ADDED", pod(1))
            await script.raw(b"zz\r\n")

            with pytest.raises(ProtocolError, match="chunked"):
                await read_all(stream)


class TestRequest:
    async def test_it_asks_for_the_target_below_the_endpoints_path(self) -> None:
        async with ScriptedServer() as server:
            server.expect("GET", f"/clusters/c1{PODS}", raw(CHUNKED))
            stream = await watch(f"{server.url}/clusters/c1")
            await stream.close()

            [request] = server.requests
            assert request.target == f"/clusters/c1{PODS}?watch=true"
            assert request.headers["host"] == f"127.0.0.1:{server.port}"
            assert request.headers["accept-encoding"] == "identity"
            assert request.headers["authorization"] == "Bearer x"

    @pytest.mark.parametrize("bad", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
    async def test_a_header_cannot_smuggle_another(self, bad: str) -> None:
        with pytest.raises(ValueError, match="line break"):
            await open_watch(
                StreamRequest(
                    endpoint=Endpoint.parse("http://127.0.0.1:1"),
                    ssl_context=None,
                    headers=(("X-A", bad),),
                    target=PODS,
                    connect_timeout=1,
                ),
                codec_for(dict),
                idle_timeout=1,
            )


class TestTls:
    async def test_events_over_tls(self) -> None:
        authority = make_authority()
        context = ssl.create_default_context(cadata=authority.pem.decode())
        async with ScriptedServer(ssl_context=server_context(authority.server())) as server:
            script = server.expect_watch(PODS)
            stream = await watch(server, ssl_context=context, kind=LazyObject)
            data = b"".join(event_line("ADDED", pod(n, data="é" * 5000)) for n in range(300))
            async with asyncio.TaskGroup() as group:
                group.create_task(script.send_split(data, [16_384] * 10))
                events: list[Any] = []
                while len(events) < 300:
                    events += await stream.read()
            await script.end()

            assert await stream.read() == []
            assert events[299].object.to_dict() == pod(299, data="é" * 5000)
            await stream.close()

    async def test_the_server_name_is_what_is_verified(self) -> None:
        authority = make_authority()
        context = ssl.create_default_context(cadata=authority.pem.decode())
        issued = authority.server("kubernetes.default")
        async with ScriptedServer(ssl_context=server_context(issued)) as server:
            server.expect("GET", PODS, raw(CHUNKED))

            with pytest.raises(CertificateError, match="another name"):
                await watch(server, ssl_context=context)
            stream = await watch(server, ssl_context=context, server_name="kubernetes.default")
            await stream.close()

    async def test_an_unknown_authority_is_not_trusted(self) -> None:
        context = ssl.create_default_context(cadata=make_authority().pem.decode())
        issued = make_authority("other").server()
        async with ScriptedServer(ssl_context=server_context(issued)) as server:
            with pytest.raises(CertificateError, match="not trusted"):
                await watch(server, ssl_context=context)

    async def test_a_missing_client_certificate_is_reported_as_such(self) -> None:
        authority = make_authority()
        context = ssl.create_default_context(cadata=authority.pem.decode())
        strict = server_context(authority.server(), client_ca=authority)

        def refuse_one() -> None:
            # A blocking server, because asyncio's closes without sending the alert.
            plain, _ = listener.accept()
            with strict.wrap_socket(
                plain, server_side=True, do_handshake_on_connect=False
            ) as connection:
                with pytest.raises(ssl.SSLError):
                    connection.do_handshake()
                # Closing with the request unread would be a reset, which overtakes the alert.
                socket.socket.recv(connection, 65_536)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(asyncio.to_thread(refuse_one))
            with pytest.raises(CertificateError, match="client certificate"):
                await watch(f"https://127.0.0.1:{listener.getsockname()[1]}", ssl_context=context)
            await serving

    async def test_tls_to_a_plain_port_is_reported_as_such(self) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            with pytest.raises(TransportError, match="does not speak TLS"):
                await watch(f"https://127.0.0.1:{port}")


class TestClosing:
    async def test_an_already_ended_watch_leaves_no_timer(
        self,
    ) -> None:
        async with ScriptedServer() as server:
            server.serve("GET", PODS, reply(body=event_line("ADDED", pod(1))))
            stream = await watch(server, idle_timeout=3600.0)
            await read_all(stream)
            connection = weakref.ref(stream._connection)
            del stream
            gc.collect()
            assert connection() is None

    async def test_closing_ends_a_read_and_frees_the_connection_at_once(self) -> None:
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0)
            await stream.close()
            await stream.close()

            assert await reading == []
            await script.client_left()

    async def test_a_cancelled_read_loses_nothing(self) -> None:
        async with ScriptedServer() as server:
            script = server.expect_watch(PODS)
            stream = await watch(server)
            events: list[Any] = []
            for number in range(20):
                reading = asyncio.create_task(stream.read())
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                await script.event("ADDED", pod(number))
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    events += await reading
            await script.end()

            assert names(events + await read_all(stream)) == [f"p{n}" for n in range(20)]

    @pytest.mark.spec("R11", "R38")
    @pytest.mark.parametrize("tls", [False, True])
    @pytest.mark.parametrize("call", ["watch", "list"])
    async def test_cancelled_at_any_step_it_leaves_nothing_behind(
        self, call: str, tls: bool
    ) -> None:
        authority = make_authority()
        context = ssl.create_default_context(cadata=authority.pem.decode()) if tls else None
        server_side = server_context(authority.server()) if tls else None
        async with ScriptedServer(ssl_context=server_side) as server:
            server.serve("GET", PODS, silence)
            endpoint = Endpoint.parse(server.url)
            request = StreamRequest(
                endpoint=endpoint, ssl_context=context, headers=(), target=PODS, connect_timeout=5.0
            )
            for steps in range(40):
                opening = asyncio.create_task(
                    open_watch(request, codec_for(dict), idle_timeout=5.0)
                    if call == "watch"
                    else read_list(request, codec_for(dict), timeout=5.0)
                )
                for _ in range(steps):
                    await asyncio.sleep(0)
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
            # A socket or a transport that was left open warns here, and warnings are errors.
            gc.collect()

    async def test_an_abandoned_connection_attempt_times_out(self) -> None:
        # Connected by the kernel, but nobody answers the TLS handshake.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with pytest.raises(RequestTimeout, match="connecting"):
                await watch(f"https://127.0.0.1:{port}", connect_timeout=0.05)
        gc.collect()


class TestLists:
    @pytest.mark.spec("R15")
    async def test_big_list_leaves_loop_to_others_while_it_arrives(self) -> None:
        body = {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "9"},
            "items": [pod(n, data="x" * 1000) for n in range(10_000)],
        }
        data = json.dumps(body, separators=(",", ":")).encode()
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with ScriptedServer() as server:
            server.expect("GET", PODS, reply(body=data))
            task = asyncio.create_task(other())
            page = await listed(server, timeout=30.0)
            task.cancel()

        assert [item["metadata"]["name"] for item in page.items] == [f"p{n}" for n in range(10_000)]
        assert (page.resource_version, page.continue_token) == ("9", "")
        assert turns > len(data) / 1_000_000

    @pytest.mark.parametrize("kind", [dict, LazyObject])
    async def test_a_small_list(self, kind: type) -> None:
        body = {"kind": "PodList", "metadata": {"continue": "c"}, "items": [pod(1)]}
        async with ScriptedServer() as server:
            server.expect("GET", PODS, reply(body))

            page = await listed(server, kind=kind)

            assert len(page.items) == 1
            assert page.continue_token == "c"

    @pytest.mark.parametrize(
        "answer",
        [
            HEAD + b'Content-Length: 100\r\n\r\n{"kind":"PodList","items":[]}',
            CHUNKED + b'1d\r\n{"kind":"PodList","items":[]}\r\n',
        ],
    )
    async def test_a_list_that_breaks_off_is_a_lost_connection(self, answer: bytes) -> None:
        async with ScriptedServer() as server:
            server.expect("GET", PODS, raw(answer))

            with pytest.raises(ConnectionLost, match="29 bytes"):
                await listed(server)

    @pytest.mark.spec("R13")
    @pytest.mark.parametrize(
        "body", [b'{"kind":"Table","rows":[]}', b"<html>hello</html>", b'{"kind":"PodList","items"']
    )
    async def test_anything_but_a_list_is_protocol_error_with_url(self, body: bytes) -> None:
        async with ScriptedServer() as server:
            server.expect("GET", PODS, reply(body=body))

            with pytest.raises(ProtocolError, match=f"{server.url}{PODS}"):
                await listed(server)

    async def test_broken_framing_is_a_protocol_error(self) -> None:
        async with ScriptedServer() as server:
            server.expect("GET", PODS, raw(CHUNKED + b"zz\r\n"))

            with pytest.raises(ProtocolError, match="chunked"):
                await listed(server)
