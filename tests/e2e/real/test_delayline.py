from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.real import delayline
from tests.e2e.real.delayline import DelayLine
from tests.waiting import eventually


class Echo:
    """Says every chunk back, and hears the end of a connection."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while data := await reader.read(100):
                writer.write(data)
            self.ended.set()


@contextlib.asynccontextmanager
async def line_to(echo: Echo) -> AsyncIterator[tuple[DelayLine, int]]:
    async with await asyncio.start_server(echo.serve, "127.0.0.1", 0) as far:
        line = DelayLine("127.0.0.1", far.sockets[0].getsockname()[1])
        async with await asyncio.start_server(line.serve, "127.0.0.1", 0) as near:
            yield line, near.sockets[0].getsockname()[1]


async def test_what_the_far_end_says_arrives_late_whole_and_in_order():
    loop, echo = asyncio.get_running_loop(), Echo()
    async with line_to(echo) as (line, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        line.delay = 0.5
        began = loop.time()
        writer.write(b"one ")
        assert await reader.readexactly(4) == b"one "
        assert loop.time() - began >= 0.5
        writer.write(b"two ")
        await asyncio.sleep(0.05)
        line.delay = 0.0
        writer.write(b"three")
        assert await reader.readexactly(9) == b"two three"
        writer.close()
        await echo.ended.wait()


async def test_the_far_end_of_a_connection_ends_with_the_near_one():
    echo = Echo()
    async with line_to(echo) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        await reader.readexactly(5)
        writer.close()
        await asyncio.wait_for(echo.ended.wait(), 30)


async def test_where_the_far_end_refuses_the_near_one_is_closed(unused_tcp_port: int):
    line = DelayLine("127.0.0.1", unused_tcp_port)
    async with await asyncio.start_server(line.serve, "127.0.0.1", 0) as near:
        address = near.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.slow
async def test_as_a_program_it_takes_its_delay_from_a_socket(tmp_path: Path, unused_tcp_port: int):
    echo, control = Echo(), tmp_path / "control"
    async with await asyncio.start_server(echo.serve, "127.0.0.1", 0) as far:
        far_port = far.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.e2e.real.delayline", str(control),
            "127.0.0.1", str(unused_tcp_port), "127.0.0.1", str(far_port),
        )  # fmt: skip
        try:
            await eventually(control.exists, "the control socket")
            await asyncio.to_thread(delayline.set_delay, control, 0.5)
            reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
            began = asyncio.get_running_loop().time()
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert asyncio.get_running_loop().time() - began >= 0.5
            writer.close()
        finally:
            process.kill()
            await process.wait()
