"""HTTP/1 through the data path: what every client and every pod must see."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from tests.resolver.proxy.rig import PATIENCE, answering, hello, read_request

from elasti.resolver.proxy.upstream.interface import LocalAnswer, Refusal, UpstreamAddress
from kubeloop.aio.relay import reset
from tests.waiting import eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_a_request_reaches_the_pod_and_its_answer_comes_back_untouched(rig):
    wire = b"HTTP/1.1 200 Fine\r\nX-A: b\r\nContent-Length: 2\r\n\r\nok"
    pod = await rig.pod(answering(wire))
    client = await rig.connect()
    client.get("/a?b=c")
    assert await client.read(len(wire)) == wire
    assert pod.requests[0].startswith(
        b"GET /a?b=c HTTP/1.1\r\nHost: web\r\nX-Forwarded-For: 127.0.0.1"
    )


async def test_connections_are_kept_on_both_sides(rig):
    pod = await rig.pod(hello)
    client = await rig.connect()
    for number in range(20):
        client.get(f"/{number}")
        assert (await client.response())[2] == b"GET /%d HTTP/1.1|" % number
    assert pod.connections == 1
    assert rig.statistics.requests == 20
    assert rig.statistics.answered(200) == 20


async def test_pipelined_requests_are_answered_in_order(rig):
    await rig.pod(hello)
    client = await rig.connect()
    client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(300)))
    for number in range(300):
        assert (await client.response())[2] == b"GET /%d HTTP/1.1|" % number


async def test_pipelined_requests_with_bodies_are_separated(rig):
    await rig.pod(hello)
    client = await rig.connect()
    one = b"POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
    two = b"POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    for byte in (one + two) * 2:
        client.send(bytes((byte,)))
        await asyncio.sleep(0)
    for _ in range(2):
        assert (await client.response())[2] == b"POST /1 HTTP/1.1|hello"
        assert (await client.response())[2] == b"POST /2 HTTP/1.1|3\r\nabc\r\n0\r\n\r\n"


async def test_trailers_pass_both_ways(rig):
    chunked = b"3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n"
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n" + chunked
    got: list[bytes] = []

    async def handler(pod, reader, writer):
        while True:
            await reader.readuntil(b"\r\n\r\n")
            got.append(await reader.readexactly(len(chunked)))
            writer.write(wire)

    await rig.pod(handler)
    client = await rig.connect()
    for _ in range(2):
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked)
        assert await client.read(len(wire)) == wire
    assert got == [chunked, chunked]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
async def test_answers_without_a_body_do_not_keep_the_next_one_waiting(rig, method, answer):
    pod = await rig.pod(answering(answer))
    client = await rig.connect()
    for _ in range(3):
        client.send(f"{method} / HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert await client.head() == answer
    assert pod.connections == 1


async def test_an_answer_that_ends_with_the_connection_ends_the_clients(rig):
    await rig.pod(answering(b"HTTP/1.1 200 OK\r\n\r\n", b"part one, ", b"part two", close=True))
    client = await rig.connect()
    client.get()
    assert await client.head() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    assert await client.rest() == b"part one, part two"


async def test_a_client_of_http_1_0_is_served_and_closed(rig):
    await rig.pod(hello)
    client = await rig.connect()
    client.send(b"GET / HTTP/1.0\r\n\r\n")
    assert (await client.rest()).endswith(b"Connection: close\r\n\r\nGET / HTTP/1.0|")


async def test_a_client_of_http_1_0_may_keep_its_connection(rig):
    await rig.pod(hello)
    client = await rig.connect()
    for _ in range(2):
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert b"Connection: keep-alive" in (await client.response())[1]


async def test_a_pod_of_http_1_0_is_answered_for_in_our_version(rig):
    await rig.pod(answering(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", close=True))
    client = await rig.connect()
    for _ in range(2):
        client.get()
        assert (await client.response())[1].startswith(b"HTTP/1.1 200 OK")


async def test_streams_are_passed_on_piece_by_piece(rig):
    go = asyncio.Event()

    async def handler(pod, reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await go.wait()
        writer.write(b"data: 2\n\n")

    await rig.pod(handler)
    client = await rig.connect()
    client.get()
    await client.head()
    assert await client.read(9) == b"data: 1\n\n"
    go.set()
    assert await client.rest() == b"data: 2\n\n"


async def test_an_upgrade_becomes_a_tunnel(rig):
    async def handler(pod, reader, writer):
        assert b"Upgrade: echo\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhi"
        )
        while data := await reader.read(1000):
            writer.write(data)

    await rig.pod(handler)
    client = await rig.connect()
    client.get(fields="Connection: Upgrade\r\nUpgrade: echo\r\n")
    assert b"Upgrade: echo" in await client.head()
    assert await client.read(2) == b"hi"
    client.send(b"x" * 100_000)
    assert await client.read(100_000) == b"x" * 100_000
    assert rig.statistics.tunnels == 1
    client.writer.write_eof()
    assert await client.rest() == b""


async def test_an_unrequested_switch_is_a_bad_answer(rig):
    await rig.pod(answering(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"))
    client = await rig.connect()
    client.get()
    assert (await client.response())[0] == 502


async def test_an_upgrade_that_the_pod_declines_is_an_ordinary_answer(rig):
    await rig.pod(answering(OK))
    client = await rig.connect()
    for _ in range(2):
        client.get(fields="Connection: Upgrade\r\nUpgrade: websocket\r\n")
        assert (await client.response())[2] == b"ok"


async def test_the_pods_100_continue_passes(rig):
    async def handler(pod, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(OK)

    await rig.pod(handler)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"body")
    assert (await client.response())[2] == b"ok"


async def test_early_hints_pass_before_the_answer_in_the_same_piece(rig):
    await rig.pod(answering(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK))
    client = await rig.connect()
    client.get()
    assert await client.head() == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    assert (await client.response())[2] == b"ok"


async def test_an_early_answer_arrives_while_the_client_still_sends(rig):
    async def handler(pod, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await asyncio.Event().wait()

    await rig.pod(handler)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n")
    status, head, body = await client.response()
    assert (status, body) == (413, b"no")
    assert b"Connection: close" in head
    client.send(b"x" * 1_000_000)
    await client.writer.drain()
    assert await client.rest() == b""


async def test_both_bodies_may_flow_at_once(rig):
    async def handler(pod, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(50):
            writer.write(b"a\r\n" + await reader.readexactly(10) + b"\r\n")
        writer.write(b"0\r\n\r\n")

    await rig.pod(handler)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n")
    await client.head()
    for number in range(50):
        client.send(b"%010d" % number)
        assert await client.read(15) == b"a\r\n%010d\r\n" % number
    assert await client.rest() == b"0\r\n\r\n"


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nnonsense",
    ],
)
async def test_half_an_answer_never_ends_cleanly(rig, start):
    await rig.pod(answering(start, close=True))
    client = await rig.connect()
    client.get()
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert rig.statistics.broken == 1


async def test_an_endless_answer_that_is_reset_never_ends_cleanly(rig):
    async def handler(pod, reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
        await writer.drain()
        await go.wait()
        reset(writer.transport)

    go = asyncio.Event()
    await rig.pod(handler)
    client = await rig.connect()
    client.get()
    await client.head()
    assert await client.read(4) == b"some"
    go.set()
    with pytest.raises(ConnectionResetError):
        await client.rest()


async def test_a_client_that_goes_away_frees_the_pod(rig):
    gone = asyncio.Event()

    async def handler(pod, reader, writer):
        await read_request(reader)
        try:
            await reader.read()
        finally:
            gone.set()

    await rig.pod(handler)
    client = await rig.connect()
    client.get()
    await eventually(lambda: rig.statistics.active == 1)
    client.abort()
    async with asyncio.timeout(PATIENCE):
        await gone.wait()
    await eventually(lambda: rig.statistics.connections == 0)


async def test_a_client_that_has_finished_sending_still_gets_its_answer(rig):
    await rig.pod(hello)
    client = await rig.connect()
    client.get("/x")
    client.writer.write_eof()
    assert (await client.rest()).endswith(b"GET /x HTTP/1.1|")


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX:" + b"y" * 70_000, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: magic\r\n\r\n", 417),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    ],
)
async def test_what_is_not_http_is_refused_with_a_reason(rig, wire, status):
    pod = await rig.pod(hello)
    client = await rig.connect()
    client.send(wire)
    got, head, body = await client.response()
    assert got == status
    assert b"application/json" in head
    assert b'"error"' in body
    assert await client.rest() == b""
    assert pod.requests == []


async def test_a_head_of_ten_megabytes_is_refused_without_keeping_it(rig):
    client = await rig.connect()

    async def send() -> None:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        for _ in range(160):
            client.send(b"y" * 65_536)
            await client.writer.drain()

    sending = asyncio.create_task(send())
    assert (await client.response())[0] == 431
    await asyncio.gather(sending, return_exceptions=True)


async def test_what_follows_a_bad_request_is_never_executed(rig):
    pod = await rig.pod(hello)
    client = await rig.connect()
    client.send(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nbad\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await client.response())[0] == 200
    assert (await client.response())[0] == 400
    assert await client.rest() == b""
    assert len(pod.requests) == 1


# held


async def test_a_held_request_is_answered_after_the_release_and_says_so(rig):
    pod = await rig.pod(hello, ready=False)
    client = await rig.connect()
    client.send(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
    await rig.held()
    assert rig.statistics.held == 1
    rig.upstream.release(pod.address)
    _, head, body = await client.response()
    assert body == b"POST /x HTTP/1.1|abc"
    assert b"X-Elasti-Cold-Start: true\r\n" in head
    assert b"Server-Timing: elasti-hold;dur=" in head
    client.get("/next")
    assert b"X-Elasti" not in (await client.response())[1]
    first, following = (re.findall(rb"X-Request-Start: t=(.*)\r", head) for head in pod.requests)
    assert float(first[0]) == pytest.approx(time.time(), abs=60)
    assert not following


async def test_an_earlier_start_of_a_held_request_stays(rig):
    pod = await rig.pod(hello, ready=False)
    client = await rig.connect()
    client.get(fields="x-request-start: t=7\r\n")
    await rig.held()
    rig.upstream.release(pod.address)
    await client.response()
    assert pod.requests[0].lower().count(b"x-request-start") == 1
    assert rig.statistics.outcomes == {"served": 1}


async def test_a_held_client_that_expects_100_gets_it_from_the_pod_and_not_before(rig):
    async def handler(pod, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(4)
        writer.write(OK)

    pod = await rig.pod(handler, ready=False)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    await rig.held()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.reader.read(1)
    rig.upstream.release(pod.address)
    assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"body")
    assert (await client.response())[2] == b"ok"


@pytest.mark.parametrize("refusal", [Refusal.TIMEOUT, Refusal.OVERFLOW, Refusal.GONE])
async def test_a_held_request_that_is_given_up_learns_why(rig, refusal):
    client = await rig.connect()
    client.get()
    await rig.held()
    rig.upstream.detail = ": postgres did not start"
    rig.upstream.refuse_all(refusal)
    status, head, body = await client.response()
    assert status == refusal.status
    assert b"Retry-After: 5\r\n" in head
    assert f"{refusal.message}: postgres did not start".encode() in body
    assert await client.rest() == b""
    assert rig.statistics.outcomes == {refusal.outcome: 1}


async def test_a_refusal_of_head_has_no_body(rig):
    client = await rig.connect()
    client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
    await rig.held()
    rig.upstream.refuse_all(Refusal.TIMEOUT)
    assert (await client.rest()).endswith(b"\r\n\r\n")


async def test_a_full_queue_refuses_at_once(rig):
    rig.upstream.max_held = 0
    client = await rig.connect()
    client.get()
    assert (await client.response())[0] == 503


async def test_a_held_client_that_resets_leaves_the_queue(rig):
    client = await rig.connect()
    client.get()
    await rig.held()
    client.abort()
    await rig.held(0)


async def test_a_held_client_that_closes_leaves_the_queue(rig):
    client = await rig.connect()
    client.get()
    await rig.held()
    await client.aclose()
    await rig.held(0)


async def test_a_held_client_that_has_only_finished_sending_keeps_its_place(rig):
    pod = await rig.pod(hello, ready=False)
    client = await rig.connect()
    client.get("/x")
    client.writer.write_eof()
    await rig.held()
    assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    for tick in range(100, 103):
        for waiter in rig.upstream.waiting:
            waiter.sweep(tick - 99)
    await rig.held()
    rig.upstream.release(pod.address)
    assert (await client.rest()).endswith(b"GET /x HTTP/1.1|")


async def test_a_held_body_is_read_to_a_bound_and_then_pushed_back(rig):
    got = 0

    async def handler(pod, reader, writer):
        nonlocal got
        await reader.readuntil(b"\r\n\r\n")
        while got < 20_000_000:
            got += len(await reader.read(1_000_000))
        writer.write(OK)

    pod = await rig.pod(handler, ready=False)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n")
    await rig.held()

    async def send() -> None:
        for _ in range(200):
            client.send(b"x" * 100_000)
            await client.writer.drain()

    sending = asyncio.create_task(send())
    done, _ = await asyncio.wait([sending], timeout=0.3)
    assert not done
    assert rig.statistics.received < 700_000
    rig.upstream.release(pod.address)
    assert (await client.response())[2] == b"ok"
    await sending


async def test_the_order_of_held_requests_is_kept_within_a_connection(rig):
    pod = await rig.pod(hello, ready=False)
    clients = [await rig.connect() for _ in range(30)]
    for client in clients:
        client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(5)))
    await rig.held(30)
    rig.upstream.release(pod.address)
    for client in clients:
        for number in range(5):
            assert (await client.response())[2] == b"GET /%d HTTP/1.1|" % number


# pods that fail


async def test_a_pod_that_refuses_sends_the_request_to_another(rig):
    refusing = await rig.pod(hello)
    assert refusing.server is not None
    refusing.server.close()
    await rig.pod(hello)
    client = await rig.connect()
    client.get()
    assert (await client.response())[0] == 200
    assert rig.upstream.refusals == [refusing.address]


async def test_a_request_goes_back_to_the_head_of_the_queue_when_all_pods_refuse(rig):
    pod = await rig.pod(hello, ready=False)
    clients = [await rig.connect() for _ in range(5)]
    for number, client in enumerate(clients):
        client.get(f"/{number}")
        await rig.held(number + 1)
    order = list(rig.upstream.waiting)
    rig.upstream.release(UpstreamAddress("127.0.0.1", 1))
    await rig.held(5)
    assert rig.upstream.waiting == order
    rig.upstream.release(pod.address)
    for number, client in enumerate(clients):
        assert (await client.response())[2] == b"GET /%d HTTP/1.1|" % number


async def test_a_post_that_reached_a_pod_is_never_sent_again(rig):
    async def handler(pod, reader, writer):
        pod.requests.append(await reader.readuntil(b"\r\n\r\n"))

    pod = await rig.pod(handler)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
    assert (await client.response())[0] == 502
    assert len(pod.requests) == 1


async def test_a_get_is_sent_again_if_no_part_of_the_answer_was_seen(rig):
    async def handler(pod, reader, writer):
        pod.requests.append(await reader.readuntil(b"\r\n\r\n"))
        if len(pod.requests) > 1:
            writer.write(OK)

    pod = await rig.pod(handler)
    client = await rig.connect()
    client.get()
    assert (await client.response())[2] == b"ok"
    assert len(pod.requests) == 2


async def test_a_get_is_not_sent_indefinitely(rig):
    async def handler(pod, reader, writer):
        pod.requests.append(await reader.readuntil(b"\r\n\r\n"))

    pod = await rig.pod(handler)
    client = await rig.connect()
    client.get()
    assert (await client.response())[0] == 502
    assert len(pod.requests) <= 3


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 103 Hm\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"]
)
async def test_a_get_is_not_sent_again_once_something_was_answered(rig, start):
    pod = await rig.pod(answering(start, close=True))
    client = await rig.connect()
    client.get()
    await asyncio.gather(client.rest(), return_exceptions=True)
    assert len(pod.requests) == 1


async def test_a_kept_connection_that_the_pod_closes_costs_no_request(rig):
    pod = await rig.pod(answering(OK, close=True))
    client = await rig.connect()
    for _ in range(30):
        client.get()
        assert (await client.response())[2] == b"ok"
    assert pod.connections >= 15


async def test_unsolicited_bytes_of_a_pod_answer_no_request(rig):
    await rig.pod(answering(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"))
    client = await rig.connect()
    for _ in range(3):
        client.get()
        assert (await client.response())[2] == b"ok"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
async def test_a_pod_that_answers_nonsense_is_a_bad_gateway(rig, nonsense):
    await rig.pod(answering(nonsense))
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
    assert (await client.response())[0] == 502


# our own answers


async def test_a_rule_answers_without_a_pod_and_without_use(rig):
    rig.upstream.rule = lambda asked: (
        LocalAnswer(200, b'{"ok":1}') if asked.target == b"/healthz" else None
    )
    pod = await rig.pod(hello)
    client = await rig.connect()
    client.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
    for _ in range(1000):
        assert (await client.response())[2] == b'{"ok":1}'
    assert rig.upstream.arrivals == 0
    client.get("/x")
    assert (await client.response())[2] == b"GET /x HTTP/1.1|"
    assert len(pod.requests) == 1


async def test_a_rule_sees_the_fields(rig):
    rig.upstream.rule = lambda asked: (
        LocalAnswer(204) if asked.field(b"user-agent") == b"probe/1" else None
    )
    client = await rig.connect()
    client.get(fields="User-Agent:  probe/1 \r\n")
    assert (await client.response())[0] == 204


async def test_the_body_of_a_request_answered_here_is_not_taken_for_a_request(rig):
    rig.upstream.rule = lambda asked: LocalAnswer(200, b"ok")
    pod = await rig.pod(hello)
    client = await rig.connect()
    inner = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(inner), inner))
    _, head, _ = await client.response()
    assert b"Connection: close" in head
    assert await client.rest() == b""
    assert pod.requests == []


async def test_connections_end_after_their_answer_when_pods_take_over(rig):
    await rig.pod(hello)
    client = await rig.connect()
    client.get()
    assert b"Connection: close" not in (await client.response())[1]
    rig.upstream.stepping_aside = True
    client.get()
    assert b"Connection: close" in (await client.response())[1]
    assert await client.rest() == b""


@pytest.mark.parametrize("tries", range(20))
async def test_an_early_answer_to_an_upload_reaches_the_client(rig, tries):
    async def refuses(pod, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        # With bytes unread: the kernel sends a reset behind the answer.
        writer.transport.abort() if tries % 2 else writer.close()

    await rig.pod(refuses)
    client = await rig.connect()
    client.send(b"POST /x HTTP/1.1\r\nHost: web\r\nContent-Length: 4000000\r\n\r\n")
    client.send(b"x" * 4_000_000)
    assert (await client.response())[0] == 413


@pytest.mark.parametrize("before", [b"\r\n", b"\r\n\r\n"])
async def test_empty_lines_before_a_request_are_ignored(rig, before):
    await rig.pod(hello)
    client = await rig.connect()
    for path in (b"/a", b"/b"):
        client.send(before)
        await asyncio.sleep(0)
        client.send(before + b"GET " + path + b" HTTP/1.1\r\nHost: web\r\n\r\n" + before)
        assert (await client.response())[0] == 200
    assert [request.split(b" ")[1] for request in rig._pods[0].requests] == [b"/a", b"/b"]


@pytest.mark.parametrize(
    ("odd", "passed"),
    [
        (b"Content-Length: 2\r\nX: y\r\ncontent-length: 2\r\n\r\nok", b"X: y\r\nContent-Length: 2\r\n\r\nok"),
        (
            b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
    ],
)  # fmt: skip
async def test_an_answer_of_one_meaning_is_mended_and_its_connection_not_used_again(
    rig, odd, passed
):
    pod = await rig.pod(answering(b"HTTP/1.1 200 OK\r\n" + odd))
    client = await rig.connect()
    for _ in range(2):
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        wire = b"HTTP/1.1 200 OK\r\n" + passed
        assert await client.read(len(wire)) == wire
    assert pod.connections == len(pod.requests) == 2
