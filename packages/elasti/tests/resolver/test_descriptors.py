"""A resolver that may open few files: refuses politely, and owes every Service its share."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest
from tests.resolver.installation import NOT_YET, Installation, installation
from tests.resolver.support import HttpPod, free_port, get

from kubeloop.aio.relay import reset
from tests.waiting import eventually

pytestmark = pytest.mark.slow
DESCRIPTORS = 400
FLOOD = 600


class Flood:
    """More connections to one port than the resolver may have open."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._hearing: list[asyncio.Task[None]] = []
        self.refused = 0
        self.closed = 0

    async def come(self, port: int, first: bytes) -> None:
        for _ in range(FLOOD):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            self._writers.append(writer)
            writer.write(first)
            self._hearing.append(asyncio.create_task(self._hear(reader)))

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        try:
            head = await reader.read(1000)
        except ConnectionError:
            self.closed += 1
            return
        self.refused += head.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5" in head
        self.closed += head == b""

    async def go(self) -> None:
        """Go for good: what only ends could still be waiting for an answer."""
        for writer in self._writers:
            reset(cast("asyncio.Transport", writer.transport))
        for writer in self._writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await asyncio.gather(*self._hearing)


async def answered(made: Installation, service: str, port: int, pod: HttpPod) -> bytes:
    """Ask a sleeping Service, wake it, and return what it answers."""
    asking = asyncio.create_task(get(port))
    while await made.woken.get() != service:
        pass
    await made.endpoint(service, pod.port)
    async with asyncio.timeout(40):
        return await asking


@pytest.mark.parametrize(
    ("name", "first"), [("http", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), ("tcp-db", b"\x00hello")]
)
async def test_one_service_takes_all_descriptors_and_others_are_woken_and_served(
    tmp_path, name, first
):
    greedy, early, late, pod = free_port(), free_port(), free_port(), HttpPod()
    flood = Flood()
    async with installation(tmp_path) as made, pod.answering():
        await made.service("greedy", greedy, name=name)
        await made.service("early", early)
        await made.service("late", late)
        async with made.resolver(descriptors=DESCRIPTORS) as running:
            assert (await answered(made, "early", early, pod)).endswith(b"hi")
            await flood.come(greedy, first)

            async def every_client_is_held_or_refused() -> bool:
                held = (await running.activity("greedy"))["held"]
                return bool(held + flood.refused + flood.closed == FLOOD)

            await eventually(every_client_is_held_or_refused, ignore=NOT_YET)
            assert flood.refused + flood.closed > FLOOD - DESCRIPTORS
            if name == "http":
                # As many as are waited for at a time have surely read their answer.
                assert flood.refused >= 16
            # One that had traffic before, and one that never had any.
            assert (await get(early)).endswith(b"hi")
            assert (await answered(made, "late", late, pod)).endswith(b"hi")
            assert await running.is_ready()
            assert "out of system resource" not in running.log.read_text()
            assert "Traceback" not in running.log.read_text()
            await flood.go()
            await running.holds(0, "greedy")
            asking = [asyncio.create_task(get(early)) for _ in range(20)]
            assert all(answer.endswith(b"hi") for answer in await asyncio.gather(*asking))
