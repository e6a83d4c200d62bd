"""A server that counts: what reached a pod is sent again only where that is safe."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.resolver.proxy.rig import Rig, hello, read_request

from elasti.resolver.proxy.upstream.interface import Refusal
from tests.waiting import eventually

METHODS = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "POST", "PATCH", "PURGE"]
IDEMPOTENT = set(METHODS[:6])
# What a pod says before it dies.
LAST_WORDS = {
    "nothing": b"",
    "part of a line": b"HTTP/1.1 2",
    "part of a head": b"HTTP/1.1 200 OK\r\nX-A: b\r\n",
    "an interim answer": b"HTTP/1.1 103 Early Hints\r\n\r\n",
    "go on": b"HTTP/1.1 100 Continue\r\n\r\n",
    "a head": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
    "nonsense": b"220 mail.example ready\r\n\r\n",
}


class Counting:
    """Counts every request, by its path; dies after its last words, as often as it is asked to."""

    def __init__(self, words: bytes, *, times: int = 100, reset: bool = False) -> None:
        self._words, self._times, self._reset = words, times, reset
        self.executed: Counter[bytes] = Counter()

    async def __call__(self, pod, reader, writer) -> None:
        while (request := await read_request(reader)) is not None:
            self.executed[request[0].split(b" ")[1]] += 1
            if self._times:
                self._times -= 1
                writer.write(self._words)
                await writer.drain()
                if self._reset:
                    writer.transport.abort()
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def wire(method: str, connection: str = "keep-alive") -> bytes:
    body = b"x" if method in ("PUT", "POST", "PATCH") else b""
    fields = f"Host: a\r\nConnection: {connection}\r\nContent-Length: {len(body)}\r\n"
    return f"{method} /{method} HTTP/1.1\r\n{fields}\r\n".encode() + body


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("words", LAST_WORDS.values(), ids=LAST_WORDS)
async def test_a_request_is_repeated_only_if_idempotent_and_nothing_of_an_answer_was_seen(
    rig, words, reset
):
    pod = Counting(words, reset=reset)
    await rig.pod(pod)
    clients = {method: await rig.connect() for method in METHODS}
    for method, client in clients.items():
        client.send(wire(method, "close"))
        await asyncio.gather(client.rest(), return_exceptions=True)
        times = pod.executed[f"/{method}".encode()]
        if words == b"" and method in IDEMPOTENT:
            assert 1 < times <= 3
        elif words and reset:
            # A reset may overtake what was said before it.
            assert times == 1 or method in IDEMPOTENT
        else:
            assert times == 1


@pytest.mark.parametrize("method", METHODS)
async def test_a_request_whose_body_is_not_complete_is_never_repeated(rig, method):
    pod = Counting(b"")

    async def handler(served, reader, writer):
        pod.executed[(await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]] += 1

    await rig.pod(handler)
    client = await rig.connect()
    client.send(f"{method} /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc".encode())
    assert b" 502 " in await client.head()
    assert pod.executed == {b"/x": 1}


async def test_a_repeated_request_is_answered_and_goes_to_another_pod_if_possible(rig):
    dying = Counting(b"")
    first = await rig.pod(dying)
    good = await rig.pod(hello, ready=False)
    client = await rig.connect()
    client.send(wire("PUT"))
    await eventually(lambda: dying.executed)
    rig.upstream.pods = [good.address]
    assert (await client.response())[0] in (200, 502)
    assert dying.executed[b"/PUT"] <= 3
    assert first.connections <= 3


async def test_a_held_request_that_was_never_sent_is_sent_once_however_often_pods_refuse(rig):
    pod = await rig.pod(hello, ready=False)
    assert pod.server is not None
    pod.server.close()
    client = await rig.connect()
    client.send(wire("POST"))
    await rig.held()
    for _ in range(10):
        rig.upstream.release(pod.address)
        await rig.held()
    again = await rig.pod(hello, ready=False, port=pod.address.port)
    rig.upstream.release(again.address)
    assert (await client.response())[0] == 200
    assert len(again.requests) == 1


async def test_a_request_that_was_given_up_is_not_sent_afterwards():
    async with Rig() as rig:
        pod = await rig.pod(hello, ready=False)
        client = await rig.connect()
        client.send(wire("POST") + wire("GET"))
        await rig.held()
        rig.upstream.refuse_all(Refusal.TIMEOUT)
        assert (await client.response())[0] == 504
        await client.rest()
        rig.upstream.pods = [pod.address]
        other = await rig.connect()
        other.get("/after")
        assert (await other.response())[0] == 200
        assert [head.split(b" ")[1] for head in pod.requests] == [b"/after"]
