"""What becomes of h2 requests that were held: they say so, are counted, or are taken back."""

from __future__ import annotations

import asyncio

import pytest
from tests.resolver.proxy.h2_peers import H2Client, H2Pod, request_fields

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.upstream.interface import Refusal
from tests.waiting import eventually

OK = (b":status", b"200")
COLD = (b"x-elasti-cold-start", b"true")


@pytest.fixture
async def peer(rig):
    """A client by hand."""
    client = await rig.connect()
    return H2Client(client.reader, client.writer)


@pytest.fixture
async def asleep(rig):
    """A pod by hand that no connection is sent to yet."""
    handler = H2Pod()
    handler.address = (await rig.pod(handler, ready=False)).address
    return handler


def counts(rig) -> dict[int, int]:
    return {digit: histogram.count for digit, histogram in rig.statistics.answers.items()}


def is_cold(fields) -> bool:
    names = [name for name, _ in fields]
    assert (COLD in fields) == (b"server-timing" in names)
    return COLD in fields


async def test_a_held_answer_says_so_and_those_after_it_do_not(rig, peer, asleep):
    peer.ask(1, b"/1")
    peer.ask(3, b"/3")
    await rig.held()
    rig.upstream.release(asleep.address)
    pod = await asleep.end()
    assert [await pod.hear_headers() for _ in range(2)] == [
        (1, request_fields(b"/1")),
        (3, request_fields(b"/3")),
    ]
    pod.headers(3, [OK, (b"x-own", b"yes")], end=True, pad=7)
    pod.headers(1, [OK, (b"x-own", b"yes")])
    pod.headers(1, [(b"grpc-status", b"0")], end=True)
    stream, fields = await peer.hear_headers()
    assert (stream, fields[:2], is_cold(fields)) == (3, [OK, (b"x-own", b"yes")], True)
    timing = dict(fields)[b"server-timing"]
    assert timing.startswith(b"elasti-hold;dur=")
    stream, fields = await peer.hear_headers()
    assert (stream, is_cold(fields)) == (1, True)
    assert await peer.hear_headers() == (1, [(b"grpc-status", b"0")])
    peer.ask(5, b"/5")
    assert await pod.hear_headers() == (5, request_fields(b"/5"))
    pod.headers(5, [OK, (b"x-own", b"yes")], end=True)
    assert await peer.hear_headers() == (5, [OK, (b"x-own", b"yes")])
    assert rig.statistics.answered(200) == 3


@pytest.mark.virtual_time
async def test_the_time_that_a_pod_takes_to_answer_is_not_time_held(rig, peer, asleep):
    peer.ask(1, b"/")
    await rig.held()
    rig.upstream.release(asleep.address)
    pod = await asleep.end()
    await pod.hear_headers()
    await asyncio.sleep(1000.0)
    pod.headers(1, [OK], end=True)
    _, fields = await peer.hear_headers()
    assert float(dict(fields)[b"server-timing"].partition(b"dur=")[2]) < 500_000


async def test_an_interim_answer_is_passed_on_and_the_final_one_says_that_it_was_held(
    rig, peer, asleep
):
    peer.ask(1, b"/")
    await rig.held()
    rig.upstream.release(asleep.address)
    pod = await asleep.end()
    await pod.hear_headers()
    pod.headers(1, [(b":status", b"103"), (b"link", b"</a>")])
    pod.headers(1, [(b":status", b"503")], end=True)
    assert (await peer.hear_headers())[1] == [(b":status", b"103"), (b"link", b"</a>")]
    _, fields = await peer.hear_headers()
    assert fields[0] == (b":status", b"503")
    assert is_cold(fields)
    assert counts(rig) == {5: 1}


async def test_statuses_are_counted_however_they_are_compressed(rig, peer, asleep):
    rig.upstream.pods.append(asleep.address)
    statuses = [b"200", b"418", b"418", b"302", b"418", b"204", b"503", b"302"]
    pod = None
    for number, status in enumerate(statuses):
        peer.ask(number * 2 + 1, b"/")
        pod = pod or await asleep.end()
        await pod.hear_headers()
        pod.headers(number * 2 + 1, [(b":status", status), (b"date", b"%d" % number)], end=True)
        assert dict((await peer.hear_headers())[1])[b":status"] == status
    assert counts(rig) == {2: 2, 3: 2, 4: 3, 5: 1}
    await eventually(lambda: rig.statistics.active == 0)


async def test_a_pod_whose_header_blocks_make_no_sense_is_passed_on_unread(rig, peer, asleep):
    rig.upstream.pods.append(asleep.address)
    peer.ask(1, b"/")
    peer.ask(3, b"/")
    pod = await asleep.end()
    nonsense = h2.frame(h2.HEADERS, flags=h2.END_HEADERS, stream=1, payload=b"\x40\x7f\xff\xff")
    pod.send(nonsense + h2.frame(h2.DATA, flags=h2.END_STREAM, stream=1, payload=b"x"))
    pod.send(h2.frame(h2.HEADERS, flags=5, stream=3, payload=b"\x88"))
    client = peer._reader
    async with asyncio.timeout(40):
        assert nonsense in await client.readuntil(b"\0\0\0\x03\x88")
    await eventually(lambda: rig.statistics.active == 0)


# taken back


async def test_a_held_request_that_is_taken_back_never_reaches_the_pod(rig, peer, asleep):
    peer.ask(1, b"/first", (b"x-shared", b"in the table"), end=False)
    peer.send(h2.frame(h2.DATA, stream=1, payload=b"x" * 1000))
    peer.ask(3, b"/second", (b"x-shared", b"in the table"), (b"x-own", b"too"))
    await rig.held()
    peer.reset(1)
    assert await peer.hear_kind(h2.WINDOW_UPDATE) == (1000).to_bytes(4, "big")
    # Built on what was entered by the request that is gone.
    peer.ask(5, b"/third", (b"x-shared", b"in the table"), (b"x-own", b"too"))
    await eventually(lambda: rig.statistics.requests == 3)
    assert rig.statistics.active == 2
    rig.upstream.release(asleep.address)
    pod = await asleep.end()
    shared, own = (b"x-shared", b"in the table"), (b"x-own", b"too")
    assert await pod.hear_headers() == (3, request_fields(b"/second", shared, own))
    assert await pod.hear_headers() == (5, request_fields(b"/third", shared, own))
    # And what follows, with the pod there, in several frames.
    fields = request_fields(b"/fourth", shared, own, (b"x-more", b"y" * 3000))
    block = peer.block(fields)
    peer.send(h2.frame(h2.HEADERS, flags=h2.END_STREAM, stream=7, payload=block[:100]))
    peer.send(h2.frame(h2.CONTINUATION, flags=h2.END_HEADERS, stream=7, payload=block[100:]))
    assert await pod.hear_headers() == (7, fields)
    peer.reset(7)
    while (heard := await pod.hear())[0] != h2.RST_STREAM:
        assert heard[0] in (h2.SETTINGS, h2.WINDOW_UPDATE)
    assert heard[2] == 7
    for stream in (3, 5):
        pod.headers(stream, [OK], end=True)
        assert is_cold((await peer.hear_headers())[1])


async def test_when_all_are_taken_back_the_place_is_free_and_the_connection_good(rig, peer, asleep):
    for stream in range(1, 401, 2):
        peer.ask(stream, b"/%d" % stream, (b"x-filler", b"f" * 400))
        peer.reset(stream)
    await eventually(lambda: rig.statistics.requests == 200)
    await rig.held(0)
    assert rig.statistics.active == 0
    peer.ask(401, b"/last")
    await rig.held(1)
    rig.upstream.release(asleep.address)
    pod = await asleep.end()
    assert await pod.hear_headers() == (401, request_fields(b"/last"))
    pod.headers(401, [OK], end=True)
    assert (await peer.hear_headers())[0] == 401


async def test_a_block_that_is_half_there_at_the_release_arrives_whole(rig, peer, asleep):
    peer.ask(1, b"/1")
    await rig.held()
    fields = request_fields(b"/3", (b"x-more", b"y" * 500))
    block = peer.block(fields)
    peer.send(h2.frame(h2.HEADERS, flags=h2.END_STREAM, stream=3, payload=block[:50]))
    seen = rig.statistics.received
    await eventually(lambda: rig.statistics.received > seen or seen > 100)
    rig.upstream.release(asleep.address)
    pod = await asleep.end()
    assert (await pod.hear_headers())[0] == 1
    peer.send(h2.frame(h2.CONTINUATION, flags=h2.END_HEADERS, stream=3, payload=block[50:]))
    assert await pod.hear_headers() == (3, fields)
    await eventually(lambda: rig.statistics.requests == 2)


async def test_trailers_of_a_held_request_go_with_it(rig, peer, asleep):
    peer.ask(1, b"/1", end=False)
    peer.ask(3, b"/3")
    peer.headers(1, [(b"x-trailer", b"yes")], end=True)
    await rig.held()
    peer.reset(3)
    await eventually(lambda: rig.statistics.active == 1)
    rig.upstream.release(asleep.address)
    pod = await asleep.end()
    assert await pod.hear_headers() == (1, request_fields(b"/1"))
    assert await pod.hear_headers() == (1, [(b"x-trailer", b"yes")])
    assert rig.statistics.requests == 2


async def test_after_one_was_taken_back_a_block_that_does_not_decode_ends_the_connection(
    rig, peer, asleep
):
    peer.ask(1, b"/1")
    peer.ask(3, b"/3")
    peer.reset(1)
    await rig.held()
    rig.upstream.release(asleep.address)
    pod = await asleep.end()
    await pod.hear_headers()
    peer.send(h2.frame(h2.HEADERS, flags=h2.END_HEADERS, stream=5, payload=b"\xff\xff\xff\xff\x0f"))
    payload = await peer.hear_kind(h2.GOAWAY)
    assert int.from_bytes(payload[4:], "big") == h2.PROTOCOL_ERROR


async def test_refused_requests_are_counted_by_their_status(rig, peer):
    peer.ask(1, b"/1")
    peer.ask(3, b"/3")
    await rig.held()
    rig.upstream.refuse_all(Refusal.TIMEOUT)
    assert (await peer.hear_headers())[1][0] == (b":status", b"504")
    assert rig.statistics.answered(504) == 2
    assert rig.statistics.holds["5xx"].count == 2
    assert rig.statistics.outcomes == {"timeout": 2}


# going


async def test_an_idle_connection_gets_goaway_when_pods_take_over(rig, peer, asleep):
    rig.upstream.pods.append(asleep.address)
    peer.ask(1, b"/")
    pod = await asleep.end()
    await pod.hear_headers()
    pod.headers(1, [OK], end=True)
    await peer.hear_headers()
    rig.upstream.stepping_aside = True
    # First that no more should come, then, when what crossed it is here, what was the last.
    assert int.from_bytes((await peer.hear_kind(h2.GOAWAY))[:4], "big") == h2.LAST_POSSIBLE_STREAM
    assert int.from_bytes((await peer.hear_kind(h2.GOAWAY))[:4], "big") == 1
    await eventually(lambda: rig.statistics.connections == 0, timeout=30)


async def test_a_request_that_crosses_the_first_goodbye_is_answered(rig, peer, asleep):
    rig.upstream.pods.append(asleep.address)
    peer.ask(1, b"/")
    pod = await asleep.end()
    await pod.hear_headers()
    rig.upstream.stepping_aside = True
    pod.headers(1, [OK], end=True)
    assert int.from_bytes((await peer.hear_kind(h2.GOAWAY))[:4], "big") == h2.LAST_POSSIBLE_STREAM
    peer.ask(3, b"/crossed")
    assert (await pod.hear_headers())[0] == 3
    pod.headers(3, [OK], end=True)
    assert (await peer.hear_headers())[0] == 3


async def test_a_connection_without_requests_gets_goaway_when_pods_take_over(rig, peer):
    await eventually(lambda: rig.statistics.connections == 1)
    rig.upstream.stepping_aside = True
    assert int.from_bytes((await peer.hear_kind(h2.GOAWAY))[:4], "big") == 0
    assert rig.upstream.arrivals == 0


async def test_a_held_connection_gets_no_goaway_before_it_is_served(rig, peer, asleep):
    rig.upstream.stepping_aside = True
    peer.ask(1, b"/")
    await rig.held()
    for tick in range(1, 5):
        rig.upstream.waiting[0].sweep(rig.path.sweeper.tick + tick)
    rig.upstream.release(asleep.address)
    pod = await asleep.end()
    await pod.hear_headers()
    pod.headers(1, [OK], end=True)
    while (heard := await peer.hear())[0] != h2.HEADERS:
        pass
    assert is_cold(heard[3])
